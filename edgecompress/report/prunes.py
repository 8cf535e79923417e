"""What a terminal shows of `prune`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.prune_results import PrunedGroup, PruneResult
from edgecompress.report.figures import before_after, split_line, stage_times, where_written
from edgecompress.report.numbers import share
from edgecompress.report.tables import add_row, lines, table, title

KINDS = {"channels": "channels", "hidden": "hidden units", "head_dim": "head dimensions"}
NAMES_SHOWN = 3


def prune_text(result: PruneResult) -> RenderableType:
    """Returns the figures before and after, what went of each kind, and what could not."""
    scope = result.scope.replace("_", " ")
    return Group(
        title(result.plan.model.source, f"before and after, by {result.scores} scores, {scope}"),
        before_after(result.dense, result.compressed),
        *split_line(result.split),
        Text(),
        _kinds(result.groups),
        Text(),
        *lines(_refused(result.refused)),
        *lines(f"{step}: {outcome}" for step, outcome in result.steps),
        stage_times(result.seconds),
        where_written(result.run),
        Text(f"next: edgecompress export {result.run}, then edgecompress bench {result.run}"),
    )


def _kinds(groups: Sequence[PrunedGroup]) -> Table:
    rows = table("units", "groups", "before", "after", "kept least", "mean", "most", right_from=1)
    for kind in dict.fromkeys(group.kind for group in groups):
        own = [group for group in groups if group.kind == kind]
        add_row(rows, KINDS[kind], str(len(own)), *_kept(own))
    return rows


def _kept(groups: Sequence[PrunedGroup]) -> Iterator[str]:
    before, after = sum(group.before for group in groups), sum(group.after for group in groups)
    yield from (str(before), str(after))
    shares = [group.after / group.before for group in groups]
    for value in (min(shares), after / before, max(shares)):
        yield share(value, 1)


def _refused(refused: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields one line per reason: large networks have dozens of layers with the same."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in refused:
        names[reason].append(name or "the model")
    for reason, own in names.items():
        more = f" and {len(own) - NAMES_SHOWN} more" if len(own) > NAMES_SHOWN else ""
        yield f"width unchanged: {', '.join(own[:NAMES_SHOWN])}{more}: {reason}"
