"""Devices as text for a terminal, at most 80 columns wide. Nothing here prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from edgecompress.core.counts import CountModel
from edgecompress.core.device import Cluster, Device
from edgecompress.devices.native.build import DevicePrepared

WIDTH = 80


def device_text(device: Device) -> str:
    """Returns what a device file says, with where it comes from."""
    blocks = [
        [f"{device.name}: {device.title}", *_properties(device)],
        list(_clusters(device)),
        list(_models(device)),
        list(_wrapped(device.notes)),
        list(_facts(device)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def prepared_text(result: DevicePrepared) -> str:
    """Returns what was prepared for a board or an emulated core and where it is."""
    parts = {
        "runner": result.runner,
        "library": result.library,
        "plugin": result.plugin,
        "root": result.root,
    }
    first = f"{result.device}: can be measured, with LiteRT {result.litert_version} for {result.machine}"
    return "\n".join([first, *(f"  {name:<8} {path}" for name, path in parts.items() if path)])


def _properties(device: Device) -> Iterator[str]:
    properties = {
        "SoC": device.soc,
        "drivers": ", ".join(device.drivers),
        "emulates": None if device.emulation is None else f"{device.emulation.cpu}, under qemu",
        "told by": ", ".join(device.match),
        "reached": _reached(device),
        "threads": str(device.threads),
    }
    for name, value in properties.items():
        if value:
            yield f"  {name:<8} {value}"


def _reached(device: Device) -> str | None:
    if device.serial is not None:
        return f"adb, serial {device.serial}"
    if "board" not in device.drivers or device.transport == "adb":
        return None
    if device.host is None:
        return 'ssh, with host = "user@address" in a file of your own'
    return f"ssh, {device.host}" + ("" if device.port is None else f" port {device.port}")


def _clusters(device: Device) -> Iterator[str]:
    for one in device.clusters:
        star = "*" if one.cores == device.cores else " "
        yield f"{star} {one.name:<7} cores {_span(one):<9} {one.core}{_clock(one)}"
    if device.count_models:
        yield "* modelled on these"
    elif device.clusters:
        yield "* measured on these, unless the device itself says that others are faster"


def _models(device: Device) -> Iterator[str]:
    if device.count_models:
        yield "modelled milliseconds against measured ones, mean, median and worst error:"
    for one in device.count_models:
        yield f"  {one.cluster:<7} {one.dtype:<8} {_errors(one)}"
    yield from _wrapped(dict.fromkeys(f"measured by: {one.citation}" for one in device.count_models))


def _errors(model: CountModel) -> str:
    errors = (model.mean_error, model.median_error, model.worst_error)
    shares = " ".join(f"{100 * error:5.2f} %" for error in errors)
    nets = f"{len(model.nets)} networks{' left out of the fit' if model.left_out else ''}"
    return f"{shares}  {nets}{', provisional' if model.provisional else ''}"


def _span(cluster: Cluster) -> str:
    return ",".join(map(str, cluster.cores))


def _clock(cluster: Cluster) -> str:
    return "" if cluster.max_ghz is None else f", up to {cluster.max_ghz:g} GHz"


def _facts(device: Device) -> Iterator[str]:
    if device.facts:
        yield "where this comes from:"
    for fact in device.facts:
        seen = "" if fact.verified else " (not verified)"
        yield from _wrapped([f"{fact.about}{seen}: {fact.source}"])


def _wrapped(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(
            text,
            WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_on_hyphens=False,  # names have them
        )
