"""The command `bench`: milliseconds, measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show
from edgecompress.errors import ConfigError


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|RUN",
            help=".onnx and .tflite files, or one run; by default the latest exported run.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="local|adb|NAME", help="A name from `edgecompress list devices`, or a device file."
        ),
    ] = "local",
    preset: Annotated[
        str,
        typer.Option(
            metavar="quick|standard|mlperf",
            help="At least 50 runs and 4 s; 200 and 10 s; or 1024 and 60 s, scored by the 90th percentile.",
        ),
    ] = "standard",
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads of the runtime; 1 by default.")
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            metavar="7|4-7|any", help="Cores to run on; the fastest by default, `any` turns pinning off."
        ),
    ] = None,
    serial: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERIAL|all", help="Phones to measure on in parallel; repeat the option for each."
        ),
    ] = None,
    benchmark_binary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Google's benchmark_model for the phone.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also measure the time per operator, in a separate pass.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier bench JSON to compare with.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Timeout of one call to the device.")
    ] = 300.0,
    clean: Annotated[
        bool, typer.Option("--clean", help="Afterwards remove the files pushed to the device.")
    ] = False,
    adb: Annotated[str, typer.Option(metavar="PROGRAM", help="The adb program that reaches phones.")] = "adb",
    seed: opt.Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the result as JSON to FILE; by default into the run.",
        ),
    ] = None,
    runs_dir: opt.RunsDir = Path("runs"),
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the latency of files on a device and compare them.

    Files are measured interleaved, so that drift and noise affect all alike. Each is compared
    with the first; the files of a run with its dense network. See docs/measuring.md.

    \b
    Examples:
      edgecompress bench
      edgecompress bench a.tflite b.tflite c.onnx
      edgecompress bench runs/compress-resnet20-001 --device pixel4
      edgecompress bench a.tflite --device adb --benchmark-binary benchmark_model
      edgecompress bench a.tflite b.tflite --device adb --serial all
    """
    with running() as progress:
        from edgecompress.pipeline.bench import bench as run

        result = run(
            what or (),
            device=device,
            preset=preset,
            threads=threads,
            cores=parse_cores(cores),
            serials=serial or (),
            benchmark_binary=benchmark_binary,
            profile=profile,
            against=against,
            timeout_s=timeout_s,
            clean=clean,
            adb=adb,
            seed=seed,
            output=output,
            runs_dir=runs_dir,
            progress=progress,
        )
    show(result, as_json=as_json)


def parse_cores(text: str | None) -> tuple[int, ...] | None:
    """Reads `7`, `4-7`, `0,2-3` or `any`, which is no core in particular.

    Raises:
        ConfigError: the text is none of these.
    """
    if text is None:
        return None
    if text.strip() == "any":
        return ()
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,3})(?:-(\d{1,3}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"--cores {text!r}: not understood; write 7, 4-7, 0,2-3 or any")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))
