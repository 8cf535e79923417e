"""`edgecompress init`: what is known of a user's model, images and device before anything takes long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from edgecompress.core.types import Size
from edgecompress.data.sources import Source, open_source
from edgecompress.devices.files import load_device
from edgecompress.errors import EdgeCompressError
from edgecompress.nets.profile import total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.latency_costs import read_clock
from edgecompress.pipeline.search import MODEL, TABLE

Settings = Mapping[str, JsonValue]


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
    table = _table(loaded, device, latency_table)
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
    facts = (_model_fact(loaded), _images_fact(opened), f"device: {found.title}", _table_fact(table))
    given = {key: value for key, value in settings.items() if value is not None}
    return Beginning(given, facts, tuple(_next(model, device, table)))


def _table(loaded: LoadedModel, device: str, asked: str | None) -> str | None:
    """Returns the table that was asked for, or one of the device or a shipped one that has the model."""
    if asked is not None:
        read_clock(asked, loaded, ())
        return asked
    for name in (f"{device}.json", TABLE):
        try:
            read_clock(name, loaded, ())
        except EdgeCompressError:
            continue
        return name
    return None


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


def _table_fact(table: str | None) -> str:
    if table is None:
        return "latency table: none has this model yet; build one, or give a budget in MACs"
    return f"latency table: {table}"


def _next(model: str, device: str, table: str | None) -> Iterator[str]:
    if table is None:
        yield f"edgecompress latency build --device {device} --model {model} -o {device}.json"
        yield "edgecompress compress"
    else:
        yield "edgecompress search"
    yield "edgecompress export"
    yield "edgecompress bench"
    yield "edgecompress report"
