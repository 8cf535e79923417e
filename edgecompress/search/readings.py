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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
        ModelError: nothing reads a group, or a reader is not called as a module.
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
    return {group.name: _readings(model, group, sums, count) for group in groups}


@dataclass(frozen=True)
class _Sums:
    """Sums over images; the number of samples stands beside those that become means."""

    moments: dict[tuple[str, str], Tensor]
    """By group and module; under "" the parts of queries; under the module alone the output gradients."""
    samples: defaultdict[tuple[str, str], int]

    def add_(self, key: tuple[str, str], rows: Tensor) -> None:
        """Adds the second moment of rows."""
        own = rows.double()
        self.moments[key] = own.T @ own + self.moments.get(key, 0)
        self.samples[key] += len(rows)


def _add_(
    sums: _Sums,
    model: nn.Module,
    groups: Sequence[Group],
    images: Tensor,
    generator: torch.Generator,
    temperature: float,
) -> None:
    readers = {cut.module for group in groups for cut in reading_cuts(group)}
    makers = {group.gates[0].module for group in groups if group.kind == "head_dim"}
    calls = _run(model, readers | makers, images, generator, temperature)
    for name in sorted(readers):
        _, _, gradient = calls[name]
        sums.add_(("", name), _rows(layer_named(model, name), gradient))
    for group in groups:
        for cut in reading_cuts(group):
            seen, _, _ = calls[cut.module]
            rows = _rows(layer_named(model, cut.module), seen)
            sums.add_((group.name, cut.module), _unit_rows(rows, group, cut))
        if group.kind == "head_dim":
            _, made, gradient = calls[group.gates[0].module]
            sums.add_((group.name, ""), _query_parts(made * gradient, group))


Call = tuple[Tensor, Tensor, Tensor]
"""What a module read, what it put out, and the gradient there."""


def _run(
    model: nn.Module, names: set[str], images: Tensor, generator: torch.Generator, temperature: float
) -> dict[str, Call]:
    """Runs forward and backward once, for labels drawn from the outputs."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [layer_named(model, name).register_forward_hook(_recorder(seen, name)) for name in names]
    try:
        logits = model(images.detach().requires_grad_()) / temperature
    finally:
        for handle in handles:
            handle.remove()
    missing = sorted(names - set(seen))
    if missing:
        raise ModelError(
            f"{missing[0]}: is never called as a module in a forward pass; rewrite attention first"
        )
    drawn = torch.multinomial(logits.detach().softmax(1), 1, generator=generator).flatten()
    loss = F.cross_entropy(logits, drawn, reduction="sum")
    gradients = torch.autograd.grad(loss, [made for _, made in seen.values()])
    pairs = zip(seen.items(), gradients, strict=True)
    return {name: (x, made.detach(), gradient) for (name, (x, made)), gradient in pairs}


def _recorder(
    seen: dict[str, tuple[Tensor, Tensor]], name: str
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen[name] = (inputs[0].detach().clone(), output)
        return output.clone()  # what follows may overwrite it in place

    return record


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


def _readings(model: nn.Module, group: Group, sums: _Sums, images: int) -> list[Reading]:
    found = []
    for cut in reading_cuts(group):
        key = (group.name, cut.module)
        output = sums.moments["", cut.module] / images
        found.append(Reading(sums.moments[key] / sums.samples[key], _gram(model, group, cut, output)))
    if group.kind == "head_dim":
        parts = sums.moments[group.name, ""] / images
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
