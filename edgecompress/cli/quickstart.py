"""The tour: `quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def quickstart(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A network that comes with its weights and data.")
    ] = "zoo:fashion_resnet",
    latency_table: opt.LatencyTable = "pixel4.json",
    target_speedup: opt.TargetSpeedup = None,
    budget: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Instead of a speed-up, as ms=60% or macs=50%.")
    ] = None,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Make a network that comes along faster, and prove it.

    Searches, exports dense and compressed to TFLite, checks their outputs and measures
    both on this machine. Needs no download and takes a few minutes.

    \b
    Examples:
      edgecompress quickstart
      edgecompress quickstart --model zoo:fashion_vit --target-speedup 1.2
    """
    with running() as progress:
        from edgecompress.pipeline.quickstart import quickstart as run

        result = run(
            model=model,
            latency_table=latency_table,
            target_speedup=target_speedup,
            budget=budget,
            seed=seed,
            runs_dir=runs_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
