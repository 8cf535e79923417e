"""What a terminal shows of a training."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.train_results import EpochRow, TrainResult
from edgecompress.report.figures import TRAINED, before_after, split_line, stage_times, where_written
from edgecompress.report.tables import add_row, lines, table, title

MOST_EPOCHS = 12


def train_text(result: TrainResult) -> RenderableType:
    """Returns a training in figures: epochs, before and after, how much rank the layers use."""
    kept = "" if result.best_epoch is None else f", epoch {result.best_epoch} kept"
    how = f"before and after training, by {result.method} with {result.optimiser}{kept}"
    noticeable, ranks = sum(row[1] for row in result.ranks_used), sum(row[2] for row in result.ranks_used)
    said = [f"{what}: {outcome}" for what, outcome in result.steps]
    return Group(
        title(result.plan.model.source, how),
        _epochs(result.epochs),
        Text(),
        before_after(result.dense, result.compressed, names=TRAINED),
        Text(),
        *lines([f"singular values above 1 % of each layer's largest: {noticeable} of {ranks}", *said]),
        *split_line(result.split),
        stage_times(result.seconds),
        where_written(result.run),
    )


def _epochs(epochs: Sequence[EpochRow]) -> Table:
    """Returns a line per epoch; of very many, some at equal distances."""
    rows = table("epoch", "loss", "selection", "rate", "seconds", right_from=0)
    count = len(epochs)
    shown = sorted({round(i * (count - 1) / max(1, MOST_EPOCHS - 1)) for i in range(min(count, MOST_EPOCHS))})
    for row in (epochs[i] for i in shown) if count > MOST_EPOCHS else epochs:
        score = "" if row.score is None else f"{row.score:.2f}"
        add_row(rows, str(row.epoch), f"{row.loss:.4f}", score, f"{row.lr:.2g}", f"{row.seconds:.0f}")
    return rows
