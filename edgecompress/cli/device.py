"""The commands about devices: `device show` and `device prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running
from edgecompress.cli.running import show as show_result

app = typer.Typer(
    help="Show a device, or prepare a board or an emulated core.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `edgecompress list devices`, or a .toml file.")
]


@app.command("show")
def show(name: Name, as_json: opt.AsJson = False) -> None:
    """Show what is known about a device, and the sources.

    \b
    Examples:
      edgecompress device show pixel4
      edgecompress device show my-board.toml --json
    """
    with running():
        from edgecompress.pipeline.device import show as run

        result = run(name)
    show_result(result, as_json=as_json)


@app.command("prepare")
def prepare(
    name: Name,
    litert_wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Wheel of ai-edge-litert for the board; fetched if not given."),
    ] = None,
    compiler: Annotated[str | None, typer.Option(metavar="PROGRAM", help="C compiler for the board.")] = None,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="What `uname -m` says on the board.")
    ] = "aarch64",
    as_json: opt.AsJson = False,
) -> None:
    """Build the runner that measures a Linux board or an emulated core.

    Compiles it for the board with gcc-aarch64-linux-gnu. LiteRT's library for
    the board comes from the wheel of the release installed here: without
    --litert-wheel it is fetched with pip, which uses the network. For an
    emulated core, also builds the plug-in that counts instructions in qemu, and tests
    both. Needed only once; the result is kept in ~/.cache/edgecompress.

    \b
    Examples:
      edgecompress device prepare rpi5
      edgecompress device prepare emulated-a76
      edgecompress device prepare rpi5 --litert-wheel ai_edge_litert-2.3.0-....whl
    """
    with running():
        from edgecompress.pipeline.device import prepare as run

        result = run(name, litert_wheel=litert_wheel, compiler=compiler, machine=machine)
    show_result(result, as_json=as_json)
