"""The commands about latency tables: `latency build`, `show`, `check`, `merge` and `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.bench import parse_cores
from edgecompress.cli.running import running
from edgecompress.cli.running import show as show_result
from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from edgecompress.core.types import Record

app = typer.Typer(
    help="Build, inspect and compare latency tables of devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="A file, or a shipped table such as pixel4.json.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", metavar="MODEL", help="As for `compress`; repeat the option for each."),
]
DeviceName = Annotated[
    str,
    typer.Option(metavar="local|adb|NAME", help="A name from `edgecompress list devices`, or a device file."),
]
Cores = Annotated[
    str | None,
    typer.Option(
        metavar="7|4-7|any", help="Cores to run on; the fastest by default, `any` turns pinning off."
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Threads of the runtime; 1 by default.")
]
Binary = Annotated[Path | None, typer.Option(metavar="FILE", help="Google's benchmark_model for the phone.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Timeout of one call to the device.")
]
Adb = Annotated[str, typer.Option(metavar="PROGRAM", help="The adb program that reaches phones.")]


@app.command("build")
def build(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The table to write or add to.")
    ],
    model: Models = None,
    device: DeviceName = "local",
    format: Annotated[
        str, typer.Option(metavar="tflite|onnx", help="Format of the measured files.")
    ] = "tflite",
    int8: Annotated[bool, typer.Option("--int8", help="Measure blocks in int8; float32 by default.")] = False,
    parts: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="What to measure: candidates of methods, narrower layers, MLPs and heads."
        ),
    ] = "lowrank,branches,widths,dimensions",
    layers: Annotated[
        str,
        typer.Option(metavar="paper|all|PATTERNS", help="Layers that may be replaced, as for `compress`."),
    ] = "paper",
    plans: Annotated[
        int, typer.Option(metavar="N", help="Random plans per model, to calibrate the sum of blocks.")
    ] = 16,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    threads: Threads = None,
    cores: Cores = None,
    serial: Annotated[
        list[str] | None,
        typer.Option(metavar="SERIAL|all", help="Phones to measure on in parallel; one table each."),
    ] = None,
    benchmark_binary: Binary = None,
    timeout_s: Timeout = 300.0,
    adb: Adb = "adb",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how many measurements it takes, and how long.")
    ] = False,
    seed: opt.Seed = 0,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Measure the latency table of a device for one or more models.

    Every block that may replace a layer is run on the device by itself, then whole
    networks to calibrate the sum of blocks. If stopped at any moment, the same command
    continues where it was; with other models it adds to the table.

    \b
    Examples:
      edgecompress latency build -m zoo:resnet20 -o mine.json
      edgecompress latency build -m zoo:resnet20 --device adb --benchmark-binary benchmark_model -o phone.json
      edgecompress latency build -m zoo:resnet20 -m zoo:resnet18 --device emulated-a76 -o a76.json --dry-run
    """
    with running() as progress:
        from edgecompress.devices.contract import Options
        from edgecompress.pipeline.latency_build import Request, forecast
        from edgecompress.pipeline.latency_build import build as run

        request = Request(
            models=tuple(model or ()),
            output=output,
            device=device,
            format=_format(format),
            dtype="int8" if int8 else "float32",
            parts=opt.parse_names(parts),
            layers=layers,
            input_size=opt.parse_size(input_size),
            channels=channels,
            classes=classes,
            plans=plans,
        )
        options = Options(
            threads=threads,
            cores=parse_cores(cores),
            benchmark_binary=benchmark_binary,
            timeout_s=timeout_s,
            adb=adb,
        )
        result: Record = (
            forecast(request)
            if dry_run
            else run(request, options=options, serials=serial or (), seed=seed, progress=progress)
        )
    show_result(result, as_json=as_json)


def _format(text: str) -> Literal["tflite", "onnx"]:
    if text == "tflite":
        return "tflite"
    if text == "onnx":
        return "onnx"
    raise ConfigError(f"--format {text!r} is not known; known are: tflite, onnx")


@app.command("show")
def show(table: Table, as_json: opt.AsJson = False) -> None:
    """Show what a table holds and how well it predicts.

    \b
    Examples:
      edgecompress latency show pixel4.json
      edgecompress latency show mine.json --json
    """
    with running():
        from edgecompress.pipeline.latency_files import show as run

        result = run(table)
    show_result(result, as_json=as_json)


@app.command("check")
def check(
    table: Table,
    model: Models = None,
    plans: Annotated[int, typer.Option(metavar="N", help="Random plans to measure.")] = 30,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a plot of predicted against measured as an .html page."),
    ] = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    threads: Threads = None,
    serial: Annotated[str | None, typer.Option(metavar="SERIAL", help="Serial number of the phone.")] = None,
    benchmark_binary: Binary = None,
    timeout_s: Timeout = 300.0,
    adb: Adb = "adb",
    seed: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seed of the random plans; none was used in the fit.")
    ] = 1,
    as_json: opt.AsJson = False,
) -> None:
    """Measure plans the table has not seen, and say how far off it is.

    \b
    Examples:
      edgecompress latency check mine.json -m zoo:resnet20
      edgecompress latency check pixel4.json -m zoo:resnet20 --plot check.html
    """
    with running() as progress:
        from edgecompress.devices.contract import Options
        from edgecompress.pipeline.latency_check import check as run

        options = Options(
            threads=threads,
            serial=serial,
            benchmark_binary=benchmark_binary,
            timeout_s=timeout_s,
            adb=adb,
        )
        result = run(
            table,
            model or (),
            plans=plans,
            input_size=opt.parse_size(input_size),
            channels=channels,
            classes=classes,
            options=options,
            seed=seed,
            progress=progress,
        )
    show_result(result, as_json=as_json)
    if plot is not None:
        with running():  # after the result: what took long to measure is not lost with a bad path
            from edgecompress.core.store import write_text
            from edgecompress.report.latency_plot import check_page

            write_text(plot, check_page(result))


@app.command("merge")
def merge(
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE...", help="Tables of one device; later ones override earlier ones."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The table to write.")],
    as_json: opt.AsJson = False,
) -> None:
    """Merge tables of one device.

    \b
    Examples:
      edgecompress latency merge monday.json tuesday.json -o both.json
    """
    with running():
        from edgecompress.pipeline.latency_files import merge as run

        result = run(tables, output)
    show_result(result, as_json=as_json)


@app.command("diff")
def diff(first: Table, second: Table, as_json: opt.AsJson = False) -> None:
    """Compare two tables, of one device or of two, block by block.

    \b
    Examples:
      edgecompress latency diff mine.json pixel4.json
    """
    with running():
        from edgecompress.pipeline.latency_files import diff as run

        result = run(first, second)
    show_result(result, as_json=as_json)
