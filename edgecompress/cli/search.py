"""The commands that search: `search`, and `resume` for runs that were stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def search(
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="As for `compress`; by default the embedded network."
        ),
    ] = "zoo:fashion_resnet",
    latency_table: opt.LatencyTable = "pixel4.json",
    target_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Latency target in milliseconds.")
    ] = None,
    target_speedup: opt.TargetSpeedup = None,
    max_drop: Annotated[
        float | None,
        typer.Option(metavar="PP", help="The fastest network that loses at most PP percentage points."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Such as ms=60%, macs=50% or params=1.2M.")
    ] = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="Show the whole trade-off, from the fastest plan to the dense model."),
    ] = False,
    space: Annotated[
        str,
        typer.Option(
            metavar="lowrank|widths|dims|joint",
            help="What may change: ranks, channels, transformer dimensions, or all under one budget.",
        ),
    ] = "lowrank",
    search: Annotated[
        str, typer.Option(metavar="NAME", help="Search algorithm; see `edgecompress list searches`.")
    ] = "hybrid",
    weights: opt.Weights = None,
    data: opt.Data = None,
    report_data: opt.ReportData = None,
    methods: opt.Methods = "lowrank",
    families: opt.Families = None,
    factors: opt.Factors = "aware",
    refit: opt.Refit = True,
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
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Rounds of measuring and correcting; 3 if the device is available, 0 for none.",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="quick|standard|mlperf", help="How thoroughly dense and compressed are compared."
        ),
    ] = "quick",
    serial: Annotated[str | None, typer.Option(metavar="SERIAL", help="Serial number of the phone.")] = None,
    benchmark_binary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Google's benchmark_model for the phone.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Timeout of one call to the device.")
    ] = 300.0,
    adb: Annotated[str, typer.Option(metavar="PROGRAM", help="The adb program that reaches phones.")] = "adb",
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the most accurate plan within a latency target.

    Decides for every layer whether it stays dense or becomes low-rank, by a latency
    table; builds and repairs the network; measures it on the table's device if that is
    available, and searches again until the measured latency meets the target. Exits
    with 1 if it cannot.

    \b
    Examples:
      edgecompress search --latency-table pixel4.json
      edgecompress search -m zoo:resnet20 --weights resnet20.pth --data cifar/ \\
          --latency-table phone.json --target-ms 1.2
      edgecompress search --max-drop 1.0
      edgecompress search --front
      edgecompress search --space joint -m zoo:fashion_vit
    """
    with running() as progress:
        from edgecompress.pipeline.search import search as run

        result = run(
            model,
            latency_table=latency_table,
            target_ms=target_ms,
            target_speedup=target_speedup,
            max_drop=max_drop,
            budget=budget,
            front=front,
            space=space,
            search=search,
            weights=weights,
            data=data,
            report_data=report_data,
            methods=opt.parse_names(methods),
            families=opt.parse_names(families),
            factors=factors,
            refit=refit,
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
            rounds=rounds,
            preset=preset,
            serial=serial,
            benchmark_binary=benchmark_binary,
            timeout_s=timeout_s,
            adb=adb,
            seed=seed,
            name=name,
            runs_dir=runs_dir,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
    _exit_by(result)


def resume(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Name of the run; by default the only unfinished one."),
    ] = None,
    runs_dir: opt.RunsDir = Path("runs"),
    as_json: opt.AsJson = False,
) -> None:
    """Continue a run that was stopped or killed.

    Finished steps are not repeated; the result is the same as without the
    interruption.

    \b
    Examples:
      edgecompress resume
      edgecompress resume search-resnet20-001
    """
    with running() as progress:
        from edgecompress.pipeline.resume import resume as go_on

        result = go_on(run, runs_dir=runs_dir, progress=progress)
    show(result, as_json=as_json)
    _exit_by(result)


def _exit_by(result: object) -> None:
    """Exits with 1 where a target was not met; the run with the nearest plan stands."""
    reason = getattr(result, "reason", None)
    if reason is not None:
        typer.echo(f"edgecompress: target not met: {reason}", err=True)
        raise typer.Exit(1)
