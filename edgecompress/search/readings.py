"""Measures what reads the units of groups, in the moments that elimination needs.

Where a layer reads units, the moment is that of its inputs over images and positions. Taps of a kernel, and
the positions of a flattened map, are treated alike: the errors of all are added, correlations between them
left out. An output error counts by the second moment of the gradient of log p(y|x) there, y drawn from the
network itself, so that errors of all groups are in one unit: the divergence from the dense network, in nats.

Dimensions of heads are read twice. As values they are what the projection behind the attention reads, all
heads together. As queries and keys only their product is seen: a dimension of a head contributes, for every
query, its own part q dL/dq of the derivative of the loss by that product. The second moment of these parts
is the curvature of the divergence when parts are scaled or left out, and scaled parts are how others make up
for one that went. Both errors, over all heads, add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Cut, Group
from edgecompress.errors import DataError, ModelError
from edgecompress.nets.modules import layer_named, weight_of
from edgecompress.nets.narrowing import entries
from edgecompress.search.elimination import Reading
from edgecompress.search.image_pool import Batch


def measure_readings(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    seed: int,
    progress: Progress,
    *,
    temperature: float = 1.0,
) -> dict[str, list[Reading]]:
    """Returns the readers of every group, by the divergence of the outputs at a temperature.

    Raises:
        DataError: there are no images.
        ModelError: nothing reads a group, or a reader is not called as a module or has no gradient.
    """
    count = sum(len(images) for images, _ in batches)
    if count == 0:
        raise DataError("the moments of units need images; there are none")
    for group in groups:
        if not reading_cuts(group):
            raise ModelError(f"{group.name}: no layer reads it, so nothing says what it is needed for")
    sums = _Sums({}, defaultdict(int))
    generator = torch.Generator().manual_seed(seed)
    for images, _ in progress.track(batches, "moments of units"):
        _add_(sums, model, groups, images, generator, temperature)
    _divide_(sums, count)
    return {group.name: _readings(model, group, sums) for group in groups}


@dataclass(frozen=True)
class _Sums:
    """Sums over images; the number of samples stands beside those that become means."""

    moments: dict[tuple[str, str], Tensor]
    """By group and module; under "" the parts of queries; under the module alone the output gradients."""
    samples: defaultdict[tuple[str, str], int]

    def add_(self, key: tuple[str, str], rows: Tensor) -> None:
        """Adds the second moment of rows."""
        own = rows.double()
        product = own.T @ own
        self.moments[key] = self.moments[key].add_(product) if key in self.moments else product
        self.samples[key] += len(rows)


def _divide_(sums: _Sums, images: int) -> None:
    """Makes sums means: over samples what layers read, over images what is about gradients."""
    for key, total in sums.moments.items():
        total.div_(sums.samples[key] if all(key) else images)


def _add_(
    sums: _Sums,
    model: nn.Module,
    groups: Sequence[Group],
    images: Tensor,
    generator: torch.Generator,
    temperature: float,
) -> None:
    readers = [(group, cut) for group in groups for cut in reading_cuts(group)]
    attentions = [group for group in groups if group.kind == "head_dim"]

    def read(name: str, x: Tensor) -> None:
        rows = _rows(layer_named(model, name), x)
        for group, cut in readers:
            if cut.module == name:
                sums.add_((group.name, name), _unit_rows(rows, group, cut))

    def made(name: str, output: Tensor | None, gradient: Tensor) -> None:
        if any(cut.module == name for _, cut in readers):
            sums.add_(("", name), _rows(layer_named(model, name), gradient))
        for group in attentions:
            if group.gates[0].module == name and output is not None:
                sums.add_((group.name, ""), _query_parts(output * gradient, group))

    makers = {group.gates[0].module for group in attentions}
    names = {cut.module for _, cut in readers} | makers
    with _watching(model, _Watch(names, makers, read, made)) as watch:
        _run(model, watch, images, generator, temperature)


@dataclass(frozen=True)
class _Watch:
    """What is done when a named module runs, and when the gradient is back there: nothing has to be held."""

    names: set[str]
    makers: set[str]
    """Whose outputs are needed together with their gradients, and so held until then."""
    read: Callable[[str, Tensor], None]
    made: Callable[[str, Tensor | None, Tensor], None]
    seen: set[str] = field(default_factory=set)
    starts: list[Tensor] = field(default_factory=list)
    """Where gradients end: outputs that do not depend on the image."""

    def record(self, name: str, x: Tensor, output: Tensor) -> Tensor:
        """Takes notice of a call and returns what goes on."""
        self.seen.add(name)
        self.read(name, x.detach())
        if not output.requires_grad:
            output = output.detach().requires_grad_()
            self.starts.append(output)
        kept = output.detach() if name in self.makers else None
        output.register_hook(lambda gradient: self.made(name, kept, gradient))  # type: ignore[no-untyped-call]
        return output.clone()  # what follows may overwrite it in place


@contextmanager
def _watching(model: nn.Module, watch: _Watch) -> Iterator[_Watch]:
    """Watches the modules of a model; its weights have no gradients meanwhile, as nobody asks for them."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = [
        layer_named(model, name).register_forward_hook(
            lambda _, x, output, name=name: watch.record(name, x[0], output)
        )
        for name in sorted(watch.names)
    ]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield watch
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()


