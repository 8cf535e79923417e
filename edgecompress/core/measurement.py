"""The records of a measurement: raw latencies with everything needed to believe or repeat them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from edgecompress.core.types import Record

Milliseconds = Annotated[float, Field(gt=0)]
Provenance = Literal["measured", "emulated"]


class Conditions(Record):
    """What must be alike before two latencies are compared."""

    device: str
    """What it is, as `Pixel 4 (flame)` or the machine's processor."""
    build: str
    """Build fingerprint of the phone, or kernel of the machine."""
    runtime: str
    """`onnxruntime`, `litert`, `benchmark_model` or `litert-runner`."""
    runtime_version: str
    """`unknown` where the runtime does not say."""
    threads: int = Field(ge=1)
    cores: tuple[int, ...]
    """The cores it may run on; empty: not pinned."""
    governor: str | None
    """Of the first of `cores`; None where the device does not tell."""
    provenance: Provenance


class Environment(Record):
    """The state of the device at one moment; None where it does not tell."""

    temperatures_c: dict[str, float] = Field(default_factory=dict)
    thermal_status: int | None = None
    """Android's scale: 0 is none, 3 and more is severe throttling."""
    clock_mhz: float | None = None
    """Of the first core in use."""
    charging: bool | None = None
    battery_percent: int | None = None
    load: float | None = None
    """Processes waiting to run, averaged over a minute."""


class Burst(Record):
    """One stretch of runs of one file with nothing in between."""

    started_s: float = Field(ge=0)
    """Since the measurement began."""
    runs: int = Field(ge=1)
    samples_ms: tuple[Milliseconds, ...] = ()
    """Every run in order; empty where the runtime reports only a summary."""
    median_ms: Milliseconds | None = None
    """None where the runtime reports only a mean."""
    mean_ms: Milliseconds
    std_ms: float | None = Field(default=None, ge=0)
    min_ms: Milliseconds
    max_ms: Milliseconds
    p95_ms: Milliseconds | None = None
    """Reported by the runtime; with raw samples it follows from them."""
    interference: float | None = Field(default=None, ge=0, le=1)
    """Share of the time in which another program had the core."""
    exact: bool = False
    """Computed and not timed: another burst would give the same, so one is enough."""

    @property
    def center_ms(self) -> float:
        """The median, or the mean where the runtime reports no more."""
        return self.mean_ms if self.median_ms is None else self.median_ms


class Interval(Record):
    """A confidence interval."""

    low: float
    high: float
    confidence: float = Field(gt=0, lt=1)


class Summary(Record):
    """What the bursts of one file come to."""

    runs: int
    bursts: int
    median_ms: Milliseconds
    """Of all runs; the median of the bursts' centres where there are no raw samples."""
    interval_ms: Interval
    """Of the median, by resampling whole bursts: runs of one burst are not independent."""
    p90_ms: Milliseconds | None
    mean_ms: Milliseconds
    std_ms: float | None
    min_ms: Milliseconds
    max_ms: Milliseconds
    statistic: Literal["median", "mean"]
    """What a burst's centre is: some runtimes report only means."""


class OpTime(Record):
    """Time spent in one operator of the file, or in a delegate's node."""

    name: str
    kind: str
    mean_ms: float = Field(ge=0)
    calls: int = Field(ge=1)
    """Per inference."""
    delegated: bool | None = None
    """Whether a delegate such as XNNPACK runs it; None where the runtime does not say."""


class FileFacts(Record):
    """Which file was measured."""

    name: str
    path: str
    sha256: str
    size_bytes: int


class Validity(Record):
    """Whether a measurement can be believed, and if not, why."""

    valid: bool
    reasons: tuple[str, ...] = ()
    """What is wrong; also, where valid, what a reader should know."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why not; empty where it can be believed."""
        return () if self.valid else self.reasons or ("no reason given",)


class Measurement(Record):
    """One file on one device."""

    file: FileFacts
    conditions: Conditions
    load_ms: float | None = Field(default=None, ge=0)
    """From the file to a runtime ready for its first inference."""
    first_ms: float | None = Field(default=None, ge=0)
    """The first inference, where weights are packed and memory is touched."""
    warmup_runs: int
    bursts: tuple[Burst, ...] = Field(min_length=1)
    summary: Summary
    before: Environment
    after: Environment
    validity: Validity
    operators: tuple[OpTime, ...] = ()
    """With profiling: a separate pass, so that it does not slow the bursts."""
    notes: tuple[str, ...] = ()
    """What the runtime said that matters, as operators left outside the delegate."""


class Comparison(Record):
    """How one file compares with another, round by round."""

    baseline: str
    other: str
    speedup: float
    """Baseline's time over the other's: above 1 the other is faster."""
    interval: Interval
    """Of `speedup`."""
    p_value: float
    rounds: int
    paired: bool
    """Both were measured in turns in one session, so drift cancels."""
    verdict: Literal["faster", "slower", "no difference"]
    statement: str
    """The verdict in words, with its figures."""


class DeviceBench(Record):
    """What was measured on one device in one sitting."""

    device: str
    """Its serial or address where several are attached, else the name that was asked for."""
    measurements: tuple[Measurement, ...]
    comparisons: tuple[Comparison, ...] = ()
    """Each file with its baseline."""


class BenchResult(Record):
    """What `edgecompress bench` measured. `bench.json`."""

    schema_version: Literal[1] = 1
    preset: str
    score: Literal["median", "p90"]
    """Which latency of a file counts."""
    device: str
    """The name that was asked for."""
    seed: int
    created: AwareDatetime
    versions: dict[str, str]
    benches: tuple[DeviceBench, ...]
    """One per device."""
    earlier: tuple[Comparison, ...] = ()
    """Each file with its earlier measurement, where one was given."""
    written: str | None = None
    """The file this record was written to, where it was."""
