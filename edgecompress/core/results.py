"""What the commands return: records that can be saved, shown and compared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgecompress.core.types import Accuracy, ModelRef, Plan, Record, Size


class LayerCost(Record):
    """One row of `inspect`: a module that multiplies or holds weights."""

    name: str
    kind: str
    """`conv2d`, `linear`, `attention`, `norm` or the module's class name."""
    params: int
    macs: int
    weight_bytes: int
    activation_bytes: int
    """Size of the output for one image in float32."""
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    detail: str = ""
    """Kernel, stride and groups in words."""


class InspectResult(Record):
    """What a model costs, layer by layer."""

    model: ModelRef
    params: int
    macs: int
    weight_bytes: int
    layers: tuple[LayerCost, ...]
    targets: tuple[str, ...]
    """The layers the papers compress."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Convolutions and linear layers no method can take, each with the reason."""


class ModelSummary(Record):
    """A model in four figures."""

    params: int
    macs: int
    weight_bytes: int
    accuracy: Accuracy | None = None
    """On the report split."""


class LayerChange(Record):
    """What became of one target layer."""

    name: str
    in_size: Size
    family: str
    """`dense` where nothing changed."""
    ranks: tuple[int, ...]
    params_before: int
    params_after: int
    macs_before: int
    macs_after: int


class SplitSummary(Record):
    """Which images were used for what; the three parts share none."""

    source: str
    calibration: int
    selection: int
    report: int
    seed: int
    sha256: str
    """Of the three index lists, so that two runs can be told to have used the same images."""


class CompressResult(Record):
    """What `compress` did."""

    run: str
    """Directory with `run.json`, `plan.json` and `weights.safetensors`."""
    plan: Plan
    dense: ModelSummary
    compressed: ModelSummary
    layers: tuple[LayerChange, ...]
    split: SplitSummary | None
    steps: tuple[tuple[str, str], ...] = ()
    """What was tried and kept on the selection split: local search, BN, refit."""
    seconds: dict[str, float]
    """Time spent per stage."""


class ParityResult(Record):
    """How an exported file compares with the model it came from, on the same images."""

    file: str
    format: str
    images: int
    max_abs_diff: float
    max_rel_diff: float
    """Largest difference over the largest magnitude of the reference output."""
    top1_agreement: float
    """Share of images with the same arg max, 0 to 1."""


class GraphFacts(Record):
    """What an exported file consists of."""

    operators: dict[str, int]
    """How many of each kind, as the format calls them."""
    transposes: int
    """Operators that only move data to another order of axes."""
    outside_delegate: dict[str, int] | None
    """Operators the accelerated kernels (XNNPACK) leave to the reference ones; None: no delegates here."""
    input_shape: tuple[int, ...]
    """As the file has it; 0 for an axis of any length."""
    input_type: str
    """As `float32` or `int8`."""


class ExportedFile(Record):
    """One exported file, checked against the network it came from."""

    file: str = Field(pattern=r"^[^/\\.][^/\\]*$")
    """Name within the directory of `export.json`."""
    network: str
    """`dense` or `compressed`."""
    format: str
    precision: str
    converter: str
    layout: str
    """Order of the input's axes, `NCHW` or `NHWC`."""
    size_bytes: int
    sha256: str
    parity: ParityResult
    graph: GraphFacts
    notes: tuple[str, ...] = ()
    """Why this converter was kept, and what a user should know."""
    seconds: float
    """To convert and check."""


class ExportResult(Record):
    """What `edgecompress export` wrote. `export.json`."""

    schema_version: Literal[1] = 1
    directory: str
    model: ModelRef
    files: tuple[ExportedFile, ...]
    parity_images: str
    """On which images outputs were compared."""
    calibration_images: str | None = None
    """With which images int8 ranges were found."""
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()
    """What a reader should know of the networks."""


class DoctorItem(Record):
    """One thing the product can use."""

    name: str
    needed_for: str
    found: str | None
    """Version or path; None: missing."""
    how: str
    """Command or hint that brings it."""
    required: bool


class DoctorResult(Record):
    """What is installed and what is missing."""

    items: tuple[DoctorItem, ...]


class ListItem(Record):
    """One line of `edgecompress list`."""

    name: str
    summary: str


class ListResult(Record):
    """What `edgecompress list KIND` shows."""

    kind: str
    items: tuple[ListItem, ...]
