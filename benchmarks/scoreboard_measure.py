"""Files of the scoreboard and the time they take: short trials for knobs, all files together in the end."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from scoreboard_answers import judged
from scoreboard_journal import Row
from scoreboard_scene import RUNTIMES, Runtime, Scene, work_folder
from torch import nn

from edgecompress import devices
from edgecompress import export as exporting
from edgecompress.core.measurement import BenchResult
from edgecompress.core.plugins import discover
from edgecompress.core.presets import Preset
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.statistics import compare
from edgecompress.devices.contract import Driver, Options
from edgecompress.devices.files import load_device
from edgecompress.devices.protocol import measure
from edgecompress.export.contract import Format
from edgecompress.export.parity import LIMITS, check_parity, outputs
from edgecompress.factors.rounding import round_weights_
from edgecompress.nets.equalise import equalise_pairs_
from edgecompress.nets.export_ready import export_ready
from edgecompress.pipeline.bench import bench
from edgecompress.pipeline.conversion import AUTO, usable_converters
from edgecompress.pipeline.latency_networks import write_network

TRIAL = Preset(
    "trial",
    "enough to turn a knob by",
    min_runs=60,
    min_seconds=1.0,
    rounds=20,
    process_rounds=1,
    warmup_seconds=0.2,
    score="median",
)
_BATCH = 16
_PARITY_IMAGES = 64


@dataclass(frozen=True)
class Stopwatch:
    """One network's files on one runtime."""

    scene: Scene
    runtime: str

    @property
    def place(self) -> Runtime:
        """The runtime."""
        return RUNTIMES[self.runtime]

    @property
    def kind(self) -> Format:
        """Of the files."""
        return discover(exporting, Format)[self.place.format]

    def file(self, name: str) -> Path:
        """Returns where a row's file is kept."""
        folder = work_folder(self.scene.options, self.scene.name, self.runtime)
        return folder / f"{name.replace(' ', '_').replace(',', '')}{self.place.suffix}"

    @cached_property
    def dense(self) -> Path:
        """The dense network as a file."""
        file = self.file("dense")
        if not file.is_file():
            self.write(self.scene.loaded.module, file)
        return file

    def write(self, network: nn.Module, file: Path) -> None:
        """Exports a network in float32, and checks that the file computes the same.

        Raises:
            ExportError: it cannot be exported, or does not.
        """
        part = file.with_name(f"part-{file.name}")  # converters go by the suffix
        write_network(network, self.scene.loaded.ref, self.place.format, "float32", part)
        images = torch.cat(self.scene.selection)[:_PARITY_IMAGES]
        check_parity(self.kind, part, outputs(network.eval(), images), images, limits=LIMITS["fp32"])
        part.replace(file)

    def write_int8(self, network: nn.Module, file: Path) -> None:
        """Exports a network in int8 as `edgecompress export --int8` does: pairs equalised, weights rounded.

        Raises:
            ExportError: no converter can.
        """
        shape, images = self.scene.shape, torch.cat(self.scene.calibration)[:256]
        ready = export_ready(copy.deepcopy(network).eval(), shape)
        batches = torch.split(images, _BATCH)
        equalise_pairs_(ready, batches)
        round_weights_(ready, batches)
        with tempfile.TemporaryDirectory() as folder:
            rounded = Path(folder) / f"rounded{file.suffix}"
            usable_converters(self.kind, AUTO)[0].convert(ready, shape, rounded, False)
            part = Path(folder) / file.name
            self.kind.recode["int8"](rounded, part, images)
            shutil.move(part, file)

    def share(self, network: nn.Module) -> float:
        """Returns the share of the dense network's time a network takes, both measured in turns, briefly.

        Raises:
            ExportError: it cannot be exported or run.
            DeviceError: the device does not answer.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"trial{self.place.suffix}"
            write_network(network, self.scene.loaded.ref, self.place.format, "float32", file)
            return self._compared(file)

    def _compared(self, file: Path) -> float:
        device, drivers = load_device(self.place.device), discover(devices, Driver)
        driver = next(drivers[one] for one in device.drivers if file.suffix in drivers[one].suffixes)
        with driver.open(device, Options(timeout_s=1200.0)) as session:
            files = [(self.dense, session), (file, session)]
            first, other = measure(files, TRIAL, seed=0, profile=False, progress=NO_PROGRESS)
        if first.conditions.provenance == "emulated":
            return other.summary.median_ms / first.summary.median_ms
        names = (first.file.name, other.file.name)
        return 1 / compare(first.bursts, other.bursts, names=names, paired=True).speedup

    def judged(self, file: Path) -> Row:
        """Returns how good a file's answers to the report images are, as its runtime computes them."""
        return judged(partial(self.kind.run, file), self.scene.report, 256)

    def measured(self, files: Sequence[Path], preset: str) -> list[Row]:
        """Measures the dense file and all others in turns, in one run; returns what is known of each."""
        paths = [str(one) for one in (self.dense, *files)]
        return _figures(bench(paths, device=self.place.device, preset=preset, timeout_s=1200.0))


def _figures(result: BenchResult) -> list[Row]:
    (found,) = result.benches
    shares: list[tuple[float, float, float]] = [(1.0, 1.0, 1.0)]
    for one in found.comparisons:
        shares.append((1 / one.speedup, 1 / one.interval.high, 1 / one.interval.low))
    rows = []
    for measured, share in zip(found.measurements, shares, strict=True):
        summary = measured.summary
        rows.append(
            {
                "ms": summary.median_ms,
                "ms_interval": [summary.interval_ms.low, summary.interval_ms.high],
                "share": share[0],
                "share_interval": list(share[1:]),
                "runs": summary.runs,
                "how_known": measured.conditions.provenance,
                "valid": measured.validity.valid,
                "why_not": list(measured.validity.reasons),
                "runtime_version": f"{measured.conditions.runtime} {measured.conditions.runtime_version}",
                "load_then": measured.after.load,
            }
        )
    return rows
