"""One network cut to many sizes without training: which ranks, which factors, which statistics.

choose ranks    by the singular values of the whole network, or by any other rank selection
cut             two layers by plain SVD in place of one, read as in training
renew norms     statistics of batch norms belong to a size, so they are found anew on training images
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Budget
from edgecompress.data.splits import Split
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.pipeline.engine import build, choose
from edgecompress.pipeline.evaluate import batch_size
from edgecompress.pipeline.preparation import Offer, Prepared, Recipe, Setting, offer, prepare
from edgecompress.search.contract import Choices, Options, Selection
from edgecompress.search.ranks import global_values
from edgecompress.train.recalibration import recalibrate_, recalibrate_in_one_pass_, tracking_norms
from edgecompress.train.truncation import CHANNEL, SPATIAL, Mode

SEQUENCE_PIXELS = 1 << 22
"""Of all images together: so many, with all that a network makes of them, fit in the memory of a laptop."""
ONE_PASS_BATCH = 64
SHARE_STEP, MS_STEP = 1e-3, 1e-4
"""To these the smallest possible size is rounded up in messages."""


@dataclass(frozen=True)
class WantedSize:
    """A size the user asked for."""

    name: str
    """Of its directory: `0.50`, `12ms`."""
    budget: Budget


def parse_sizes(text: str) -> tuple[WantedSize, ...]:
    """Reads `0.75,0.5,0.25`, shares of the MACs, or `12ms,8ms`.

    Raises:
        ConfigError: a size is neither, or is given twice.
    """
    found = tuple(_size(part.strip()) for part in text.split(",") if part.strip())
    names = [one.name for one in found]
    if not found:
        raise ConfigError(f"--sizes {text!r}: names none; write 0.75,0.5,0.25 or 12ms,8ms")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--sizes {text!r}: {name} is there twice; give every size once")
    return found


def _size(text: str) -> WantedSize:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms)?", text)
    value = float(match[1]) if match else 0.0
    if match is None or value <= 0 or (match[2] is None and value > 1):
        raise ConfigError(f"--sizes {text!r}: not understood; write a share of the MACs, as 0.5, or 12ms")
    if match[2]:
        return WantedSize(f"{_plain(value)}ms", Budget(metric="ms", value=value, relative=False))
    name = f"{value:.2f}" if round(value, 2) == value else _plain(value)
    return WantedSize(name, Budget(metric="macs", value=value, relative=True))


def _plain(value: float) -> str:
    """Returns a number as people write it: never 1e-05."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Sizing:
    """How a network is cut."""

    mode: Mode = "channel"
    rank_selection: str = "global-values"
    least_rank: int = global_values.RANK_MIN
    """Of `global-values`; as in training."""


def prepare_sizes(setting: Setting, sizing: Sizing, progress: Progress) -> Prepared:
    """Returns what all sizes have in common.

    Raises:
        ConfigError: there is no such rank selection, or no layer can be cut.
    """
    recipe = Recipe(
        rank_selection=sizing.rank_selection,
        factors="plain",
        refit="none",
        local_search=False,
        batch_norm="keep",
    )
    offered = offer(setting, recipe)
    one_way = tuple(found for one in offered.options if (found := _in_mode(one, sizing.mode)).candidates)
    if not one_way:
        raise ConfigError("no layer can be cut to a lower rank; choose others with --layers")
    prepared = prepare(setting, recipe, progress, offered=Offer(one_way, offered.skipped))
    return replace(prepared, selection=_floored(prepared.selection, sizing.least_rank))


def _in_mode(options: Options, mode: Mode) -> Options:
    """Returns the candidates that read a kernel as training did; 1 x 1 kernels have one way only."""
    wanted = (SPATIAL.name, CHANNEL.name) if mode == "spatial" else (CHANNEL.name,)
    there = {one.family for one in options.candidates}
    family = next((name for name in wanted if name in there), None)
    return Options(options.layer, tuple(one for one in options.candidates if one.family == family))


def _floored(selection: Selection, least: int) -> Selection:
    relative = {global_values.ABSOLUTE.name: False, global_values.RELATIVE.name: True}
    if selection.name not in relative:
        return selection
    rule = functools.partial(global_values.select, relative=relative[selection.name], rank_min=least)
    return replace(selection, select=rule)


def size_of(prepared: Prepared, wanted: WantedSize, progress: Progress) -> tuple[Choices, nn.Module]:
    """Returns the ranks of a size and its network, as `cut_to`, and names the size where it fails.

    Raises:
        BudgetError: the size cannot be reached; the message says which is the smallest that can.
    """
    try:
        return cut_to(prepared, wanted.budget, progress)
    except BudgetError as error:
        if error.nearest is None:
            raise BudgetError(f"--sizes {wanted.name}: {error}") from None
        smallest = _smallest(prepared, wanted.budget, error.nearest)
        told = f"--sizes {wanted.name}: cannot be reached; the smallest possible is {smallest}"
        raise BudgetError(told, nearest=error.nearest) from None


def _smallest(prepared: Prepared, budget: Budget, nearest: float) -> str:
    if budget.metric == "ms":
        return f"{_plain(math.ceil(nearest / MS_STEP) * MS_STEP)}ms"
    share = nearest / prepared.setting.costs[budget.metric].dense
    return _plain(math.ceil(share / SHARE_STEP) * SHARE_STEP)


def cut_to(prepared: Prepared, budget: Budget, progress: Progress) -> tuple[Choices, nn.Module]:
    """Returns the ranks of a size and its network, batch norms not yet renewed.

    Raises:
        BudgetError: the size cannot be reached.
    """
    limit = budget.limit(prepared.setting.costs[budget.metric].dense)
    choices = choose(prepared, prepared.problem(budget.metric, limit), progress).choices
    return choices, build(prepared, choices)


def renew_norms_(network: nn.Module, images: Split, shape: tuple[int, int, int]) -> str | None:
    """Finds the statistics of batch norms anew; returns how, or None where there are no norms.

    In sequence where all images fit in memory at once, in one pass otherwise.
    """
    if not tracking_norms(network):
        return None
    if len(images) * shape[1] * shape[2] <= SEQUENCE_PIXELS:
        recalibrate_(network, [batch for batch, _ in images.batches(batch_size(shape))])
        return "in sequence"
    recalibrate_in_one_pass_(network, (batch for batch, _ in images.batches(ONE_PASS_BATCH)))
    return "in one pass"
