"""The records that flow between packages. Frozen; the pydantic ones are also files."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgecompress.errors import ConfigError

Size = tuple[int, int]
"""Height and width of a feature map; (tokens, 1) for a linear layer."""


AtLeast1 = Annotated[int, Field(ge=1)]
AtLeast0 = Annotated[int, Field(ge=0)]
Side = Annotated[int, Field(ge=1, le=2**14)]
"""Of an image, in pixels."""
Channels = Annotated[int, Field(ge=1, le=64)]
"""Of an image."""
ClassCount = Annotated[int, Field(ge=1, le=10**6)]
"""These three bound what a file from elsewhere can make us allocate."""


class Record(BaseModel):
    """A frozen record that is stored as JSON; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Op(Record):
    """One operator as a device executes it: shapes and attributes, no weights.

    Plans consist of `conv2d` and `linear`. What stands between the linear layers of a transformer has kinds
    of its own, in latency tables only: `gelu`, and `attention`, which reads queries, keys and values side by
    side (`inputs` is three times `outputs`) and has as many `groups` as heads.
    """

    kind: Literal["conv2d", "linear", "gelu", "attention"]
    inputs: int = Field(ge=1)
    outputs: int = Field(ge=1)
    kernel: tuple[AtLeast1, AtLeast1] = (1, 1)
    stride: tuple[AtLeast1, AtLeast1] = (1, 1)
    padding: tuple[AtLeast0, AtLeast0] = (0, 0)
    dilation: tuple[AtLeast1, AtLeast1] = (1, 1)
    groups: int = Field(default=1, ge=1)
    bias: bool = False

    @model_validator(mode="after")
    def _groups_divide_channels(self) -> Op:
        if self.inputs % self.groups or self.outputs % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.inputs} and {self.outputs} channels")
        return self

    @model_validator(mode="after")
    def _channels_fit_kind(self) -> Op:
        times = {"gelu": 1, "attention": 3}.get(self.kind)
        if times is not None and self.inputs != times * self.outputs:
            raise ValueError(f"{self.kind} does not make {self.outputs} channels of {self.inputs}")
        return self


class Block(Record):
    """What stands in place of one layer: branches see the same input and their outputs are added."""

    branches: tuple[Annotated[tuple[Op, ...], Field(min_length=1)], ...] = Field(min_length=1)


class Layer(Record):
    """A named convolution or linear module with the size of the map it runs on."""

    name: str
    op: Op
    in_size: Size


class Candidate(Record):
    """One rewrite of the layers that must change together, its cost known before it is built."""

    method: str
    family: str
    """Which member of the method: `S2`, `S4(8)`, `tucker2`; two branches are joined by `+`."""
    ranks: tuple[int, ...]
    """Ranks or widths, in the order the method documents."""
    layers: tuple[Annotated[str, Field(min_length=1)], ...]
    """Dotted names; one for a decomposition."""
    blocks: tuple[Block, ...]
    """What replaces each of `layers`, in the same order."""
    params: int
    """Parameters of `blocks`, biases included."""
    macs: int
    """Multiply-accumulates of `blocks` at the model's input size; FLOPs are twice that."""

    @model_validator(mode="after")
    def _one_block_per_layer(self) -> Candidate:
        if len(self.layers) != len(self.blocks):
            raise ValueError(f"{len(self.blocks)} blocks for {len(self.layers)} layers")
        return self


Axis = Literal["inputs", "outputs", "channels", "head_dim"]
"""Of a module: what it reads, what it makes, both at once (batch norm, depthwise), or its own number."""


class Cut(Record):
    """Where the units of a group lie along one axis of a module.

    Entries from `offset` on belong to the group: all units one after the other, each with `run` entries, and
    that `repeats` times. A fused projection to queries, keys and values repeats the units of a head 3 x heads
    times; a linear layer after a flattened 7 x 7 map has runs of 49.
    """

    module: str
    axis: Axis
    repeats: AtLeast1 = 1
    run: AtLeast1 = 1
    offset: AtLeast0 = 0


