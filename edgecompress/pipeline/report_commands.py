"""The commands that made a run, its files, its sizes and its measurements, to be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgecompress.core.elastic_results import ElasticResult
from edgecompress.core.measurement import BenchResult
from edgecompress.core.results import ExportedFile
from edgecompress.core.runs import Run


def commands_again(
    path: Path,
    run: Run,
    files: tuple[ExportedFile, ...],
    sizes: ElasticResult | None,
    benches: tuple[BenchResult, ...],
) -> Iterator[str]:
    """Yields the commands in the order in which they have to be run."""
    place = shlex.quote(str(path))
    yield f"edgecompress {run.command} --config {place}"
    if files:
        yield " ".join(["edgecompress export", place, *_kinds(files)])
    if sizes is not None:
        yield " ".join(["edgecompress export", place, *_of_sizes(sizes)])
    for bench in benches:
        device = shlex.quote(bench.device)
        yield f"edgecompress bench {place} --device {device} --preset {bench.preset} --seed {bench.seed}"


def _kinds(files: Iterable[ExportedFile]) -> list[str]:
    made = {word for one in files for word in (one.format, one.precision)}
    return [f"--{word}" for word in ("onnx", "tflite", "fp16", "int8") if word in made]


def _of_sizes(sizes: ElasticResult) -> Iterator[str]:
    yield f"--sizes {','.join(one.name for one in sizes.sizes)}"
    if sizes.latency_table is not None:
        yield f"--latency-table {shlex.quote(sizes.latency_table)}"
    yield f"--rank-selection {shlex.quote(sizes.rank_selection)} --mode {sizes.mode}"
    if sizes.layers is not None:
        yield f"--layers {shlex.quote(sizes.layers)}"
    yield f"--norm-images {sizes.norm_images}"
    yield from _kinds(one for size in sizes.sizes for one in size.files)
