"""The command that makes images of a model's own statistics: `synthesize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def synthesize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for `compress`; it needs batch norms and weights.")
    ],
    weights: opt.Weights = None,
    images: Annotated[int, typer.Option(min=1, metavar="N", help="Number of images to make.")] = 256,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ours, or as published: paper-resnet18, paper-mobilenetv2, paper-efficientnet.",
        ),
    ] = "ours",
    iterations: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most iterations per batch; by default the preset's."),
    ] = None,
    batch_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images made together, and stored in one file.")
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(metavar="image|batch", help="Match statistics of each image, or of a whole batch."),
    ] = None,
    class_weight: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Weight of the class loss; 0 for no classes.")
    ] = None,
    smooth_weight: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="Weight of smoothness between neighbouring pixels."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Initial learning rate.")] = None,
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
    """Make images from the batch-norm statistics of MODEL.

    Batch norms store the mean and variance of their inputs; images are changed until
    they give the same. Use them if you have no real images: pass the run as --data
    to compress, search or prune. Look at contact-sheet.png first. `edgecompress
    resume` continues a run that was stopped; under torchrun, batches are
    distributed over processes.

    \b
    Examples:
      edgecompress synthesize zoo:fashion_resnet
      edgecompress synthesize zoo:resnet20 --weights resnet20.pth --images 1024
      edgecompress compress zoo:resnet20 --weights resnet20.pth \\
          --data runs/synthesize-resnet20-001 --report-data cifar/
      edgecompress synthesize torchvision:resnet18 --weights resnet18.pth \\
          --preset paper-resnet18
      torchrun --nproc-per-node 4 -m edgecompress synthesize zoo:fashion_resnet
    """
    with running() as progress:
        from edgecompress.pipeline.synthesize import synthesize as run

        result = run(
            model,
            weights=weights,
            images=images,
            preset=preset,
            iterations=iterations,
            batch_images=batch_images,
            statistics=statistics,
            class_weight=class_weight,
            smooth_weight=smooth_weight,
            learning_rate=learning_rate,
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
