"""Lines of `bench_pruning.py` as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

Rows = list[dict[str, Any]]


def markdown(rows: Rows) -> str:
    """Returns a table per part, and per network where parts have several."""
    parts = {
        part: [row for row in rows if row["part"] == part] for part in dict.fromkeys(r["part"] for r in rows)
    }
    return "\n\n".join(text for part, own in parts.items() for text in TABLES[part](own))


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    shown = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *shown])


def _exact(rows: Rows) -> Iterator[str]:
    heads = ("network", "removes", "groups", "params, M", "GMACs", "float32", "float64", "zeroed from dense")
    lines = []
    for name, group in groupby(rows, key=lambda row: row["model"]):
        own = {row["precision"]: row for row in group}
        row = own["float32"]
        lines.append(
            [
                name,
                row["what"],
                str(row["groups"]),
                " -> ".join(f"{one / 1e6:.2f}" for one in row["params"]),
                " -> ".join(f"{one / 1e9:.3f}" for one in row["macs"]),
                *(f"{own[kind]['error']:.1e}" for kind in ("float32", "float64")),
                f"{row['effect']:.2f}",
            ]
        )
    yield _table(heads, lines)


def _trained(rows: Rows) -> Iterator[str]:
    for model, group in _by(rows, "model"):
        dense = [row for row in group if row["method"] == "dense"]
        ratios = sorted({row["ratio"] for row in group} - {0.0})
        first = (
            f"**{model}**, dense {_mean(dense, 'top1')}, trained in the same way {_mean(dense, 'tuned_top1')}"
        )
        heads = ["units removed", "method", "MACs", "parameters", "top-1", "trained"]
        lines = []
        for ratio in ratios:
            for name, own in _by([row for row in group if row["ratio"] == ratio], "method"):
                lines.append([f"{100 * ratio:g} %", name, *_trained_cells(own)])
        yield f"{first}\n\n{_table(heads, lines)}"


def _trained_cells(rows: Rows) -> list[str]:
    errors = [row["error"] for row in rows if "error" in row]
    if errors:
        return [f"failed: {errors[0]}", "", "", ""]
    shares = [f"{100 * statistics.fmean(row[key] for row in rows):.1f} %" for key in ("macs", "params")]
    return [*shares, _mean(rows, "top1"), _mean(rows, "tuned_top1")]


def _searched(rows: Rows) -> Iterator[str]:
    for model, group in _by(rows, "model"):
        dense = next((row["dense_top1"] for row in group if "top1" in row), float("nan"))
        heads = ["MACs asked for", "space", "MACs", "parameters", "blocks", "narrowed groups", "top-1"]
        lines = []
        for row in group:
            asked = [f"{100 * row['share']:g} %", row["space"]]
            if "error" in row:
                lines.append([*asked, f"failed: {row['error']}", "", "", "", ""])
                continue
            drop = row["top1"] - row["dense_top1"]
            shares = [f"{100 * row[key]:.1f} %" for key in ("macs", "params")]
            counts = [str(row["blocks"]), str(row["narrowed"])]
            lines.append([*asked, *shares, *counts, f"{row['top1']:.2f} ({drop:+.2f})"])
        yield f"**{model}**, dense {dense:.2f} % top-1\n\n{_table(heads, lines)}"


def _speed(rows: Rows) -> Iterator[str]:
    heads = ("network", "format", "MACs", "off by", "dense ms", "pruned ms", "speed-up", "valid")
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["model"], row["format"], f"failed: {row['error']}", *[""] * 5])
            continue
        low, high = row["interval"]
        lines.append(
            [
                row["model"],
                row["format"],
                f"{100 * row['macs']:.1f} % (1/{1 / row['macs']:.2f})",
                f"{max(row['parity'].values()):.1e}",
                *(f"{ms:.1f}" for ms in row["ms"].values()),
                f"{row['speedup']:.2f}x ({low:.2f} to {high:.2f})",
                "yes" if row["valid"] else "no: " + "; ".join(row["reasons"]),
            ]
        )
    yield _table(heads, lines)


def _by(rows: Rows, key: str) -> Iterator[tuple[str, Rows]]:
    for value in dict.fromkeys(row[key] for row in rows):
        yield value, [row for row in rows if row[key] == value]


def _mean(rows: Rows, key: str) -> str:
    found = [row[key] for row in rows if row.get(key) is not None]
    if not found:
        return "-"
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.2f}{spread}"


TABLES: dict[str, Callable[[Rows], Iterator[str]]] = {
    "exact": _exact,
    "vit": _trained,
    "widths": _trained,
    "efficientnet": _searched,
    "speed": _speed,
}
