"""Lines of `bench_train_time.py` as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Rows = list[dict[str, Any]]
Cells = list[str]

STEP_GOAL = 2.1
"""Of PUGD, in steps of SGD."""


def markdown(rows: Rows) -> str:
    """Returns a table per part; rows of pilots have tables of their own. What failed is told at the end."""
    failed = [
        f"{row['part']}, {row['name']}, seed {row['seed']}: {row['error']}" for row in rows if "error" in row
    ]
    return "\n\n".join([*_tables([row for row in rows if "error" not in row]), *failed])


def _tables(rows: Rows) -> Iterator[str]:
    for part, of_part in by(rows, "part"):
        for is_pilot in (False, True):
            own = [row for row in of_part if row.get("pilot", False) == is_pilot]
            if own:
                yield f"**{part}**{', pilot' if is_pilot else ''}\n\n{_table(*TABLES[part](own))}"


def _table(heads: Iterable[str], lines: Iterable[Cells]) -> str:
    heads = list(heads)
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *shown])


def _decomposable(rows: Rows) -> tuple[Cells, list[Cells]]:
    shares = sorted({row["macs_share"] for row in rows}, reverse=True)
    lines = [
        [
            name,
            how,
            _seeds(own),
            *(mean(row["top1"] for row in own if row["macs_share"] == share) for share in shares),
        ]
        for name, of_name in by(rows, "name")
        for how, own in _by_settings(of_name, "mode", "steps", "lr", "smallest", "largest")
    ]
    return ["network", "how", "seeds", *(f"{share:g} x MACs" for share in shares)], lines


def _lorita(rows: Rows) -> tuple[Cells, list[Cells]]:
    shares = list(rows[0]["cut"])
    lines = [
        [
            factors,
            how,
            _seeds(own),
            mean((row["values"] for row in own), digits=0),
            mean(row["top1"] for row in own),
            *(mean(row["cut"][share]["top1"] for row in own) for share in shares),
        ]
        for how, of_setting in _by_settings(rows, "steps", "lr", "weight_decay", "start", "fresh")
        for factors, own in by(of_setting, "name")
    ]
    values = f"values > 1 % of {rows[0]['all_values']}"
    return [
        "factors",
        "how",
        "seeds",
        values,
        "top-1",
        *(f"cut to {share} x MACs" for share in shares),
    ], lines


def _optimisers(rows: Rows) -> tuple[Cells, list[Cells]]:
    lines = [
        [
            case,
            how,
            _seeds(own),
            mean((row["steps"] for row in own), digits=0),
            _passes(own),
            mean(row["top1"] for row in own),
        ]
        for case, of_case in by(rows, "name")
        for how, own in _by_settings(of_case, "lr")
    ]
    return ["optimiser", "rate", "seeds", "steps", "passes", "top-1"], lines


def _passes(rows: Rows) -> str:
    return " to ".join(dict.fromkeys(str(kind(row["passed"] for row in rows)) for kind in (min, max)))


def _step(rows: Rows) -> tuple[Cells, list[Cells]]:
    lines = []
    for row in rows:
        times, low, high = row["to_sgd"]
        goal = f" (goal {STEP_GOAL})" if row["optimiser"] == "pugd" else ""
        lines.append(
            [
                f"{row['name']}, {row['batch']}",
                row["optimiser"],
                f"{row['median_ms']:.1f}",
                f"{row['own_ms']:.1f}",
                f"{times:.2f} ({low:.2f}-{high:.2f})",
                f"{row['by_parts']:.2f}{goal}",
            ]
        )
    return [
        "network, batch",
        "optimiser",
        "ms per step",
        "outside the closure",
        "time / SGD",
        "by parts",
    ], lines


def _precision(rows: Rows) -> tuple[Cells, list[Cells]]:
    lines = []
    for row in rows:
        times, low, high = row["to_float32"]
        told = f"{times:.2f} ({low:.2f}-{high:.2f})"
        lines.append([f"{row['name']}, {row['images']}", row["precision"], f"{row['median_ms']:.0f}", told])
    return ["network, images", "precision", "ms per step", "time / float32"], lines


def _bsconv(rows: Rows) -> tuple[Cells, list[Cells]]:
    lines = [
        [
            kind,
            how,
            _seeds(own),
            f"{own[0]['params']:,}",
            f"{own[0]['macs'] / 1e6:.2f}",
            mean(row["top1"] for row in own),
        ]
        for kind, of_kind in by(rows, "name")
        for how, own in _by_settings(of_kind, "lr")
    ]
    return ["convolutions", "rate", "seeds", "parameters", "M MACs", "top-1"], lines


def by(rows: Rows, key: str) -> Iterator[tuple[Any, Rows]]:
    """Yields every value of a key, in the order it is met, with its rows."""
    for value in dict.fromkeys(row[key] for row in rows):
        yield value, [row for row in rows if row[key] == value]


def _by_settings(rows: Rows, *names: str) -> Iterator[tuple[str, Rows]]:
    """Yields rows that were made with the same settings, and what is particular about them."""
    told = [", ".join(f"{name} {row[name]}" for name in names) for row in rows]
    for text in dict.fromkeys(told):
        yield text, [row for row, own in zip(rows, told, strict=True) if own == text]


def _seeds(rows: Rows) -> str:
    return str(len({row["seed"] for row in rows}))


def mean(values: Iterable[float], *, digits: int = 2) -> str:
    """Returns mean and standard deviation."""
    found = list(values)
    if not found:
        return "-"
    spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.{digits}f}{spread}"


TABLES: dict[str, Callable[[Rows], tuple[Cells, list[Cells]]]] = {
    "decomposable": _decomposable,
    "lorita": _lorita,
    "optimisers": _optimisers,
    "step": _step,
    "precision": _precision,
    "bsconv": _bsconv,
}
