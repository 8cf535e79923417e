"""What the runtimes on this machine share: a session that keeps files loaded and times their runs."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Conditions, Environment, OpTime
from edgecompress.devices import this_machine
from edgecompress.devices.contract import BurstSize, Loaded, Options
from edgecompress.errors import ExportError

_BUSY = 0.2
"""Share of a core's time that other programs may have before we wait for them."""
_PATIENCE_S = 5.0
"""How long to wait for them: heat passes in minutes, other programs may not."""


@dataclass(frozen=True)
class Ready:
    """A file in a runtime, its input in place."""

    run: Callable[[], object]
    """Runs it once."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runtime:
    """A runtime of this machine."""

    name: str
    version: str
    prepare: Callable[[Path, int], Ready]
    """Makes a file ready for a number of threads. Raises ExportError where it cannot."""
    profile: Callable[[Path, int], tuple[OpTime, ...]]
    failures: tuple[type[Exception], ...]
    """What a run may raise."""


@contextlib.contextmanager
def open_local(runtime: Runtime, device: Device, options: Options) -> Iterator[LocalSession]:
    """Yields a session; the calling thread stays on the chosen cores until it is closed.

    Raises:
        DeviceError: a core may not be used, or there are fewer cores than threads.
    """
    threads = options.threads or device.threads
    cores = this_machine.choose_cores(threads, asked=options.cores, preferred=device.cores)
    with this_machine.pinned(cores):
        alike = this_machine.conditions(
            runtime=runtime.name, version=runtime.version, threads=threads, cores=cores
        )
        yield LocalSession(runtime, alike, settle_s=min(options.settle_s, _PATIENCE_S))


class LocalSession:
    """Runs files in this process."""

    fresh_process = False

    def __init__(self, runtime: Runtime, conditions: Conditions, *, settle_s: float) -> None:
        self.conditions = conditions
        self._runtime = runtime
        self._settle_s = settle_s
        self._started_s = time.perf_counter()
        self._ready: dict[Path, Ready] = {}

    def load(self, file: Path) -> Loaded:
        """Makes a file ready and runs it once; an earlier copy is dropped only afterwards, so that the
        new one gets another place in memory."""
        begin = time.perf_counter()
        ready = self._runtime.prepare(file, self.conditions.threads)
        loaded = time.perf_counter()
        with self._blaming(file):
            ready.run()
        first = time.perf_counter()
        self._ready[file] = ready
        return Loaded((loaded - begin) * 1e3, (first - loaded) * 1e3, ready.notes)

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Times runs of a loaded file."""
        with self._blaming(file):
            return timed_burst(
                self._ready[file].run,
                size,
                opened_s=self._started_s,
                one_thread=self.conditions.threads == 1,
            )

    def environment(self) -> Environment:
        """Returns the state of this machine now."""
        return this_machine.environment(self.conditions.cores)

    def settle(self) -> tuple[str, ...]:
        """Waits a little for other programs on our cores."""
        limit = time.perf_counter() + self._settle_s
        while (busy := self._busy()) > _BUSY:
            if time.perf_counter() >= limit:
                return (f"other programs use {busy:.0%} of the cores measured on".replace("%", " %"),)
        return ()

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Returns the time per operator, from a copy of the file loaded for that."""
        return self._runtime.profile(file, self.conditions.threads)

    def _busy(self) -> float:
        shares = this_machine.busy_shares()
        ours = [share for core, share in shares.items() if core in (self.conditions.cores or shares)]
        return max(ours, default=0.0)

    @contextlib.contextmanager
    def _blaming(self, file: Path) -> Iterator[None]:
        try:
            yield
        except self._runtime.failures as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"{file}: {self._runtime.name} fails to run it: {reason}") from None


def timed_burst(run: Callable[[], object], size: BurstSize, *, opened_s: float, one_thread: bool) -> Burst:
    """Runs something until both limits of `size` are reached and returns every duration.

    With one thread it also tells how much of the time the thread was not running, though ready to.
    """
    with _no_collection():
        _warm_up(run, size.warmup_seconds)
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        samples = _durations_ns(run, size)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - begin_cpu_s
    samples_ms = tuple(sample / 1e6 for sample in samples)
    return Burst(
        started_s=begin_s - opened_s,
        runs=len(samples_ms),
        samples_ms=samples_ms,
        median_ms=statistics.median(samples_ms),
        mean_ms=statistics.fmean(samples_ms),
        std_ms=statistics.pstdev(samples_ms),
        min_ms=min(samples_ms),
        max_ms=max(samples_ms),
        interference=min(max(1 - cpu_s / wall_s, 0.0), 1.0) if one_thread else None,
    )


def _durations_ns(run: Callable[[], object], size: BurstSize) -> list[int]:
    clock, left_ns, samples = time.perf_counter_ns, int(size.min_seconds * 1e9), list[int]()
    while left_ns > 0 or len(samples) < size.min_runs:
        before = clock()
        run()
        taken = clock() - before
        samples.append(taken)
        left_ns -= taken
    return samples


def _warm_up(run: Callable[[], object], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from collecting garbage between runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def random_input(file: Path, name: str, shape: tuple[int, ...], kind: str, *, seed: int = 0) -> NDArray[Any]:
    """Returns an input as images are once they are normalised, or of the whole range where quantised.

    Raises:
        ExportError: the file takes a type no image network takes.
    """
    rng = np.random.default_rng(seed)
    if kind in ("float32", "float16"):
        return rng.standard_normal(shape).astype(kind)
    if kind in ("int8", "uint8"):
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    raise ExportError(
        f"{file}: input {name!r} is of type {kind}; measured are float32, float16, int8 and uint8"
    )
