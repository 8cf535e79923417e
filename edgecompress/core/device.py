"""A device as its file describes it: a phone or board is data, the code that talks to it is a driver."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgecompress.core.counts import CountModel
from edgecompress.core.types import AtLeast1, Record


class Cluster(Record):
    """Cores of one kind."""

    name: str
    """`little`, `mid`, `big`, `prime`."""
    core: str
    """As `Cortex-A76 (Kryo 485 Gold)`."""
    cores: tuple[int, ...] = Field(min_length=1)
    max_ghz: float | None = None


class Emulation(Record):
    """A core that qemu plays, as its programs see it; what they are told must be what it can execute."""

    cpu: str = Field(pattern=r"^[\w-]+$")
    """What qemu calls it, as `cortex-a76`."""
    implementer: str
    """This and what follows as in `/proc/cpuinfo`."""
    variant: str
    part: str
    revision: int
    features: tuple[str, ...] = Field(min_length=1)
    hardware: str
    max_khz: AtLeast1
    l2_kb: AtLeast1


class Fact(Record):
    """Where something a device file says comes from."""

    about: str
    source: str
    verified: bool
    """Whether it was seen on such a device, by us or by the source named."""


class Device(Record):
    """One kind of phone, board or machine. `devices/NAME.toml`; `name` is the file's stem."""

    name: str
    title: str
    soc: str | None = None
    drivers: tuple[str, ...] = Field(min_length=1)
    """In order of preference; the first that takes a file's format measures it."""
    match: tuple[str, ...] = ()
    """Values of `ro.product.device` that tell this phone, as `flame`."""
    clusters: tuple[Cluster, ...] = ()
    cluster: str | None = None
    """The cluster to measure on; None: the fastest."""
    threads: int = Field(default=1, ge=1)
    serial: str | None = None
    """Of one phone, for a file of your own."""
    host: str | None = None
    """`user@address` of a board reached over ssh."""
    port: int | None = None
    transport: Literal["ssh", "adb"] = "ssh"
    """How a board is reached."""
    benchmark_binary: str | None = None
    """Path of Google's `benchmark_model` on this machine, pushed to the phone when needed."""
    emulation: Emulation | None = None
    """What an emulated device plays."""
    count_models: tuple[CountModel, ...] = ()
    """How long its counted instructions take; at most one per cluster and kind of number."""
    notes: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of the cluster to measure on, as the file has it; empty where it lists none."""
        chosen = [one for one in self.clusters if self.cluster in (None, one.name)]
        return () if not chosen else max(chosen, key=lambda one: one.max_ghz or 0.0).cores
