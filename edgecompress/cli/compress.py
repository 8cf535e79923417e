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
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Images to calibrate and choose with; see `edgecompress list data`."
        ),
    ] = None,
    report_data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Other images to report accuracy on; otherwise some of --data are set aside.",
        ),
    ] = None,
    budget: opt.Budget = "macs=50%",
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Ways to rewrite layers; see `edgecompress list methods`.")
    ] = "lowrank",
    families: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these families of the methods, as S2,S4.")
    ] = None,
    rank_selection: Annotated[
        str,
        typer.Option(metavar="NAME", help="How ranks are chosen; see `edgecompress list rank-selections`."),
    ] = "exact",
    factors: Annotated[
        str, typer.Option(metavar="NAME", help="How factors are found; see `edgecompress list factors`.")
    ] = "aware",
    refit: Annotated[
        bool, typer.Option(help="Fit the factors to the dense layers' outputs, first layer to last.")
    ] = True,
    refit_factors: Annotated[
        str, typer.Option(metavar="both|second", help="All factors together, or the last one exactly.")
    ] = "both",
    local_search: Annotated[bool, typer.Option(help="Improve the ranks by the true loss.")] = True,
    batch_norm: Annotated[
        str,
        typer.Option(metavar="auto|keep|correct", help="Batch-norm statistics; auto keeps what is better."),
    ] = "auto",
    layers: Annotated[
        str, typer.Option(metavar="paper|all|PATTERNS", help="Layers to rewrite, as layer1.*,layer2.*.")
    ] = "paper",
    calibration_images: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Images for statistics, no labels; 512, or 2/5 of a small set."
        ),
    ] = None,
    selection_images: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Images for choosing, no labels; 512, or 1/5 of a small set."),
    ] = None,
    report_images: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Images to report accuracy on; all that are left when not given."
        ),
    ] = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    mean: Annotated[
        str | None, typer.Option(metavar="M,M,M", help="Mean per channel, for values of 0 to 1.")
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="S,S,S", help="Standard deviation per channel.")] = None,
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
