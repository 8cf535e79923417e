"""The `edgecompress` command. Nothing here imports torch: `--help` must not wait for it."""

from __future__ import annotations

from typing import Annotated

import typer

from edgecompress import __version__
from edgecompress.cli.bench import bench
from edgecompress.cli.compress import compress
from edgecompress.cli.device import app as device
from edgecompress.cli.export import export
from edgecompress.cli.init import init
from edgecompress.cli.latency import app as latency
from edgecompress.cli.look import doctor, inspect, list_
from edgecompress.cli.prune import prune
from edgecompress.cli.quickstart import quickstart
from edgecompress.cli.recover import recover
from edgecompress.cli.report import report, runs_
from edgecompress.cli.search import resume, search
from edgecompress.cli.synthesize import synthesize
from edgecompress.cli.topology import topology
from edgecompress.cli.train import train

app = typer.Typer(
    name="edgecompress",
    no_args_is_help=True,
    rich_markup_mode=None,  # laying help out with rich takes half of the half second it may take
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # options that were not typed are then no longer parsed with pydantic, which takes long to import
        "default_map": {
            "help": False,
            "install_completion": False,
            "show_completion": False,
            "device": {"help": False},
            "latency": {"help": False},
        },
    },
)
app.command("quickstart")(quickstart)
app.command("init")(init)
app.command("inspect")(inspect)
app.command("compress")(compress)
app.command("prune")(prune)
app.command("search")(search)
app.command("recover")(recover)
app.command("resume")(resume)
app.command("synthesize")(synthesize)
app.command("topology")(topology)
app.command("train")(train)
app.command("export")(export)
app.command("bench")(bench)
app.command("report")(report)
app.command("runs")(runs_)
app.add_typer(latency, name="latency")
app.add_typer(device, name="device")
app.command("list")(list_)
app.command("doctor")(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgecompress {__version__}")
        raise typer.Exit


@app.callback()
def _edgecompress(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Make vision models smaller and faster on edge CPUs.

    \b
    Start with:
      edgecompress quickstart
      edgecompress COMMAND --help
    """


def main() -> None:
    """Runs the command line."""
    app()
