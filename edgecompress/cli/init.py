"""The command `init`: a file of settings to begin with, every option explained."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show
from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import JsonValue

COMMANDS = ("search", "compress", "prune", "recover", "export", "bench")
"""That get a table."""
NOT_SETTINGS = frozenset({"config", "json", "help", "name", "overwrite", "runs_dir", "open", "output"})
"""Options of one call, which belong on the command line."""
WITHOUT_MODEL = frozenset({"export", "bench"})
"""Commands that go on with the latest run."""
NO_CONFIG = ("edgecompress latency", "edgecompress report")
WIDTH = 96


def init(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path(
        "edgecompress.toml"
    ),
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="As for `compress`; on a terminal you are asked."
        ),
    ] = None,
    weights: opt.Weights = None,
    data: opt.Data = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="local|adb|NAME", help="Target device; see `edgecompress list devices`."),
    ] = None,
    latency_table: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE", help="Latency table of the device; found automatically if there is one."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write a settings file for your model, images and device.

    Loads the model and opens the images first, so that mistakes show up now.
    The file lists every option with its default and what it does.

    \b
    Examples:
      edgecompress init
      edgecompress init -m my_net.py:build --weights my_net.safetensors \\
          --data photos/ --input-size 96x96 --device adb
      edgecompress search --config edgecompress.toml
    """
    model, data, device = _asked(model, data, device)
    with running():
        if file.exists() and not overwrite:
            raise ConfigError(f"{file}: already exists; give another name or pass --overwrite")
        from edgecompress.core.report_results import InitResult
        from edgecompress.core.store import write_text
        from edgecompress.pipeline.init import begin

        found = begin(
            model,
            weights=weights,
            data=data,
            input_size=opt.parse_size(input_size),
            channels=channels,
            classes=classes,
            device=device,
            latency_table=latency_table,
        )
        write_text(file, settings_text(ctx, file, found.settings))
        following = tuple(_with_config(command, file) for command in found.next)
        result = InitResult(file=str(file), model=model, facts=found.facts, next=following)
    show(result, as_json=as_json)


def _asked(model: str | None, data: str | None, device: str | None) -> tuple[str, str | None, str]:
    """Returns what was given; on a terminal, what was not is asked for."""
    usual = "zoo:fashion_resnet"
    if model is None and sys.stdin.isatty() and sys.stderr.isatty():
        model = typer.prompt("Model (zoo:, torchvision:, timm: or file.py:factory)", default=usual, err=True)
        if data is None and model != usual:
            data = typer.prompt("Images (a folder or file)", default="", err=True) or None
        if device is None:
            device = typer.prompt("Device (local, adb, pixel4, ...)", default="local", err=True)
    return model or usual, data, device or "local"


def _with_config(command: str, file: Path) -> str:
    return command if command.startswith(NO_CONFIG) else f"{command} --config {shlex.quote(str(file))}"


def settings_text(ctx: typer.Context, file: Path, settings: Mapping[str, JsonValue]) -> str:
    """Returns a table per command: what was given, and every other option as a comment."""
    commands: Mapping[str, Any] = ctx.find_root().command.commands  # type: ignore[attr-defined]
    head = (
        "# Settings of edgecompress. Every command reads its own table, for example\n"
        f"#     edgecompress search --config {shlex.quote(str(file))}\n"
        "# Flags override this file, and unknown keys are errors.\n"
        "# Commented options show their default, or a placeholder if there is none.\n"
        "# Paths are relative to the folder in which you run the command.\n"
    )
    return head + "".join("\n".join(_table(name, commands[name], settings)) for name in COMMANDS)


def _table(name: str, command: Any, settings: Mapping[str, JsonValue]) -> Iterator[str]:  # noqa: ANN401
    yield f"\n[{name}]"
    for param in command.params:
        key = param.opts[0].lstrip("-").replace("-", "_")
        positional = param.param_type_name == "argument"
        if key in NOT_SETTINGS or (positional and key != "model"):
            continue
        if key == "model" and name in WITHOUT_MODEL:
            continue
        yield from _explained(key, param, settings.get(key))
    yield ""


def _explained(key: str, param: Any, value: JsonValue) -> Iterator[str]:  # noqa: ANN401
    from edgecompress.core.toml_text import toml_value

    words = (getattr(param, "help", None) or "").strip()
    yield from textwrap.wrap(words, WIDTH, initial_indent="# ", subsequent_indent="# ")
    if value is not None:
        yield f"{key} = {toml_value(value)}"
        return
    default = param.default if isinstance(param.default, str | int | float | bool) else None
    shown = str(param.default) if isinstance(param.default, Path) else default
    metavar = param.metavar or "..."
    yield f"#{key} = {metavar if shown is None else toml_value(shown)}"