def _run(
    model: nn.Module, watch: _Watch, images: Tensor, generator: torch.Generator, temperature: float
) -> None:
    """Runs forward and backward once, for labels drawn from the outputs."""
    start = images.detach().requires_grad_()
    logits = model(start) / temperature
    missing = sorted(watch.names - watch.seen)
    if missing:
        raise ModelError(
            f"{missing[0]}: is never called as a module in a forward pass; rewrite attention first"
        )
    drawn = torch.multinomial(logits.detach().softmax(1), 1, generator=generator).flatten()
    loss = F.cross_entropy(logits, drawn, reduction="sum")
    torch.autograd.grad(loss, [start, *watch.starts], allow_unused=True)


def reading_cuts(group: Group) -> list[Cut]:
    """Returns where layers read a group, in the order of its readings."""
    return [cut for cut in group.cuts if cut.axis == "inputs"]


def _rows(module: nn.Module, x: Tensor) -> Tensor:
    """Returns one row of channels per image and position."""
    return x.flatten(2).transpose(1, 2).flatten(0, 1) if isinstance(module, nn.Conv2d) else x.flatten(0, -2)


def _unit_rows(rows: Tensor, group: Group, cut: Cut) -> Tensor:
    """Returns rows of (unit, repeat) entries; each place of a run is a row of its own."""
    own = rows[:, entries(cut, range(group.width), group.width)]
    own = own.reshape(-1, cut.repeats, group.width, cut.run)
    return own.permute(0, 3, 2, 1).flatten(0, 1).flatten(1)


def _query_parts(parts: Tensor, group: Group) -> Tensor:
    """Returns rows of (dimension, head) entries of the queries: the first heads of the first gate."""
    heads, first = reading_cuts(group)[0].repeats, group.gates[0]
    rows = parts.flatten(0, -2)[:, first.offset : first.offset + heads * group.width]
    return rows.reshape(-1, heads, group.width).transpose(1, 2).flatten(1)


def _readings(model: nn.Module, group: Group, sums: _Sums) -> list[Reading]:
    found = []
    for cut in reading_cuts(group):
        if ("", cut.module) not in sums.moments:
            raise ModelError(f"{cut.module}: no gradient reaches it; take torch.no_grad() out of the model")
        gram = _gram(model, group, cut, sums.moments["", cut.module])
        found.append(Reading(sums.moments[group.name, cut.module], gram))
    if group.kind == "head_dim":
        parts = sums.moments[group.name, ""]
        found.append(Reading(parts, torch.ones_like(parts)))
    return found


def _gram(model: nn.Module, group: Group, cut: Cut, output: Tensor) -> Tensor:
    """Returns W O W^T between (unit, repeat) entries, summed over taps and places of a run."""
    weight = weight_of(layer_named(model, cut.module)).double().flatten(2)  # (f, entries, taps)
    own = weight[:, entries(cut, range(group.width), group.width)]
    own = own.reshape(len(weight), cut.repeats, group.width, -1)  # (f, repeats, units, run taps)
    flat = own.permute(0, 3, 2, 1).flatten(2)  # (f, run taps, entries)
    weighted = torch.einsum("fg,gte->fte", output, flat)
    return weighted.flatten(0, 1).T @ flat.flatten(0, 1)
