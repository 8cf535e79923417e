"""One network to one file: every converter at hand tries, the right and fastest file is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from edgecompress import devices, export
from edgecompress.core.plugins import discover, pick
from edgecompress.core.presets import PRESETS
from edgecompress.core.progress import Progress
from edgecompress.core.results import ParityResult
from edgecompress.core.statistics import compare
from edgecompress.devices.contract import Driver, Options
from edgecompress.devices.files import load_device
from edgecompress.devices.protocol import measure
from edgecompress.errors import ConfigError, ExportError, MissingPackage
from edgecompress.export.contract import Converter, Format, missing_packages
from edgecompress.export.parity import Limits, check_parity

AUTO = "auto"


@dataclass(frozen=True)
class Task:
    """What is to be written, and how it is judged."""

    network: nn.Module
    """Ready for export."""
    shape: tuple[int, int, int]
    format: Format
    any_batch: bool
    images: Tensor
    expected: Tensor
    """Outputs of the original network for `images`."""
    limits: Limits


@dataclass(frozen=True)
class Converted:
    """A file that computes what its network computes."""

    file: Path
    converter: str
    parity: ParityResult
    notes: tuple[str, ...] = ()


def usable_converters(format: Format, name: str) -> tuple[Converter, ...]:
    """Returns the converters to try: the one named, or with `auto` all that are installed.

    Raises:
        ConfigError: there is no such converter.
        MissingPackage: it is not installed, or none is.
    """
    everything = discover(export, Converter)
    known = {each.name: each for each in everything.values() if each.format == format.name}
    if name != AUTO:
        pick(everything, name, what="converter")
    if name != AUTO and len(known) > 1:  # ONNX has one way only, whatever is asked for TFLite
        known = {name: pick(known, name, what=f"{format.name} converter")}
    lacking = {each.name: missing_packages(each) for each in known.values()}
    usable = tuple(each for each in known.values() if not lacking[each.name])
    if not usable:
        wants = " or ".join(f"{each} needs {' and '.join(names)}" for each, names in lacking.items())
        raise MissingPackage(f"{format.name}: the converter is not installed: {wants}; install with pip")
    return usable


def convert_best(
    task: Task, converters: tuple[Converter, ...], directory: Path, stem: str, progress: Progress
) -> Converted:
    """Writes `stem` with every converter, checks each file and returns the right and fastest one.

    Raises:
        ExportError: no converter gives a file that computes the same.
        ConfigError: an option does not go with the format.
    """
    right, wrong = [], []
    for converter in progress.track(converters, f"converting {stem} to {task.format.name}"):
        try:
            right.append(_converted(task, converter, directory, stem))
        except (ExportError, MissingPackage) as error:
            wrong.append(f"{converter.name}: {error}")
    if not right:
        raise ExportError(wrong[0] if len(wrong) == 1 else "; ".join(wrong))
    best = right[0] if len(right) == 1 else _fastest(right, progress)
    failed = tuple(f"failed with {reason}" for reason in wrong)
    return Converted(best.file, best.converter, best.parity, best.notes + failed)


def _converted(task: Task, converter: Converter, directory: Path, stem: str) -> Converted:
    file = directory / converter.name / f"{stem}{task.format.suffix}"
    file.parent.mkdir(exist_ok=True)
    converter.convert(task.network, task.shape, file, task.any_batch)
    parity = check_parity(task.format, file, task.expected, task.images, limits=task.limits)
    return Converted(file, converter.name, parity)


def _fastest(right: list[Converted], progress: Progress) -> Converted:
    """Measures the files in turns on this machine; the first stays where no other is clearly faster."""
    device = load_device("local")
    driver = _driver_for(right[0].file)
    with driver.open(device, Options(threads=1)) as session:
        found = measure(
            [(each.file, session) for each in right],
            PRESETS["quick"],
            seed=0,
            profile=False,
            progress=progress,
        )
    best, why = right[0], "no other converter's file is faster here"
    kept = found[0]
    for each, measured in zip(right[1:], found[1:], strict=True):
        names = (best.converter, each.converter)
        result = compare(kept.bursts, measured.bursts, names=names, paired=True)
        if result.verdict == "faster":
            best, kept, why = each, measured, f"against {names[0]}: {result.statement}"
    others = ", ".join(each.converter for each in right if each is not best)
    return Converted(best.file, best.converter, best.parity, (f"chosen over {others}: {why}",))


def _driver_for(file: Path) -> Driver:
    drivers = discover(devices, Driver)
    for name in load_device("local").drivers:
        if file.suffix in drivers[name].suffixes:
            return drivers[name]
    raise ConfigError(f"{file.name}: no driver on this machine runs it")
