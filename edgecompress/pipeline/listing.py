"""`edgecompress list`: what can be named on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from edgecompress.core.plugins import Plugin, described, discover
from edgecompress.core.results import ListItem, ListResult
from edgecompress.errors import ConfigError


def list_kind(kind: str) -> ListResult:
    """Returns the names of one kind, each with a line about it.

    Raises:
        ConfigError: there is no such kind; the message lists the known ones.
    """
    if kind not in KINDS:
        raise ConfigError(f"list {kind!r}: no such kind; known are: {', '.join(KINDS)}")
    return ListResult(kind=kind, items=KINDS[kind]())


def _items(plugins: Mapping[str, Plugin], *, prefix: str = "") -> tuple[ListItem, ...]:
    return tuple(
        ListItem(name=prefix + name, summary=plugin.summary) for name, plugin in sorted(plugins.items())
    )


def _described(package: ModuleType, kind: str) -> tuple[ListItem, ...]:
    found = sorted(described(package, kind).items())
    return tuple(ListItem(name=name, summary=summary) for name, (summary, *_) in found)


# Each imports what it lists and no more: most of it brings torch along.


def _models() -> tuple[ListItem, ...]:
    from edgecompress.nets import zoo
    from edgecompress.nets.entries import Entry

    others = (
        ListItem(name="torchvision:NAME", summary="any classifier of torchvision; pass --weights"),
        ListItem(name="timm:NAME", summary="any model of timm (extra: timm); pass --weights"),
        ListItem(name="cells:genotype.json", summary="cells that `topology` found; pass --weights"),
        ListItem(name="python:pkg.mod:factory", summary="a function or class of an importable module"),
        ListItem(name="path/file.py:factory", summary="a function or class of your own file"),
    )
    return _items(discover(zoo, Entry), prefix="zoo:") + others


def _methods() -> tuple[ListItem, ...]:
    from edgecompress import methods

    return _described(methods, "Method") + _train_methods()


def _train_methods() -> tuple[ListItem, ...]:
    from edgecompress.train import methods

    found = sorted(described(methods, "TrainMethod").items())
    return tuple(
        ListItem(name=name, summary=f"train: {summary}{f' ({paper})' if paper else ''}")
        for name, (summary, paper) in found
    )


def _factors() -> tuple[ListItem, ...]:
    from edgecompress import factors

    return _described(factors, "Factors")


def _rank_selections() -> tuple[ListItem, ...]:
    from edgecompress.search import ranks

    return _described(ranks, "Selection")


def _searches() -> tuple[ListItem, ...]:
    from edgecompress.pipeline.strategies import searches

    return _items(searches())


def _scores() -> tuple[ListItem, ...]:
    from edgecompress.search import unit_scores

    return _described(unit_scores, "Scores")


def _optimisers() -> tuple[ListItem, ...]:
    from edgecompress.train import optimisers

    return _described(optimisers, "Optimiser")


def _data() -> tuple[ListItem, ...]:
    from edgecompress.data import readers

    return _described(readers, "Reader")


def _formats() -> tuple[ListItem, ...]:
    from edgecompress import export
    from edgecompress.export.contract import Format

    return _items(discover(export, Format))


def _converters() -> tuple[ListItem, ...]:
    from edgecompress import export
    from edgecompress.export.contract import Converter, missing_packages

    return tuple(
        ListItem(name=name, summary=f"{each.format}: {each.summary}{_lacking(missing_packages(each))}")
        for name, each in sorted(discover(export, Converter).items())
    )


def _lacking(packages: tuple[str, ...]) -> str:
    return f"; not installed: {', '.join(packages)}" if packages else ""


def _devices() -> tuple[ListItem, ...]:
    from edgecompress.devices.files import known_devices

    return tuple(
        ListItem(name=name, summary=f"{device.title}; {', '.join(device.drivers)}")
        for name, device in sorted(known_devices().items())
    )


def _drivers() -> tuple[ListItem, ...]:
    from edgecompress import devices
    from edgecompress.devices.contract import Driver

    return _items(discover(devices, Driver))


KINDS: Mapping[str, Callable[[], tuple[ListItem, ...]]] = {
    "models": _models,
    "methods": _methods,
    "factors": _factors,
    "rank-selections": _rank_selections,
    "searches": _searches,
    "scores": _scores,
    "optimisers": _optimisers,
    "data": _data,
    "formats": _formats,
    "converters": _converters,
    "devices": _devices,
    "drivers": _drivers,
}
"""What can be listed."""
