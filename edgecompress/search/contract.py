"""What a rank selection is given and what it returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.types import Block, Candidate, Layer, Metric

Choices = dict[str, Candidate]
"""The candidate chosen for each layer by name; a layer that is not there stays dense."""


def plan_hash(choices: Choices) -> str:
    """Returns a short name that tells plans apart."""
    text = json.dumps(sorted((name, one.method, one.family, one.ranks) for name, one in choices.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Costs:
    """What a model and the parts of it cost in one unit: counted from shapes, or read from a table."""

    metric: Metric
    dense: float
    """Of the whole dense model."""
    candidate: Callable[[Candidate], float]
    layer: Callable[[Layer], float]
    """Of a dense layer."""

    def besides(self, layers: Iterable[Layer]) -> float:
        """Returns the cost of everything but these layers."""
        return self.dense - sum(map(self.layer, layers))


@dataclass(frozen=True)
class Options:
    """What can become of one layer."""

    layer: Layer
    candidates: tuple[Candidate, ...]
    errors: tuple[float, ...] = ()
    """Predicted harm of each candidate, comparable between layers; empty unless the selection asks."""


@dataclass(frozen=True)
class Problem:
    """Layers, kernels and a limit: the input of every selection."""

    options: tuple[Options, ...]
    kernels: Mapping[str, Tensor]
    """The dense (f, c, kh, kw) kernels by layer name, float64."""
    metric: Metric
    limit: float
    """For the whole model, in the units of `metric`."""
    fixed_cost: float
    """Cost of everything that is not in `options`."""
    cost: Callable[[Candidate], float]
    """Cost of a candidate in the units of `metric`."""
    dense_cost: Callable[[Layer], float]

    def total(self, choices: Choices) -> float:
        """Returns the cost of the whole model under these choices."""
        return self.fixed_cost + sum(
            self.cost(choices[o.layer.name]) if o.layer.name in choices else self.dense_cost(o.layer)
            for o in self.options
        )


@dataclass(frozen=True)
class Selection:
    """A rule that picks a candidate, or none, for every layer."""

    name: str
    summary: str
    select: Callable[[Problem], Choices]
    """Returns choices whose total is within the limit.

    Raises:
        BudgetError: there are none; the message names the nearest reachable cost.
    """
    needs_errors: bool = False


def shape_cost(metric: Metric) -> Callable[[Candidate], float]:
    """Returns the cost function of a metric that follows from shapes."""
    return (lambda c: float(c.params)) if metric == "params" else (lambda c: float(c.macs))


def dense_shape_cost(metric: Metric) -> Callable[[Layer], float]:
    """Returns the cost function of dense layers for a metric that follows from shapes."""

    def cost(layer: Layer) -> float:
        block = Block(branches=((layer.op,),))
        return float(block_params(block) if metric == "params" else block_macs(block, layer.in_size))

    return cost


def shape_costs(totals: Mapping[Metric, float]) -> dict[Metric, Costs]:
    """Returns the costs that follow from shapes, given those of the whole dense model."""
    return {
        metric: Costs(metric, total, shape_cost(metric), dense_shape_cost(metric))
        for metric, total in totals.items()
    }
