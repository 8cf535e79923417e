"""`edgecompress init`: what is known of a user's model, images and device before anything takes long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from edgecompress.core.device import Device
from edgecompress.core.types import Size
from edgecompress.data.sources import Source, open_source
from edgecompress.devices.files import load_device
from edgecompress.errors import EdgeCompressError
from edgecompress.nets.profile import total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.latency_costs import Clock, read_clock
from edgecompress.pipeline.search import MODEL, TABLE

Settings = Mapping[str, JsonValue]
NO_TABLE = (
    "latency table: none has this model yet; build one for `search`, or give `compress` a budget in MACs"
)


@dataclass(frozen=True)
class Beginning:
    """What settings should say, and why."""

    settings: Settings
    """By name of the option, for every command that has it."""
    facts: tuple[str, ...]
    next: tuple[str, ...]
    """Commands to go on with, without their --config."""


def begin(
    model: str = MODEL,
    *,
    weights: str | None = None,
    data: str | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
    device: str = "local",
    latency_table: str | None = None,
) -> Beginning:
    """Loads the model, opens the images and looks up device and latency table.

    Raises:
        EdgeCompressError: one of them cannot be used; better known now than after the first hour.
    """
    loaded = load_model(model, weights=weights, classes=classes, input_size=input_size, channels=channels)
    found = load_device(device)
    source = data or loaded.data
    opened = None if source is None else open_source(source, loaded.ref.preprocess)
    clock = _clock(loaded, device, latency_table)
    table = None if clock is None else clock[0]
    settings: Settings = {
        "model": model,
        "weights": weights,
        "data": data,
        "input_size": None if input_size is None else f"{input_size[0]}x{input_size[1]}",
        "channels": channels,
        "classes": classes,
        "device": device,
        "latency_table": table,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    build = _build(given)
    table_fact = NO_TABLE if clock is None else _table_fact(*clock, found, build)
    facts = (_model_fact(loaded), _images_fact(opened), f"device: {found.title}", table_fact)
    return Beginning(given, facts, tuple(_next(device, build, has_table=clock is not None)))


def _clock(loaded: LoadedModel, device: str, asked: str | None) -> tuple[str, Clock] | None:
    """Returns the table that was asked for, or one of the device or a shipped one that has the model."""
    if asked is not None:
        return asked, read_clock(asked, loaded, ())
    for name in (_table_name(device), TABLE):
        try:
            return name, read_clock(name, loaded, ())
        except EdgeCompressError:
            continue
    return None


def _table_name(device: str) -> str:
    return f"{Path(device).name.removesuffix('.toml')}.json"


def _model_fact(loaded: LoadedModel) -> str:
    shape = "x".join(map(str, loaded.ref.input_shape))
    params = f"{total_params(loaded.module):,}"
    trained = "; its weights are RANDOM, pass --weights" if loaded.random_weights else ""
    return (
        f"model: {params} parameters, inputs of {shape}, {loaded.ref.classes} classes, "
        f"{len(loaded.targets)} layers to rewrite{trained}"
    )


def _images_fact(source: Source | None) -> str:
    if source is None:
        return "images: none; pass --data, a few hundred without labels are enough"
    sizes = {name: getattr(source, name) for name in ("train", "test", "pool")}
    counts = [
        f"{len(images):,}{'' if name == 'pool' else f' {name}'}" for name, images in sizes.items() if images
    ]
    return f"images: {' and '.join(counts)}, from {source.name}"


def _table_fact(name: str, clock: Clock, device: Device, build: str) -> str:
    """Says whose milliseconds a search would go by: a shipped table may be of another device."""
    table = clock.table
    if table.device == device.name or (table.soc is not None and table.soc == device.soc):
        return f"latency table: {name}"
    soc = "" if table.soc is None else f", {table.soc}"
    return (
        f"latency table: {name}, of another device ({table.device}{soc}): a search "
        f"is for that one, unless you build yours with `{build}`"
    )


def _build(settings: Settings) -> str:
    """Returns the command that builds a table of this model, for images of this shape."""
    device = str(settings["device"])
    given = [
        (key, settings[key]) for key in ("model", "input_size", "channels", "classes") if key in settings
    ]
    flags = [part for key, value in given for part in (f"--{key.replace('_', '-')}", str(value))]
    command = ["edgecompress", "latency", "build", "--device", device, *flags, "-o", _table_name(device)]
    return shlex.join(command)


def _next(device: str, build: str, *, has_table: bool) -> Iterator[str]:
    if has_table:
        yield "edgecompress search"
    else:
        yield build
        yield f"edgecompress search --latency-table {shlex.quote(_table_name(device))}"
    yield "edgecompress export"
    yield "edgecompress bench"
    yield "edgecompress report"
