"""From the blocks of a network to its milliseconds, fitted on whole networks that were measured.

Blocks run alone find their weights in the cache from the run before; in a network they do not. Operators
that are not searched take time as well. Both are few numbers, so a dozen plans are enough. They are fitted by
least squares of relative errors, pulled gently to "the sum of its blocks and something fixed".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.costs import BYTES_PER_WEIGHT, block_params
from edgecompress.core.latency_table import Calibration, LatencyTable, PlanTiming
from edgecompress.core.model_flags import input_flags
from edgecompress.core.types import Block, Size
from edgecompress.errors import ConfigError
from edgecompress.latency.lookup import Lookup

PULL = 0.1
"""Weight of the gentle pull; one plan weighs 1. Of 0.01, 0.1 and 0.3 on noisy timings the last two were as
good on plans left out, the first worse."""
LEAST_SCALE = 0.1
"""A faster plan must never be predicted as the slower one, however much the timings scatter."""


@dataclass(frozen=True)
class BlockSum:
    """What the blocks of a plan come to."""

    ms: float
    weight_megabytes: float


def sum_blocks(lookup: Lookup, blocks: Sequence[tuple[Block, Size]], *, dtype: str) -> BlockSum:
    """Returns what the table says of blocks.

    Raises:
        ConfigError: it does not cover one of them.
    """
    weights = weight_megabytes((block for block, _ in blocks), dtype=dtype)
    return BlockSum(sum(lookup.ms(block, size) for block, size in blocks), weights)


def weight_megabytes(blocks: Iterable[Block], *, dtype: str) -> float:
    """Returns how much the weights of blocks take on a device."""
    each = 1 if dtype == "int8" else BYTES_PER_WEIGHT
    return each * sum(map(block_params, blocks)) / 1e6


def plan_timing(
    plan: str, blocks: BlockSum, measured_ms: float, predicted_ms: float, *, fitted: bool
) -> PlanTiming:
    """Returns what is kept of a network that was measured under a plan."""
    return PlanTiming(
        plan=plan,
        blocks_ms=blocks.ms,
        weight_megabytes=blocks.weight_megabytes,
        measured_ms=measured_ms,
        predicted_ms=predicted_ms,
        fitted=fitted,
    )


def fit_calibration(
    network: str,
    input_shape: tuple[int, int, int],
    layers: Sequence[str],
    rows: Sequence[tuple[str, BlockSum, float]],
    *,
    fingerprint: str | None = None,
) -> Calibration:
    """Returns the calibration of a network from plans: their names, blocks and measured milliseconds.

    `layers` are those whose blocks were summed; the fingerprint is that of the dense network.
    """
    sums = np.array([[one.ms, one.weight_megabytes, 1.0] for _, one, _ in rows])
    measured = np.array([ms for _, _, ms in rows])
    relative = sums / measured[:, None]
    pull = PULL * np.diag([relative[:, 0].mean(), relative[:, 1].mean(), 0.0])[:2]
    left = np.vstack([relative, pull])
    right = np.concatenate([np.ones(len(rows)), [pull[0, 0], 0.0]])
    scale, per_megabyte, rest = _solved(left, right)
    predicted = sums @ (scale, per_megabyte, rest)
    timings = tuple(
        plan_timing(plan, one, ms, float(said), fitted=True)
        for (plan, one, ms), said in zip(rows, predicted, strict=True)
    )
    return Calibration(
        network=network,
        input_shape=input_shape,
        layers=tuple(layers),
        scale=scale,
        per_megabyte_ms=per_megabyte,
        rest_ms=rest,
        timings=timings,
        fingerprint=fingerprint,
    )


def _solved(left: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[float, float, float]:
    """Returns the least squares; where noise alone speaks, blocks still count for something."""
    scale, per_megabyte, rest = map(float, np.linalg.lstsq(left, right)[0])
    if scale < LEAST_SCALE:
        scale = LEAST_SCALE
        per_megabyte, rest = map(float, np.linalg.lstsq(left[:, 1:], right - scale * left[:, 0])[0])
    return scale, per_megabyte, rest


def find_calibration(table: LatencyTable, network: str, input_shape: tuple[int, int, int]) -> Calibration:
    """Returns the calibration of a network.

    Raises:
        ConfigError: the table has none.
    """
    for one in calibrations_of(table, network):
        if one.input_shape == input_shape:
            return one
    known = ", ".join(sorted({one.network for one in table.calibrations})) or "none"
    raise ConfigError(
        f"latency table of {table.device}: is not calibrated for {network} (calibrated are: {known}); "
        f"add it with `edgecompress latency build --device {table.device} --model {network}"
        f"{input_flags(network, input_shape)} -o TABLE`"
    )


def calibrations_of(table: LatencyTable, network: str) -> tuple[Calibration, ...]:
    """Returns the calibrations of a network, one for each shape of its inputs.

    A model file may have moved with its table: where none is of the file itself, those of the only other file
    of its name are taken. Whether they are of the same network is for the caller to find out.
    """
    own = tuple(one for one in table.calibrations if one.network == network)
    if own or not Path(network).is_absolute():
        return own
    same = tuple(one for one in table.calibrations if Path(one.network).name == Path(network).name)
    return same if len({one.network for one in same}) == 1 else ()


@dataclass(frozen=True)
class Agreement:
    """How well predictions fit what was measured."""

    plans: int
    mean_error: float
    worst_error: float
    rank_correlation: float | None
    """Spearman's; None for fewer than three plans."""


def agreement(timings: Sequence[PlanTiming]) -> Agreement:
    """Returns how well predictions fit; errors are absolute shares."""
    errors = [abs(one.error) for one in timings]
    ranks = None
    if len(timings) > 2:
        from scipy.stats import spearmanr  # takes a second to import, and few commands ask

        found = spearmanr([one.predicted_ms for one in timings], [one.measured_ms for one in timings])
        ranks = float(found.statistic)
    return Agreement(len(timings), float(np.mean(errors)), max(errors), ranks)
