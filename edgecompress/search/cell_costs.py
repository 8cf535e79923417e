"""What the operations of cells cost, from the cost of single operators.

Skip connections without a stride and `none` run nothing and cost nothing. Latency tables have no pools:
a depthwise convolution of the same window stands for each, which reads and writes as much. Activations and
additions are left out, as nearly all operations have them alike; batch norms are folded where they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from edgecompress.core.genotype import KEPT_EDGES, KINDS, edges_of
from edgecompress.core.types import Op, Size
from edgecompress.nets.cell_edges import Stack
from edgecompress.nets.cell_networks import cell_kinds, search_network
from edgecompress.nets.modules import op_of

Part = tuple[Op, Size]
"""An operator, and height and width of the map it reads."""
PartCost = Callable[[Part], float]

_POOLS = nn.MaxPool2d | nn.AvgPool2d


@torch.no_grad()
def parts_of(network: nn.Module, run: Callable[[], object]) -> dict[str, Part]:
    """Returns the operators a network runs, by the name of their module."""
    found: dict[str, Part] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found[name] = _part(module, inputs[0])

    kinds = nn.Conv2d | nn.Linear | _POOLS
    layers = {name: module for name, module in network.named_modules() if isinstance(module, kinds)}
    handles = [one.register_forward_pre_hook(partial(note, name)) for name, one in layers.items()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _part(module: nn.Module, x: Tensor) -> Part:
    if isinstance(module, nn.Linear):
        return op_of(module), (1, 1)
    size = (x.shape[-2], x.shape[-1])
    return (_stand_in(module, x.shape[1]) if isinstance(module, _POOLS) else op_of(module)), size


def _stand_in(pool: nn.MaxPool2d | nn.AvgPool2d, channels: int) -> Op:
    kernel, stride, padding = (
        (value, value) if isinstance(value, int) else (value[0], value[1])
        for value in (pool.kernel_size, pool.stride, pool.padding)
    )
    return Op(
        kind="conv2d",
        inputs=channels,
        outputs=channels,
        kernel=kernel,
        stride=stride,
        padding=padding,
        groups=channels,
    )


def network_parts(network: nn.Module, image: tuple[int, int, int]) -> dict[str, Part]:
    """Returns the operators of a derived network, which is in eval mode."""
    return parts_of(network, lambda: network(torch.zeros(1, *image)))


def searched_parts(
    space: str, operations: Sequence[str], stack: Stack, image: tuple[int, int, int]
) -> dict[str, Part]:
    """Returns the operators of a search network by the name of their module."""
    network = search_network(space, operations, stack).eval()
    even = [torch.ones(len(edges_of(space)), len(operations)) for _ in KINDS[space]]
    return parts_of(network, lambda: network(torch.zeros(1, *image), even))


def operation_costs(
    space: str, operations: Sequence[str], cells: int, parts: Mapping[str, Part], cost: PartCost
) -> tuple[Tensor, ...]:
    """Returns the cost of every operation on every edge, a tensor (edges, operations) for each kind of cell.

    All cells of a kind share their choice, so costs are summed over them. A node of the darts space keeps
    two of its n edges, so each of them counts 2 / n.
    """
    edges = edges_of(space)
    found = [torch.zeros(len(edges), len(operations)) for _ in KINDS[space]]
    places = [place for place, name in enumerate(operations) if name != "none"]
    kinds = cell_kinds(space, cells)
    for name, part in parts.items():
        words = name.split(".")
        if words[2:4] == ["graph", "edges"]:  # cells.NUMBER.graph.edges.NUMBER.operations.NUMBER...
            cell, edge, operation = int(words[1]), int(words[4]), int(words[6])
            found[kinds[cell]][edge, places[operation]] += cost(part)
    return tuple(_weights(space)[:, None] * one for one in found)


def _weights(space: str) -> Tensor:
    readers = [node for _, node in edges_of(space)]
    if space != "darts":
        return torch.ones(len(readers))
    return torch.tensor([KEPT_EDGES / readers.count(node) for node in readers])


def normalised(costs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns costs as shares of what the dearest operation on every edge would come to."""
    dearest = sum(float(one.amax(-1).sum()) for one in costs)
    return tuple(one / dearest if dearest else one for one in costs)
