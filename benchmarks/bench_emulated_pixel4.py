"""How near do counted ARM instructions come to a real Pixel 4, on families of networks left out of the fit?

    pip install pytorchcv
    edgecompress device prepare emulated-a76
    python benchmarks/bench_emulated_pixel4.py --measured CSV --work DIR [--only NAME ...] > pixel4.jsonl
    python benchmarks/bench_emulated_pixel4.py --measured CSV --work DIR --write devices/emulated-a76.toml

The CSV is `tflite_cnn_e2e.csv` of qed-usc/mobile-ml-benchmark or a part of it: latencies of a Pixel 4 in
microseconds, one thread, TFLite 2.10. Every network of it is built, exported in float32 and int8 below DIR
and counted; what is there is not made again, so a run that was stopped goes on. Then a model of the
milliseconds is fitted for each core and kind of number, and judged by leaving out one family after the other,
beside FLOPs and instructions times one constant. Prints a JSON line per network and one per model; `--table`
prints them as Markdown instead. `--write` puts the models into a device file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pixel4_fit import GIGAFLOPS, Sample, fit, judge, left_out_ms
from pixel4_nets import export_float, export_int8

from edgecompress.core.counts import Dtype
from edgecompress.devices.emulated import count, find_prepared
from edgecompress.devices.files import load_device
from edgecompress.errors import EdgeCompressError

DEVICE = "emulated-a76"
CITATION = "qed-usc/mobile-ml-benchmark (EdgeSys 2024, MIT licence): Pixel 4, one thread, TFLite 2.10"
TIMEOUT_S = 3600.0
DTYPES: dict[Dtype, str] = {"float32": "float", "int8": "quant"}
CLUSTERS = {"prime": "1large", "gold": "1med"}
GROUPED = ("regnet", "resnext")
"""Left out: TFLite 2.10 ran grouped convolutions in its reference kernel, which LiteRT has left behind. The
measurements show it: 2.2 to 2.9 cycles per product, in float32 and int8 alike, no faster on four cores."""
FORMS: dict[str, dict[Dtype, tuple[str, ...]]] = {
    "ours": {
        "float32": ("loop_cycles", "bytes_stored", "weight_megabytes", "constant"),
        "int8": ("multiplies", "simd", "constant"),
    },
    "instructions": {"float32": ("instructions",), "int8": ("instructions",)},
    "FLOPs": {"float32": (GIGAFLOPS,), "int8": (GIGAFLOPS,)},
}
"""What the milliseconds are modelled from: our features, and one constant each to compare with.

In float32 the pipes, results written to memory and weights read from it; in int8 the vector instructions.
Ours were chosen by the error on families left out, among some two thousand sets of up to four counters. Many
are as good within 0.3 points; these are few and do not depend on what ran before, so that parts of a network
add up. The constant, once per inference, comes out as half a millisecond in float32 and in int8 alike;
latency tables take it off every block.
"""
MODEL = """\
[[count_models]]
cluster = "{cluster}"
dtype = "{dtype}"
coefficients_us = {{ {coefficients} }}
nets = [{nets}]
mean_error = {mean_error:.4f}
median_error = {median_error:.4f}
worst_error = {worst_error:.4f}
left_out = true
provisional = false
citation = "{citation}"
"""


@dataclass(frozen=True)
class Job:
    """The networks and where their files are."""

    rows: list[dict[str, str]]
    work: Path

    def file(self, name: str, dtype: Dtype) -> Path:
        """Returns the place of a network's file."""
        return self.work / dtype / f"{name}.tflite"


def tell(text: str) -> None:
    """Says how far it is, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def export_all(job: Job, converter: str) -> None:
    """Writes the files that are missing; networks that cannot be written are told and left out."""
    for dtype in DTYPES:
        (job.work / dtype).mkdir(parents=True, exist_ok=True)
    for row in job.rows:
        name, start = row["model"], time.monotonic()
        files = [job.file(name, dtype) for dtype in DTYPES]
        try:
            if not files[0].exists():
                export_float(name, files[0], converter)
            if not files[1].exists():
                export_int8(files[0], files[1])
        except EdgeCompressError as error:
            tell(f"{name}: left out: {error}")
        tell(f"exported {name} in {time.monotonic() - start:.0f} s")


def samples_of(job: Job, dtype: Dtype, cluster: str) -> list[Sample]:
    """Counts every file, the fast networks first; counts are kept in the user's cache."""
    prepared = find_prepared(load_device(DEVICE))

    def sample(row: dict[str, str]) -> Sample:
        start = time.monotonic()
        counts = count(job.file(row["model"], dtype), prepared, timeout_s=TIMEOUT_S)
        if time.monotonic() - start > 1:
            tell(f"counted {dtype} {row['model']} in {time.monotonic() - start:.0f} s")
        ms = float(row[f"pixel4|{CLUSTERS[cluster]}|{DTYPES[dtype]}|mean"]) / 1e3
        return Sample(row["model"], counts, float(row["FLOPS"]) / 1e9, ms)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(sample, (row for row in job.rows if job.file(row["model"], dtype).exists())))


