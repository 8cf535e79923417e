"""An emulated ARM core: instructions are counted exactly, milliseconds are modelled from the counts.

Nothing is timed. Real ARM code runs under qemu, which counts every instruction of one inference; a
model fitted on real phones says how long they take. Both are the same every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from edgecompress.core.caches import cache_directory
from edgecompress.core.counts import CountModel, Counts, modelled_ms, pick_model
from edgecompress.core.device import Cluster, Device
from edgecompress.core.measurement import Burst, Conditions, Environment, OpTime
from edgecompress.core.store import read_record, sha256_of, write_record
from edgecompress.devices.contract import BurstSize, Driver, Loaded, Options, Session
from edgecompress.devices.litert_graph import operators_outside_delegate
from edgecompress.devices.native.emulation import Prepared, find_emulation
from edgecompress.devices.qemu import counted_marks
from edgecompress.devices.tflite_contents import Contents, read_contents
from edgecompress.errors import ArtefactError, ConfigError, DeviceError


def count(file: Path, prepared: Prepared, *, timeout_s: float = 300.0) -> Counts:
    """Counts one inference of a file.

    Kept in the user's cache by what decides it: the file, the runner and its libraries, the plugin and
    the processor.

    Raises:
        ExportError: the file cannot be read or run.
        DeviceError: qemu fails or takes too long.
        MissingPackage: there is no qemu that takes plugins.
    """
    contents = read_contents(file)
    place = _place(file, prepared)
    with contextlib.suppress(ArtefactError):  # not counted yet, or damaged
        return read_record(place, Counts)
    counted = counted_marks(file, prepared, timeout_s=timeout_s)[-1]
    counts = as_counts(counted, contents, file=file.name)
    write_record(place, counts)
    return counts


def as_counts(counted: Mapping[str, int], contents: Contents, *, file: str) -> Counts:
    """Returns what was counted up to a mark as a record.

    Raises:
        DeviceError: counters are missing or do not add up.
    """
    told = {**counted, "weight_bytes": contents.weight_bytes, "operators": contents.operators}
    try:
        return Counts.model_validate(told)
    except ValidationError as error:
        said = error.errors()[0]["msg"].lower()
        raise DeviceError(f"{file}: what was counted is incomplete: {said}; try again") from None


def _place(file: Path, prepared: Prepared) -> Path:
    told = f"{sha256_of(file)} {prepared.identity}"
    return cache_directory() / "counts" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class EmulatedSession:
    """An emulated core; a burst is one inference, counted."""

    prepared: Prepared
    conditions: Conditions
    cluster: str
    models: tuple[CountModel, ...]
    timeout_s: float
    fresh_process: bool = True
    _opened_s: float = field(default_factory=time.monotonic)

    def load(self, file: Path) -> Loaded:
        """Counts a file; its notes say what the milliseconds are worth.

        Raises:
            ExportError: the file cannot be read or run.
            ConfigError: there is no model for what it computes in.
            DeviceError: qemu fails or takes too long.
        """
        model = self._model(file)
        counts = self._count(file)
        outside = ", ".join(f"{number} {kind}" for kind, number in operators_outside_delegate(file).items())
        notes = [f"{counts.instructions:,} instructions", _worth(model)]
        notes += [f"not run by XNNPACK: {outside}"] if outside else []
        return Loaded(load_ms=None, first_ms=None, notes=tuple(notes))

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Returns the modelled milliseconds as one exact run, whatever size is asked for.

        Raises:
            ExportError: the file cannot be read or run.
            ConfigError: there is no model for what it computes in.
            DeviceError: qemu fails or takes too long.
        """
        started_s = time.monotonic() - self._opened_s
        model = self._model(file)
        ms = modelled_ms(self._count(file), model)
        return Burst(
            started_s=started_s,
            runs=1,
            samples_ms=(ms,),
            median_ms=ms,
            mean_ms=ms,
            std_ms=0.0,
            min_ms=ms,
            max_ms=ms,
            exact=True,
        )

    def environment(self) -> Environment:
        """Returns nothing: a computation has no temperature."""
        return Environment()

    def settle(self) -> tuple[str, ...]:
        """Waits for nothing."""
        return ()

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Returns nothing: operators are not counted one by one."""
        return ()

    def _model(self, file: Path) -> CountModel:
        return pick_model(self.models, cluster=self.cluster, dtype=read_contents(file).dtype)

    def _count(self, file: Path) -> Counts:
        return count(file, self.prepared, timeout_s=self.timeout_s)


def _worth(model: CountModel) -> str:
    kind = "provisional model" if model.provisional else "model"
    nets = f"{len(model.nets)} networks{' left out of the fit' if model.left_out else ''}"
    return (
        f"modelled, not timed: for {nets} the {kind} of {model.dtype} on the {model.cluster} core is off by "
        f"{100 * model.mean_error:.2f} % on average, {100 * model.worst_error:.2f} % at worst"
    )


@contextlib.contextmanager
def open_session(device: Device, options: Options) -> Iterator[Session]:
    """Finds what was prepared and the model of the core that is asked for; starts nothing yet.

    Raises:
        ConfigError: the device file lacks a part, or more than one thread is asked for.
        DeviceError: it was not prepared, or has no such core.
    """
    threads = options.threads or device.threads
    if threads != 1:
        raise ConfigError(f"--threads {threads}: an emulated core counts one thread; leave it out")
    prepared = find_prepared(device)
    cluster = _cluster(device, options.cores)
    conditions = Conditions(
        device=f"emulated {cluster.core}",
        build=build_of(device),
        runtime="litert-runner",
        runtime_version=prepared.litert_version,
        threads=1,
        cores=options.cores or cluster.cores[-1:],
        governor=None,
        provenance="emulated",
    )
    yield EmulatedSession(prepared, conditions, cluster.name, device.count_models, options.timeout_s)


def find_prepared(device: Device) -> Prepared:
    """Returns what was prepared for an emulated device.

    Raises:
        ConfigError: its device file does not say what it plays.
        DeviceError: nothing was prepared.
    """
    if device.emulation is None:
        raise ConfigError(f"{device.name}: its device file has no [emulation]; see devices/emulated-a76.toml")
    prepared = find_emulation(cache_directory(), device.emulation)
    if prepared is None:
        raise DeviceError(f"{device.name}: was not prepared; run `edgecompress device prepare {device.name}`")
    return prepared


def _cluster(device: Device, cores: tuple[int, ...] | None) -> Cluster:
    wanted = set(cores or device.cores)
    for cluster in device.clusters:
        if wanted <= set(cluster.cores):
            return cluster
    known = ", ".join(f"{one.name} {','.join(map(str, one.cores))}" for one in device.clusters)
    raise DeviceError(
        f"{device.name}: cores {sorted(wanted)} are of no one cluster; its clusters are: {known}"
    )


def build_of(device: Device) -> str:
    """Returns what tells one way to count and model from another; figures of two cannot be compared."""
    told = device.model_dump_json(include={"emulation", "count_models"})
    return f"emulation {hashlib.sha256(told.encode()).hexdigest()[:12]}"


DRIVER = Driver(
    name="emulated",
    summary="an emulated ARM core under qemu: exact counts, modelled milliseconds",
    suffixes=(".tflite",),
    open=open_session,
)
