"""Widths, dimensions and low-rank blocks in one budget: every part of a network buys at one price.

At a price of so many nats per unit of cost, each group takes the width, and each layer the block, that is
worth most by itself; where one depends on another they answer each other in turns. The price at which the
whole network just meets the limit is found by halving. A layer is low-rank or narrowed, not both: its factors
would be those of another kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from edgecompress.core.types import Candidate, Metric
from edgecompress.errors import BudgetError
from edgecompress.search.contract import Choices, Options

Widths = dict[str, int]
"""Units that stay of each group, by its name."""

SWEEPS = 8
"""Turns in which groups answer each other; three are enough on all networks tried."""
HALVINGS = 48
PRICES_PER_POINT = 8
"""Tried for a front: most prices lie where nothing or everything goes."""


@dataclass(frozen=True)
class Ladder:
    """Widths a group may have, falling from its own, each with its predicted error."""

    name: str
    widths: tuple[int, ...]
    errors: tuple[float, ...]
    layers: tuple[str, ...]
    """Those that change with it."""


@dataclass(frozen=True)
class JointProblem:
    """What can become of a network, and what that costs."""

    ladders: tuple[Ladder, ...]
    options: tuple[Options, ...]
    """Low-rank blocks of layers, each with its predicted error, in the same unit as those of groups."""
    metric: Metric
    limit: float
    dense: float
    """Cost of the whole network as it is."""
    change: Callable[[Mapping[str, int]], float]
    """Returns how the cost changes when groups have these widths."""
    change_of: Callable[[str, Mapping[str, int]], float]
    """The part of it that depends on one group."""
    saves: Callable[[Candidate], float]
    """Returns how much less a block costs than its layer."""

    @cached_property
    def groups_of(self) -> dict[str, tuple[str, ...]]:
        """The groups that change each layer."""
        found: dict[str, list[str]] = {}
        for ladder in self.ladders:
            for layer in ladder.layers:
                found.setdefault(layer, []).append(ladder.name)
        return {layer: tuple(names) for layer, names in found.items()}

    @cached_property
    def by_layer(self) -> dict[str, Options]:
        """Options by name of their layer."""
        return {one.layer.name: one for one in self.options}

    def cost(self, found: Joint) -> float:
        """Returns the cost of the whole network."""
        return self.dense + self.change(found.widths) - sum(map(self.saves, found.choices.values()))

    def error(self, found: Joint) -> float:
        """Returns the predicted error."""
        errors = {one.name: dict(zip(one.widths, one.errors, strict=True)) for one in self.ladders}
        lost = sum(errors[name][width] for name, width in found.widths.items())
        return lost + sum(self.error_of(one) for one in found.choices.values())

    def error_of(self, candidate: Candidate) -> float:
        """Returns the predicted error of a block."""
        options = self.by_layer[candidate.layers[0]]
        return options.errors[options.candidates.index(candidate)]


@dataclass(frozen=True)
class Joint:
    """What becomes of a network: a width for every group, and blocks for some layers."""

    widths: Widths
    choices: Choices


def choose_jointly(problem: JointProblem) -> Joint:
    """Returns the least predicted error within the limit.

    Raises:
        BudgetError: the limit cannot be met; the message names the nearest reachable cost.
    """
    low, high = _prices(problem)
    best = best_at(problem, high)
    if problem.cost(best) > problem.limit:
        raise BudgetError(
            f"limit {problem.limit:.6g} {problem.metric}: cannot be met; the nearest reachable is "
            f"{problem.cost(best):.6g}"
        )
    for _ in range(HALVINGS):
        price = math.sqrt(low * high)
        found = best_at(problem, price)
        if problem.cost(found) <= problem.limit:
            high, best = price, min(best, found, key=problem.error)
        else:
            low = price
    return _spend(problem, best)


def front(problem: JointProblem, points: int) -> Iterator[Joint]:
    """Yields what is best at some prices, by rising cost, about evenly spread; neighbours differ."""
    low, high = _prices(problem)
    steps = PRICES_PER_POINT * points
    found: list[tuple[float, Joint]] = []
    for index in range(steps):
        one = best_at(problem, high * (low / high) ** (index / (steps - 1)))
        if not found or one != found[-1][1]:
            found.append((problem.cost(one), one))
    first, last = found[0][0], found[-1][0]
    wanted = (first + (last - first) * index / (points - 1) for index in range(points))
    near = (min(range(len(found)), key=lambda at: abs(found[at][0] - cost)) for cost in wanted)
    for at in dict.fromkeys(near):
        yield found[at][1]


def _prices(problem: JointProblem) -> tuple[float, float]:
    """Returns a price at which nothing goes and one at which everything does that can."""
    each = [error for ladder in problem.ladders for error in ladder.errors if error > 0]
    each += [error for one in problem.options for error in one.errors if error > 0]
    scale = problem.dense or 1.0
    return min(each, default=1.0) / scale * 1e-3, max(each, default=1.0) / scale * 1e6


def best_at(problem: JointProblem, price: float) -> Joint:
    """Returns what every part chooses at a price, once all have answered each other."""
    blocks = {one.layer.name: _best_block(problem, one, price) for one in problem.options}
    widths = {ladder.name: ladder.widths[0] for ladder in problem.ladders}
    for _ in range(SWEEPS):
        before = dict(widths)
        for ladder in problem.ladders:
            widths[ladder.name] = _answer(problem, ladder, widths, blocks, price)
        if widths == before:
            break
    free = _free_layers(problem, widths)
    chosen = {name: block for name, (_, block) in blocks.items() if block is not None and name in free}
    return Joint(widths, chosen)


def _best_block(problem: JointProblem, one: Options, price: float) -> tuple[float, Candidate | None]:
    """Returns the least of error and price paid, counted from the dense layer, and what has it."""
    offers = [(0.0, None), *_offers(problem, one, price)]
    return min(offers, key=lambda offer: offer[0])


def _offers(problem: JointProblem, one: Options, price: float) -> Iterator[tuple[float, Candidate | None]]:
    for candidate, error in zip(one.candidates, one.errors, strict=True):
        yield error - price * problem.saves(candidate), candidate


def _answer(
    problem: JointProblem,
    ladder: Ladder,
    widths: Widths,
    blocks: Mapping[str, tuple[float, Candidate | None]],
    price: float,
) -> int:
    """Returns the width that is worth most, all other groups being as they are."""
    free = _free_layers(problem, {**widths, ladder.name: ladder.widths[0]})
    low_rank = sum(blocks[name][0] for name in ladder.layers if name in blocks and name in free)

    def value(width: int, error: float) -> float:
        paid = error + price * problem.change_of(ladder.name, {**widths, ladder.name: width})
        return paid + (low_rank if width == ladder.widths[0] else 0.0)

    return min(zip(ladder.widths, ladder.errors, strict=True), key=lambda step: value(*step))[0]


def _free_layers(problem: JointProblem, widths: Mapping[str, int]) -> set[str]:
    """Returns the layers that no group has changed."""
    whole = {ladder.name for ladder in problem.ladders if widths[ladder.name] == ladder.widths[0]}
    names: Sequence[str] = [one.layer.name for one in problem.options]
    return {name for name in names if all(group in whole for group in problem.groups_of.get(name, ()))}


def _spend(problem: JointProblem, found: Joint) -> Joint:
    """Takes back what still fits, most error first: prices leave a rest."""
    while True:
        fitting = [one for one in _wider(problem, found) if problem.cost(one) <= problem.limit]
        better = min(fitting, key=problem.error, default=found)
        if problem.error(better) >= problem.error(found):
            return found
        found = better


def _wider(problem: JointProblem, found: Joint) -> Iterator[Joint]:
    """Yields the network with one group a step wider, or one block with less error."""
    for ladder in problem.ladders:
        place = ladder.widths.index(found.widths[ladder.name])
        if place > 0:
            yield Joint({**found.widths, ladder.name: ladder.widths[place - 1]}, found.choices)
    slack = problem.limit - problem.cost(found)
    for name, block in found.choices.items():
        room = problem.saves(block) - slack
        one = problem.by_layer[name]
        fits = [c for c in one.candidates if problem.saves(c) >= room]
        better = min(fits, key=problem.error_of, default=block)
        if problem.error_of(better) < problem.error_of(block):
            yield Joint(found.widths, {**found.choices, name: better})
