"""The fastest network that loses at most so much accuracy."""

from __future__ import annotations

from functools import partial

from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Metric
from edgecompress.errors import BudgetError
from edgecompress.pipeline.evaluate import accuracy, batch_size, log_probabilities
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Prepared
from edgecompress.pipeline.realised import realise_once
from edgecompress.search.contract import Choices, plan_hash

STEPS = 6
"""Halvings of the span between the fastest plan and the dense model."""
LEAST_SHARE = 1e-3
"""Of the dense model's cost: fitted costs of the fastest plans may be 0 or less."""


def limit_for_drop(
    prepared: Prepared,
    material: Material,
    metric: Metric,
    max_drop: float,
    floor: float,
    progress: Progress,
) -> float:
    """Returns the least cost at which repaired networks lose at most so many percentage points.

    Raises:
        BudgetError: even hardly compressed networks lose more.
    """
    dense = prepared.setting.costs[metric].dense
    low, high = max(floor, LEAST_SHARE * dense), dense
    found: float | None = None
    for _ in range(STEPS):
        limit = (low * high) ** 0.5
        if _loses_more(prepared, material, metric, limit, max_drop, progress):
            low = limit
        else:
            found = high = limit
    if found is None:
        raise BudgetError(
            f"--max-drop {max_drop:g}: plans that save as little as {100 * (1 - low / dense):.2g} % lose "
            "more on the selection images; allow more, or recover accuracy by training"
        )
    return found


def _loses_more(
    prepared: Prepared,
    material: Material,
    metric: Metric,
    limit: float,
    max_drop: float,
    progress: Progress,
) -> bool:
    try:
        choices = prepared.selection.select(prepared.problem(metric, limit))
    except BudgetError:  # some rules cannot go as far as others
        return True
    return drop_of(prepared, material, choices, progress) > max_drop


def drop_of(prepared: Prepared, material: Material, choices: Choices, progress: Progress) -> float:
    """Returns the percentage points a plan's repaired network loses on the selection images.

    Accuracy where they have labels, otherwise how often the answer is another than the dense model's.
    """
    return prepared.memo.number(
        f"drop {plan_hash(choices)}", partial(_drop, prepared, material, choices, progress)
    )


def _drop(prepared: Prepared, material: Material, choices: Choices, progress: Progress) -> float:
    network, dense = realise_once(prepared, choices, progress).module, prepared.setting.model
    split = None if material.splits is None else material.splits.selection
    if split is not None and len(split) and split.images.labels() is not None:

        def top1(one: nn.Module) -> float:
            size = batch_size(material.loaded.ref.input_shape)
            return float(accuracy(one, split, size=size, progress=progress, what="selection").top1)

        return prepared.memo.number("top-1 of dense", lambda: top1(dense)) - top1(network)
    batches = prepared.setting.selection or prepared.setting.calibration
    answers = [log_probabilities(one, batches).argmax(1) for one in (dense, network)]
    return 100 * float((answers[0] != answers[1]).float().mean())