class Group(Record):
    """Channels or dimensions that exist together: taking one away changes all of `cuts`."""

    name: str
    """Of the module that makes them; of the first where there are several."""
    kind: Literal["channels", "hidden", "head_dim"]
    """Of feature maps, of an MLP, or of every head of an attention."""
    width: AtLeast1
    """How many units there are."""
    cuts: tuple[Cut, ...]
    gates: tuple[Cut, ...]
    """Outputs of modules through which all that is read of a unit has passed: where these are zero, the unit
    can be taken away and nothing changes."""


class Narrowing(Record):
    """A group with fewer units."""

    group: str
    kind: Literal["channels", "hidden", "head_dim"]
    before: AtLeast1
    after: AtLeast1
    cuts: tuple[Cut, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _gets_narrower(self) -> Narrowing:
        if self.after >= self.before:
            raise ValueError(f"{self.after} of {self.before} units is not narrower")
        return self


class Preprocess(Record):
    """How an image becomes a tensor: resize the short side, crop the centre, (x/255 - mean) / std."""

    size: tuple[Side, Side]
    """Height and width after the crop."""
    resize: Side | None = None
    """Short side before the crop; None: images must already have `size`."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    mean: tuple[float, ...] = Field(default=(0.485, 0.456, 0.406), min_length=1, max_length=64)
    std: tuple[float, ...] = Field(default=(0.229, 0.224, 0.225), min_length=1, max_length=64)
    """One value per channel; one channel means grey images."""


class ModelRef(Record):
    """Where a model comes from; enough to build it again."""

    source: str
    """With its prefix: `zoo:resnet20`, `torchvision:resnet18`, `path/file.py:factory`, ..."""
    weights: str | None = None
    """Path of a checkpoint; None: the weights the source brings along, if any."""
    weights_sha256: str | None = None
    classes: ClassCount | None = None
    preprocess: Preprocess

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        return (len(self.preprocess.mean), *self.preprocess.size)


class Plan(Record):
    """A model and the rewrites chosen for it; layers not named stay as they are. `plan.json`."""

    format_version: Literal[1] = 1
    model: ModelRef
    attention_rewritten: bool = False
    """Whether self-attention was put in terms of plain layers before all else."""
    narrowings: tuple[Narrowing, ...] = ()
    """What was taken away, before `choices` were put in place."""
    choices: tuple[Candidate, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Layers no method could take, each with the reason."""


Metric = Literal["macs", "params", "ms"]


class Budget(Record):
    """A limit for the whole model: a share of the dense model's cost, or an absolute figure."""

    metric: Metric
    value: float = Field(gt=0)
    relative: bool

    @staticmethod
    def parse(text: str, *, examples: str = "macs=50%, params=1.2M or ms=12.5") -> Budget:
        """Reads `macs=50%`, `params=1.2M`, `macs=0.3G` or `ms=12.5`; `examples` are those an error names.

        Raises:
            ConfigError: the text is none of these.
        """
        match = re.fullmatch(r"(macs|params|ms)=([0-9]*\.?[0-9]+)(%|[kKMG]?)", text.strip())
        if match is None or float(match[2]) <= 0:
            raise ConfigError(f"budget {text!r}: not understood; write {examples}")
        unit = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}.get(match[3], 1.0)
        relative = match[3] == "%"
        value = float(match[2]) / 100 if relative else float(match[2]) * unit
        return Budget.model_validate({"metric": match[1], "value": value, "relative": relative})

    def limit(self, dense: float) -> float:
        """Returns the absolute limit, given the dense model's cost in the same metric."""
        return self.value * dense if self.relative else self.value

    def __str__(self) -> str:
        """Returns the text `parse` reads, to twelve digits."""
        shown = self.value * 100 if self.relative else self.value
        number = f"{Decimal(f'{shown:.12g}'):f}"  # never 1e+15
        return f"{self.metric}={number}{'%' if self.relative else ''}"


class Accuracy(Record):
    """Top-1 and top-5 in percent on `images` images."""

    top1: float
    top5: float | None
    images: int
