"""F-Group: filter groups (S4) of c inputs cut into g slices of rank r = c / g.

The published configuration is hand-picked for ResNet-18: rank 8 in the stage of 64 filters, 32 in
that of 128, 128 in that of 256, the last stage dense. That is r = q f^2 with q = 1/512, dense from
r = f on. The rule here is this formula with q as its knob, which is ours: it gives the published
configuration exactly at q = 1/512 and keeps its habit of cutting narrow, early layers hardest. Where
no slicing has that rank, the next lower one is taken. A 1 x 1 kernel cannot gain and stays dense.

Reference: Peng et al., Extreme Network Compression via Filter Group Approximation, ECCV 2018; the
ResNet-18 configuration is the one SVD-NAS compares with.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgecompress.core.types import Candidate, Layer
from edgecompress.methods import lowrank
from edgecompress.nets.families import Family, max_rank
from edgecompress.search.contract import Choices, Options, Problem, Selection
from edgecompress.search.knob import meet_limit, worthwhile
from edgecompress.search.spectra import check_offered, offered_families


@dataclass(frozen=True)
class Steps:
    """The slicings of one layer by rising rank."""

    layer: Layer
    families: tuple[Family, ...]

    def knob(self, family: Family) -> float:
        """Returns the q from which on a slicing is taken."""
        return self.rank(family) / self.layer.op.outputs**2

    @property
    def dense_knob(self) -> float:
        """The q from which on the layer stays dense."""
        return 1 / self.layer.op.outputs

    def rank(self, family: Family) -> int:
        """Returns the rank that goes with a slicing."""
        return self.layer.op.inputs // family.slices

    def at(self, q: float) -> Candidate | None:
        """Returns what becomes of the layer at a knob; None: it stays dense."""
        if q >= self.dense_knob:
            return None
        reached = [family for family in self.families if self.knob(family) <= q]
        family = reached[-1] if reached else self.families[0]
        return lowrank.pair_candidate(self.layer, family, self.rank(family))


def select(problem: Problem) -> Choices:
    """Turns q until the budget is met."""
    check_offered(problem, lowrank.METHOD.name)
    every = [steps for options in problem.options if (steps := _steps(options)) is not None]

    def choose(q: float) -> Choices:
        found = (steps.at(q) for steps in every)
        return worthwhile(problem, (candidate for candidate in found if candidate is not None))

    knobs = {steps.knob(family) for steps in every for family in steps.families}
    return meet_limit(problem, choose, sorted(knobs | {steps.dense_knob for steps in every}) or [0.0])


def _steps(options: Options) -> Steps | None:
    op = options.layer.op
    sliced = [family for family in offered_families(options) if family.kind == "S4"]
    possible = [family for family in sliced if op.inputs // family.slices <= max_rank(family, op)]
    by_rank = tuple(sorted(possible, key=lambda family: -family.slices))
    return Steps(options.layer, by_rank) if by_rank else None


SELECTION = Selection("f-group", "filter groups of rank inputs / groups, narrow layers cut hardest", select)
