"""The command that takes channels and dimensions away: `prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def prune(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="zoo:NAME, torchvision:NAME, timm:NAME, python:pkg.mod:factory or path/file.py:factory.",
        ),
    ],
    dims: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of head and MLP dimensions to remove, such as 40%."),
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of convolution channels to remove, such as 30%."),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which units matter least; see `edgecompress list scores`. Default: reconstruction, or "
            "magnitude without images.",
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="per_type|global|per_layer",
            help="What is ranked together; per_type, or per_layer for scores not comparable across layers.",
        ),
    ] = None,
    multiple: Annotated[int, typer.Option(min=1, metavar="N", help="Round widths up to multiples of N.")] = 8,
    floor: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Smallest width; 8, and 32 for hidden units."),
    ] = None,
    residual: Annotated[
        bool, typer.Option(help="Also prune the widths of stages, shared by layers joined by additions.")
    ] = False,
    refit: Annotated[
        bool, typer.Option(help="Fit the remaining weights to the dense layers' outputs, first to last.")
    ] = True,
    batch_norm: opt.BatchNorm = "auto",
    weights: opt.Weights = None,
    data: opt.Data = None,
    report_data: opt.ReportData = None,
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
    """Remove channels and dimensions from MODEL, without training.

    Units are physically removed: weights get smaller, nothing is masked at run time. Writes
    a run directory with plan.json, weights.safetensors and run.json, which
    `edgecompress.load` turns back into a network.

    \b
    Examples:
      edgecompress prune zoo:fashion_vit --dims 40%
      edgecompress prune zoo:fashion_resnet --widths 30% --residual
      edgecompress prune torchvision:mobilenet_v2 --widths 30% \\
          --weights mobilenet_v2.pth --data photos/
      edgecompress prune torchvision:swin_t --dims 40% --scores magnitude
    """
    with running() as progress:
        from edgecompress.pipeline.prune import prune as run

        result = run(
            model,
            dims=dims,
            widths=widths,
            scores=scores,
            scope=scope,
            multiple=multiple,
            floor=floor,
            residual=residual,
            refit=refit,
            batch_norm=batch_norm,
            weights=weights,
            data=data,
            report_data=report_data,
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
