"""One score per candidate: where it starts, which probabilities it gives, what they cost, what is picked.

The scores of all layers are one vector; each layer has the dense layer first and its candidates after it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgecompress.search.allocate import sweep
from edgecompress.search.contract import Choices, Problem
from edgecompress.search.knob import unreachable
from edgecompress.search.ranks.exact import choices_at

START_SPREAD = 2.0
"""How far, at the start, the middle candidate of the middle layer is below the best of its layer."""
START_LEAD = 0.2
"""How far, at the start, the choice of a given plan is above all others of its layer."""


@dataclass(frozen=True)
class Space:
    """The problem's candidates by place in the vector of scores."""

    problem: Problem

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many scores each layer has."""
        return tuple(1 + len(o.candidates) for o in self.problem.options)

    @functools.cached_property
    def costs(self) -> Tensor:
        """Cost of every place, float64."""
        problem = self.problem
        each = [[problem.dense_cost(o.layer), *map(problem.cost, o.candidates)] for o in problem.options]
        return torch.tensor([cost for layer in each for cost in layer], dtype=torch.float64)

    @functools.cached_property
    def dense_cost(self) -> float:
        """Cost of the whole dense model."""
        return self.problem.total({})

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Cuts a vector into those of the layers."""
        return tuple(vector.split_with_sizes(self.sizes))

    def probabilities(self, scores: Tensor, temperature: float) -> tuple[Tensor, ...]:
        """Returns the softmax of each layer's scores."""
        return tuple((part / temperature).softmax(0) for part in self.split(scores))

    def expected_cost(self, probabilities: Sequence[Tensor]) -> Tensor:
        """Returns the cost of the whole model when each layer draws its candidate."""
        return self.problem.fixed_cost + torch.cat(list(probabilities)) @ self.costs

    @functools.cached_property
    def _grid(self) -> Tensor:
        """Where each place is in a table with one row per layer."""
        width = max(self.sizes)
        return torch.cat([row * width + torch.arange(size) for row, size in enumerate(self.sizes)])

    def cost_of_scores(self, scores: Tensor, temperature: float) -> float:
        """Returns the expected cost of scores, all layers at once and without gradients."""
        table = torch.full((len(self.sizes), max(self.sizes)), -torch.inf, dtype=torch.float64)
        table.view(-1)[self._grid] = scores / temperature
        return self.problem.fixed_cost + float(table.softmax(1).view(-1)[self._grid] @ self.costs)

    def entropy(self, probabilities: Sequence[Tensor]) -> float:
        """Returns how undecided the layers are, on average, in nats."""
        each = [float(torch.special.entr(p).sum()) for p in probabilities]
        return sum(each) / max(1, len(each))


def step_generator(seed: int, step: int) -> torch.Generator:
    """Returns the randomness of a step; it follows from seed and step alone, so a search can be resumed."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Returns Gumbel noise: the place of the highest of scores + noise has softmax probability."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(min=1e-300).log()).log()


def start_scores(space: Space, start: Choices | None) -> Tensor:
    """Returns the scores to start from.

    With predicted errors they are -(error + mu cost) on one scale for all layers, mu being the price at
    which the layers' best candidates just meet the limit: the best scores are then near the exact plan,
    and others fall off as the prediction says. The choices of `start` are put on top of their layers.
    """
    scores = torch.zeros(sum(space.sizes), dtype=torch.float64)
    if all(len(o.errors) == len(o.candidates) for o in space.problem.options):
        scores = _priced(space)
    for options, own in zip(space.problem.options, space.split(scores), strict=True):
        if start is not None:
            choice = start.get(options.layer.name)
            place = 0 if choice is None else 1 + options.candidates.index(choice)
            own[place] = own.max() + START_LEAD
    return scores


def _priced(space: Space) -> Tensor:
    errors = torch.tensor([e for o in space.problem.options for e in (0.0, *o.errors)], dtype=torch.float64)
    price = _price(space, errors)
    layers = [part - part.min() for part in space.split(errors + price * space.costs)]
    middles = torch.stack([part.median() for part in layers]) if layers else torch.zeros(1)
    scale = float(middles.median())
    return -torch.cat(layers) * (START_SPREAD / scale if scale > 0 else 1.0)


def _price(space: Space, errors: Tensor) -> float:
    """Returns the least mu at which taking the least error + mu cost in each layer meets the limit."""

    def cost(price: float) -> float:
        picks = [int(part.argmin()) for part in space.split(errors + price * space.costs)]
        parts = space.split(space.costs)
        return space.problem.fixed_cost + sum(float(p[i]) for p, i in zip(parts, picks, strict=True))

    if cost(0.0) <= space.problem.limit:
        return 0.0
    low, high = 1e-12, 1e12  # in units of mean error per mean cost
    unit = float(errors.mean() / space.costs.mean())
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if cost(middle * unit) <= space.problem.limit else (middle, high)
    return high * unit


def pick(space: Space, scores: Tensor) -> Choices:
    """Returns the most probable plan within the limit, layers being independent: an exact knapsack.

    Raises:
        BudgetError: no plan is within the limit.
    """
    problem = space.problem
    unlikely = [_numbers(-part.log_softmax(0)) for part in space.split(scores.detach())]
    front = sweep([_numbers(part) for part in space.split(space.costs)], unlikely)
    point = front.within(problem.limit - problem.fixed_cost)
    if point is None:
        raise unreachable(problem, float(front.costs[0]) + problem.fixed_cost)
    return choices_at(problem, front, point)


def tilted(space: Space, scores: Tensor, temperature: float) -> Tensor:
    """Returns scores whose expected cost is the limit: - price cost is added, as little as it takes.

    Of all distributions with that cost theirs is the nearest, by the Kullback-Leibler divergence. A limit
    the dense model meets asks for nothing.
    """
    if space.problem.limit >= space.dense_cost:
        return scores
    unit = float(scores.std() / space.costs.std())
    low, high = -1e3, 1e3
    for _ in range(44):
        middle = (low + high) / 2
        expected = space.cost_of_scores(scores - middle * unit * space.costs, temperature)
        low, high = (low, middle) if expected <= space.problem.limit else (middle, high)
    return scores - high * unit * space.costs


def _numbers(vector: Tensor) -> NDArray[np.float64]:
    return vector.double().numpy()


def argmax_cost(space: Space, scores: Tensor) -> float:
    """Returns the cost of the plan that takes the best score of every layer, whatever the limit."""
    chosen = [
        cost[int(own.argmax())]
        for own, cost in zip(space.split(scores), space.split(space.costs), strict=True)
    ]
    return space.problem.fixed_cost + float(sum(chosen))
