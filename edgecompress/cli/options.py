"""Options that several commands share, and the text forms of options that are not plain text."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edgecompress.cli.running import one_line_errors
from edgecompress.core.config import load_settings
from edgecompress.errors import ConfigError


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Makes the settings of a file the defaults of the command, so that flags win over them."""
    if path is not None and not ctx.resilient_parsing:
        with one_line_errors():
            ctx.default_map = _defaults_from(path, ctx)
    return path


def _defaults_from(path: Path, ctx: typer.Context) -> dict[str, Any]:
    hints = typing.get_type_hints(ctx.command.callback)
    names = {_key(param.opts[0]): param.name for param in ctx.command.params if param.name in hints}
    names.pop("config")
    if "timeout" in names:
        names["timeout_s"] = names["timeout"]  # as `run.json` spells it
    known = {key: hints[name] for key, name in names.items()}
    settings = load_settings(path, str(ctx.info_name), known=known, commands=_other_commands(ctx))
    if not settings:
        typer.echo(f"edgecompress: {path}: has no settings for {' '.join(_path(ctx))}", err=True)
    return {names[key]: value for key, value in settings.items()}


def _path(ctx: typer.Context) -> list[str]:
    """Returns what is typed for a command, as `latency` and `build`."""
    root = ctx.find_root()
    groups = [ctx.parent] if ctx.parent is not None and ctx.parent is not root else []
    return [str(one.info_name) for one in (*groups, ctx)]


def _other_commands(ctx: typer.Context) -> set[str]:
    """Returns the names of all commands beside this one and its group."""
    groups = [one.command for one in (ctx.find_root(), ctx.parent) if one is not None]
    found = {name for group in groups if isinstance(group, TyperGroup) for name in group.commands}
    return found - set(_path(ctx))


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_read_config,
        help="Read options from a .toml or .json file or an earlier run; flags override them.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Random seed; the same seed repeats the run.")]
RunsDir = Annotated[Path, typer.Option(metavar="DIR", help="Where runs are kept.")]
RunName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the run; generated if not given.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of that name.")]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="Checkpoint: .safetensors, or a .pth without pickled code.")
]
InputSize = Annotated[
    str | None,
    typer.Option(metavar="HxW", help="Input size, such as 224x224, if the model does not define it."),
]
Channels = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Input channels: 3, or 1 for grey images.")
]
Classes = Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of classes of the model.")]
Budget = Annotated[
    str,
    typer.Option(
        metavar="LIMIT", help="Such as macs=50%, params=1.2M or macs=0.3G; for milliseconds use `search`."
    ),
]

Data = Annotated[
    str | None,
    typer.Option(metavar="SOURCE", help="Images; no labels needed. See `edgecompress list data`."),
]
ReportData = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Separate images to report accuracy on; by default some of --data are set aside.",
    ),
]
Methods = Annotated[
    str, typer.Option(metavar="A,B", help="Ways to rewrite layers; see `edgecompress list methods`.")
]
Families = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these families of the methods, such as S2,S4.")
]
Factors = Annotated[
    str, typer.Option(metavar="NAME", help="How factors are computed; see `edgecompress list factors`.")
]
Refit = Annotated[
    bool, typer.Option(help="Fit the factors to the dense layers' outputs, first layer to last.")
]
BatchNorm = Annotated[
    str, typer.Option(metavar="auto|keep|correct", help="Batch-norm statistics; auto keeps the better ones.")
]
Layers = Annotated[
    str,
    typer.Option(
        metavar="paper|all|PATTERNS",
        help="Layers to rewrite: the papers' choice, all, or names such as layer1.*,layer2.*.",
    ),
]
CalibrationImages = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Calibration images, no labels; 512, or 2/5 of a small set."),
]
SelectionImages = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Selection images, no labels; 512, or 1/5 of a small set."),
]
ReportImages = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Images to report accuracy on; by default all that are left."),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="float32|bfloat16",
        help="For training; bfloat16 is faster on CPUs with bfloat16 instructions.",
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="M,M,M",
        help="Mean per channel, for pixels from 0 to 1; by default the model's, or ImageNet's.",
    ),
]
Std = Annotated[str | None, typer.Option(metavar="S,S,S", help="Standard deviation per channel.")]
LatencyTable = Annotated[
    str, typer.Option(metavar="TABLE", help="Latency table: a file, or a shipped one; see `latency build`.")
]
TargetSpeedup = Annotated[
    float | None, typer.Option(metavar="X", help="Speed-up over the dense model; 1.5 by default.")
]


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Reads `224x224`, also written `224,224`.

    Raises:
        ConfigError: the text is neither.
    """
    if text is None:
        return None
    match = re.fullmatch(r"\s*([1-9]\d*)\s*[x,]\s*([1-9]\d*)\s*", text)
    if match is None:
        raise ConfigError(f"--input-size {text!r}: not understood; write height x width, as 224x224")
    return int(match[1]), int(match[2])


def parse_numbers(text: str | None, *, flag: str) -> tuple[float, ...] | None:
    """Reads `0.5,0.5,0.5`.

    Raises:
        ConfigError: a part is not a number.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{flag} {text!r}: not understood; write one number per channel, as 0.5,0.5,0.5"
        ) from None


def parse_names(text: str | None) -> tuple[str, ...]:
    """Reads `lowrank,tucker2`; no text is no names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