def results(job: Job) -> Iterator[dict[str, Any]]:
    """Yields a row per network and then one for the model, for every core, kind of number and form."""
    for dtype in DTYPES:
        for cluster in CLUSTERS:
            samples = samples_of(job, dtype, cluster)
            for form, names in FORMS.items():
                yield from _judged(samples, form, names[dtype], {"dtype": dtype, "cluster": cluster})


def _judged(
    samples: list[Sample], form: str, names: Sequence[str], about: dict[str, str]
) -> Iterator[dict[str, Any]]:
    found = left_out_ms(samples, names)
    for one, ms in zip(samples, found, strict=True):
        told = {"model": one.name, "family": one.family, "measured_ms": one.measured_ms}
        error = float(ms / one.measured_ms - 1)
        yield about | {"form": form} | told | {"predicted_ms": float(ms), "error": error}
    summary = {"nets": [one.name for one in samples], "coefficients_us": fit(samples, names)}
    yield about | {"form": form} | summary | judge(samples, found)


def as_markdown(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of two tables: all models, and the networks on the prime core in float32."""
    yield "| numbers, core | model | nets | mean error | median | worst | within 10 % | rank correlation |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        if "nets" in row:
            errors = [f"{100 * row[name]:.1f} %" for name in ("mean_error", "median_error", "worst_error")]
            cells = [f"{row['dtype']}, {row['cluster']}", row["form"], str(len(row["nets"])), *errors]
            cells += [f"{100 * row['within_10_percent']:.0f} %", f"{row['rank_correlation']:.4f}"]
            yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| network | measured ms | modelled ms | error | int8 measured | int8 modelled | int8 error |"
    yield "|---|---|---|---|---|---|---|"
    ours = [row for row in rows if "model" in row and row["form"] == "ours" and row["cluster"] == "prime"]
    names = dict.fromkeys(row["model"] for row in ours)
    for name in names:
        by_dtype = {row["dtype"]: row for row in ours if row["model"] == name}
        yield f"| {name} | {' | '.join(_cells(by_dtype.get(dtype)) for dtype in DTYPES)} |"


def _cells(row: dict[str, Any] | None) -> str:
    if row is None:
        return " | | "
    return f"{row['measured_ms']:.2f} | {row['predicted_ms']:.2f} | {100 * row['error']:+.1f} %"


def write_models(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Replaces the models in a device file by ours."""
    text = file.read_text(encoding="utf-8")
    start, end = text.index("[[count_models]]"), text.index("[[facts]]")
    ours = [row for row in rows if "nets" in row and row["form"] == "ours"]
    file.write_text(text[:start] + "\n".join(map(_model, ours)) + "\n" + text[end:], encoding="utf-8")


def _model(row: dict[str, Any]) -> str:
    used = {name: each for name, each in row["coefficients_us"].items() if each > 0}
    coefficients = ", ".join(f"{name} = {each:.4g}" for name, each in used.items())
    nets = ", ".join(f'"{name}"' for name in row["nets"])
    told = {name: row[name] for name in ("cluster", "dtype", "mean_error", "median_error", "worst_error")}
    return MODEL.format(coefficients=coefficients, nets=nets, citation=CITATION, **told)


def main() -> None:
    """Exports, counts, fits and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path, required=True, help="the CSV")
    parser.add_argument("--work", type=Path, required=True, help="folder for the exported files")
    parser.add_argument("--converter", default="litert-torch")
    parser.add_argument("--only", nargs="*", help="names of networks")
    parser.add_argument("--table", action="store_true", help="Markdown instead of JSON lines")
    parser.add_argument("--write", type=Path, help="device file that gets the models")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with args.measured.open(encoding="utf-8") as stream:
        rows = sorted(csv.DictReader(stream), key=lambda row: float(row["pixel4|1large|float|mean"]))
    wanted = [row for row in rows if not args.only or row["model"] in args.only]
    job = Job([row for row in wanted if not row["model"].startswith(GROUPED)], args.work)
    export_all(job, args.converter)
    found = list(results(job))
    for line in as_markdown(found) if args.table else map(json.dumps, found):
        print(line)
    if args.write:
        write_models(found, args.write)


if __name__ == "__main__":
    main()
