"""The command that searches how a network is wired: `topology`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def topology(
    space: Annotated[
        str, typer.Option(metavar="darts|nats", help="Which cells: 14 edges and 8 operations, or 6 and 5.")
    ] = "darts",
    method: Annotated[
        str, typer.Option(metavar="rarts|darts1", help="Train two sets of weights, or one.")
    ] = "rarts",
    operations: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these operations, such as none,skip,sep3,avg3.")
    ] = None,
    channels: Annotated[int, typer.Option(min=1, metavar="N", help="Channels of the first cells.")] = 4,
    cells: Annotated[
        int, typer.Option(min=3, metavar="N", help="Number of cells; nats takes 3, 6, 9, ...")
    ] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Search steps; 60 by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Passes over the images, instead of --steps.")
    ] = None,
    batch_images: Annotated[int, typer.Option(min=1, metavar="N", help="Images per step and half.")] = 32,
    train_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Training steps of the network that is found.")
    ] = 200,
    data: Annotated[
        str, typer.Option(metavar="SOURCE", help="Images with labels; see `edgecompress list data`.")
    ] = "fashion-mnist",
    images: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Images to search on; all, at most 20,000.")
    ] = None,
    report_images: opt.ReportImages = None,
    input_size: opt.InputSize = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    latency_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Also minimise the latency this table predicts.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Device to measure operators on that the table lacks.")
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="X", help="Weight of the latency, without unit; chosen automatically by default."
        ),
    ] = None,
    alpha_lr: Annotated[
        float | None,
        typer.Option(min=0, metavar="X", help="Learning rate of the scores; by default from the steps."),
    ] = None,
    max_skips: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Most skip connections per cell.")
    ] = None,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Search how a network should be wired.

    A gradient search decides which operations connect the states of a cell. The
    network of such cells is built, trained briefly and written as a run that can be
    exported and measured. With a latency table, latency counts as well as accuracy.
    The result gives the share of skip connections, since searches tend to collapse to them.

    \b
    Examples:
      edgecompress topology
      edgecompress topology --space nats --channels 8 --epochs 10
      edgecompress topology --device local --gamma 0.5 --max-skips 2
      edgecompress topology --data cifar/ --input-size 32x32 \\
          --mean 0.49,0.48,0.45 --std 0.25,0.24,0.26 --cells 8 --channels 16
    """
    with running() as progress:
        from edgecompress.pipeline.topology import topology as run

        result = run(
            space=space,
            method=method,
            operations=opt.parse_names(operations),
            channels=channels,
            cells=cells,
            steps=steps,
            epochs=epochs,
            batch_images=batch_images,
            train_steps=train_steps,
            data=data,
            images=images,
            report_images=report_images,
            input_size=opt.parse_size(input_size),
            mean=opt.parse_numbers(mean, flag="--mean"),
            std=opt.parse_numbers(std, flag="--std"),
            latency_table=latency_table,
            device=device,
            gamma=gamma,
            alpha_lr=alpha_lr,
            max_skips=max_skips,
            seed=seed,
            name=name,
            runs_dir=runs_dir,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
