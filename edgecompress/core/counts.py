"""What an emulated processor executes for one inference, and what that comes to in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, field_validator, model_validator

from edgecompress.core.types import AtLeast0, Record
from edgecompress.errors import ConfigError

Dtype = Literal["float32", "int8"]
"""What a network computes in; kernels of one kind are alike in how far counts tell their time."""


class Counts(Record):
    """One inference of one file, counted instruction by instruction; the same every time."""

    instructions: AtLeast0
    multiplies: AtLeast0
    """SIMD and floating-point instructions that multiply, as FMLA and SDOT; one may do sixteen MACs."""
    simd: AtLeast0
    """All other SIMD and floating-point arithmetic."""
    vector_loads: AtLeast0
    vector_stores: AtLeast0
    scalar_loads: AtLeast0
    """Also prefetches, which load no bytes, and atomic operations."""
    scalar_stores: AtLeast0
    branches: AtLeast0
    other: AtLeast0
    """Integer arithmetic and addresses."""
    bytes_loaded: AtLeast0
    bytes_stored: AtLeast0
    loop_exits: AtLeast0
    """How often code right after a loop was reached: there processors guess wrong where to go on."""
    issue_cycles: AtLeast0
    """Least cycles a Cortex-A76 needs to take in and execute them, block by block, waiting for nothing."""
    loop_cycles: AtLeast0
    """The same with results waited for, each block taken as the body of a loop."""
    l1_misses: AtLeast0
    """Of a first cache of 64 KB in lines of 64 bytes. These and the two kinds of cycles are modelled."""
    l1_jumps: AtLeast0
    """Of these, the ones that are not next to an earlier miss, so that no prefetcher expects them."""
    l2_misses: AtLeast0
    """Misses of a second cache of 512 KB."""
    l2_jumps: AtLeast0
    l3_misses: AtLeast0
    """Misses of a third cache of 2 MB."""
    l3_jumps: AtLeast0
    tlb_misses: AtLeast0
    """Misses of the first cache in pages of 4 KB that were not among the latest 1280."""
    weight_bytes: AtLeast0
    """Of the constants in the file."""
    operators: AtLeast0
    """Of the file, before the runtime fuses any."""

    @model_validator(mode="after")
    def _classes_add_up(self) -> Counts:
        counted = sum(getattr(self, name) for name in CLASSES)
        if counted != self.instructions:
            raise ValueError(f"{counted} instructions by class, {self.instructions} in all")
        return self


CLASSES = (
    "multiplies",
    "simd",
    "vector_loads",
    "vector_stores",
    "scalar_loads",
    "scalar_stores",
    "branches",
    "other",
)
"""Every instruction is of one of these."""
OF_FILE = ("weight_bytes", "operators")
COUNTERS = tuple(name for name in Counts.model_fields if name not in OF_FILE)
FEATURES = (*COUNTERS, "weight_megabytes", "operators", "constant")
"""What a model of the milliseconds may be made of."""


def features(counts: Counts) -> dict[str, float]:
    """Returns the counters in millions, the weights in megabytes, the operators, and a constant 1."""
    return {name: getattr(counts, name) / 1e6 for name in COUNTERS} | {
        "weight_megabytes": counts.weight_bytes / 1e6,
        "operators": float(counts.operators),
        "constant": 1.0,
    }


class CountModel(Record):
    """How long counted instructions take on one kind of core: a sum over features."""

    cluster: str
    """Whose cores it stands for, as `prime`."""
    dtype: Dtype
    coefficients_us: dict[str, float] = Field(min_length=1)
    """Microseconds per million of a counter, per megabyte of weights, per operator, and once."""
    nets: tuple[str, ...] = Field(min_length=1)
    """The networks it was fitted on."""
    mean_error: float = Field(ge=0)
    """Of the modelled milliseconds against the measured ones, as a share."""
    median_error: float = Field(ge=0)
    worst_error: float = Field(ge=0)
    left_out: bool
    """Whether these are errors on networks left out of the fit; otherwise on `nets` themselves."""
    provisional: bool = False
    """Whether it waits for a better fit."""
    citation: str
    """Who measured the milliseconds."""

    @field_validator("coefficients_us")
    @classmethod
    def _features_are_known(cls, coefficients_us: dict[str, float]) -> dict[str, float]:
        unknown = set(coefficients_us) - set(FEATURES)
        if unknown:
            raise ValueError(f"no features: {', '.join(sorted(unknown))}; known are: {', '.join(FEATURES)}")
        return coefficients_us


def modelled_ms(counts: Counts, model: CountModel) -> float:
    """Returns the milliseconds of one inference by a model.

    Raises:
        ConfigError: the sum is not above zero.
    """
    known = features(counts)
    ms = sum(each * known[name] for name, each in model.coefficients_us.items()) / 1e3
    if ms <= 0:
        raise ConfigError(f"count model {model.cluster} {model.dtype}: gives {ms:g} ms; fit it again")
    return ms


def pick_model(models: Iterable[CountModel], *, cluster: str, dtype: Dtype) -> CountModel:
    """Returns the model of a cluster and kind of number.

    Raises:
        ConfigError: there is none; the message lists the known ones.
    """
    known = {(one.cluster, one.dtype): one for one in models}
    if (cluster, dtype) not in known:
        names = ", ".join(f"{one} {other}" for one, other in known) or "none"
        raise ConfigError(f"no count model for {cluster} {dtype}; known are: {names}")
    return known[cluster, dtype]
