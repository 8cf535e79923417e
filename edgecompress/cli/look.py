"""The commands that look and change nothing: `inspect`, `list` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model source or a run; by default the latest run."),
    ] = None,
    weights: opt.Weights = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    runs_dir: opt.RunsDir = Path("runs"),
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what every layer of MODEL costs.

    Parameters, multiply-accumulates (FLOPs are twice that) and bytes, from shapes.

    \b
    Examples:
      edgecompress inspect zoo:resnet20
      edgecompress inspect torchvision:mobilenet_v2 --input-size 160x160
      edgecompress inspect runs/compress-resnet20-001
    """
    with running() as progress:
        from edgecompress.pipeline.inspect import inspect as run

        result = run(
            _model_or_run(model, runs_dir),
            weights=weights,
            input_size=opt.parse_size(input_size),
            channels=channels,
            classes=classes,
            progress=progress,
        )
    show(result, as_json=as_json)


def _model_or_run(text: str | None, runs_dir: Path) -> str:
    """Returns the path of the run that is meant, or the text itself where it names no run."""
    from edgecompress.core.runs import RUN_FILE, latest_run

    if text is None:
        return str(latest_run(runs_dir, containing="plan.json"))
    run = runs_dir / text
    return str(run) if (run / RUN_FILE).is_file() else text


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="models, methods, factors, rank-selections, searches, scores, optimisers, data, formats, "
            "converters, devices or drivers.",
        ),
    ],
    as_json: opt.AsJson = False,
) -> None:
    """List the names that options accept.

    \b
    Examples:
      edgecompress list models
      edgecompress list methods --json
    """
    with running():
        from edgecompress.pipeline.listing import list_kind

        result = list_kind(kind)
    show(result, as_json=as_json)


def doctor(runs_dir: opt.RunsDir = Path("runs"), as_json: opt.AsJson = False) -> None:
    """Show what is installed, what is missing and how to get it.

    Ends with exit code 1 when something required is missing.
    """
    with running():
        from edgecompress.pipeline.doctor import doctor as run

        result = run(runs_dir=runs_dir)
    show(result, as_json=as_json)
    if any(item.required and item.found is None for item in result.items):
        raise typer.Exit(1)
