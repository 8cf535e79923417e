"""The command that shrinks a model to a budget: `compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def compress(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="zoo:NAME, torchvision:NAME, timm:NAME, python:pkg.mod:factory or path/file.py:factory.",
        ),
    ],
    weights: opt.Weights = None,
    data: opt.Data = None,
    report_data: opt.ReportData = None,
    budget: opt.Budget = "macs=50%",
    methods: opt.Methods = "lowrank",
    families: opt.Families = None,
    rank_selection: Annotated[
        str,
        typer.Option(metavar="NAME", help="How ranks are chosen; see `edgecompress list rank-selections`."),
    ] = "exact",
    factors: opt.Factors = "aware",
    refit: opt.Refit = True,
    refit_factors: Annotated[
        str,
        typer.Option(metavar="both|second", help="Fit all factors jointly, or only the last one, exactly."),
    ] = "both",
    local_search: Annotated[
        bool, typer.Option(help="Improve the ranks by a local search on the true loss.")
    ] = True,
    batch_norm: opt.BatchNorm = "auto",
    layers: opt.Layers = "paper",
    calibration_images: opt.CalibrationImages = None,
    selection_images: opt.SelectionImages = None,
    report_images: opt.ReportImages = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    classes: opt.Classes = None,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Shrink MODEL until it meets a budget, without training.

    Writes a run directory with plan.json, weights.safetensors and run.json, which
    `edgecompress.load` turns back into a network.

    \b
    Examples:
      edgecompress compress zoo:fashion_resnet --budget macs=50%
      edgecompress compress zoo:resnet20 --weights resnet20.pth --data cifar/
      edgecompress compress my_net.py:build --weights my_net.safetensors \\
          --data photos/ --input-size 96x96 --classes 12 --budget params=300k
      edgecompress compress --config runs/compress-resnet20-001 --seed 1
    """
    with running() as progress:
        from edgecompress.pipeline.compress import compress as run

        result = run(
            model,
            weights=weights,
            data=data,
            report_data=report_data,
            budget=budget,
            methods=opt.parse_names(methods),
            families=opt.parse_names(families),
            rank_selection=rank_selection,
            factors=factors,
            refit=refit,
            refit_factors=refit_factors,
            local_search=local_search,
            batch_norm=batch_norm,
            layers=layers,
            calibration_images=calibration_images,
            selection_images=selection_images,
            report_images=report_images,
            input_size=opt.parse_size(input_size),
            channels=channels,
            mean=opt.parse_numbers(mean, flag="--mean"),
            std=opt.parse_numbers(std, flag="--std"),
            classes=classes,
            seed=seed,
            name=name,
            runs_dir=runs_dir,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
