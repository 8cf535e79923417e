"""Runs on disk and records of reports, for tests of pages, pictures and lists."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from made_curves import ELASTIC, TRAIN
from test_report import COMPRESS, EXPORT, PRUNE
from test_search_report import FOUND

from edgecompress.core.measurement import Interval
from edgecompress.core.report_results import (
    CellView,
    LayerView,
    RecoveryStep,
    ReportResult,
    RunReport,
    SpectrumView,
    TimePair,
    TrainingView,
)
from edgecompress.core.runs import create_run
from edgecompress.core.store import write_record

INTERVAL = Interval(low=1.9, high=2.1, confidence=0.99)
EMULATED = TimePair(
    device="emulated-a76, table pixel4.json",
    how_known="emulated",
    before_ms=45.0,
    after_ms=29.5,
    speedup=1.525,
    verdict="faster",
    statement="1.525x faster (exact)",
    goal=True,
)
MEASURED = TimePair(
    device="local, AMD EPYC",
    how_known="measured",
    what="compressed.tflite, litert 2.3.0",
    file="compressed.tflite",
    before_ms=4.0,
    after_ms=2.0,
    before_interval=INTERVAL,
    after_interval=INTERVAL,
    speedup=2.0,
    speedup_interval=INTERVAL,
    verdict="faster",
    statement="2.0x faster (99 % interval 1.9 to 2.1)",
)


def layer(name, family="S2", *, ms=True):
    return LayerView(
        name=name,
        family=family,
        ranks=() if family == "dense" else (12,),
        in_size=(14, 14),
        params_before=1000,
        params_after=400,
        macs_before=2_000_000,
        macs_after=900_000,
        before_ms=0.2 if ms else None,
        after_ms=0.1 if ms else None,
    )


def bare(name="bare", **more):
    """A run with nothing but its figures."""
    fields = {
        "name": name,
        "path": f"runs/{name}",
        "command": "compress",
        "model": "zoo:tiny",
        "how": "",
        "created": datetime(2026, 11, 17, tzinfo=UTC),
        "seed": 0,
        "dense": COMPRESS.dense,
        "compressed": COMPRESS.compressed,
        "commands": (f"edgecompress compress --config runs/{name}",),
    }
    return RunReport(**fields | more)


def full(name="full", **more):
    """A run with something in every section."""
    fields = {
        "command": "search",
        "how": "search hybrid",
        "times": (EMULATED, MEASURED),
        "metric": "ms",
        "target": 30.0,
        "dense_cost": 44.5,
        "cost": 29.0,
        "met": True,
        "front": FOUND.front,
        "layers": (
            layer("stage1.0.conv1"),
            layer("stage1.0.conv2", "S4(8)"),
            layer("head", "dense", ms=False),
        ),
        "rest_ms": 0.5,
        "rest_after_ms": 0.5,
        "groups": PRUNE.groups,
        "slower": FOUND.slower,
        "rounds": FOUND.latency.rounds,
        "spectra": (
            SpectrumView(
                layer="stage1.0.conv1",
                family="S2",
                rank=2,
                max_rank=4,
                values=(1.0, 0.5, 0.25, 0.1),
                energy_kept=0.945,
            ),
        ),
        "recovery": (RecoveryStep(level="refit", outcome="kept", gain=1.25, minutes=2.5),),
        "training": TrainingView(
            method="decomposable",
            optimiser="sgd",
            epochs=TRAIN.epochs,
            best_epoch=3,
            stopped=None,
            values_used=13,
            values=24,
        ),
        "elastic": ELASTIC,
        "operations": ("none", "sep3"),
        "cells": (CellView(kind="normal", nodes=("sep3 of input 1",), probabilities=((0.3, 0.7),)),),
        "files": EXPORT.files,
        "split": COMPRESS.split,
        "left_alone": (("conv0", "grouped convolution"),),
        "notes": ("not measured: no phone",),
        "options": {"model": "zoo:tiny", "seed": 0},
    }
    return bare(name, **fields | more)


def of(*runs):
    return ReportResult(runs=runs)


def written_run(runs_dir: Path, command: str, result, *, file: str, name: str) -> Path:
    """Writes a run as its command does, without a network."""
    options = {"model": result.plan.model.source}
    with create_run(runs_dir, command=command, name=name, options=options, seed=0, inputs={}) as run:
        write_record(run.directory / file, result)
    return runs_dir / name


def three_runs(runs_dir: Path) -> None:
    written_run(runs_dir, "compress", COMPRESS, file="result.json", name="shrunk")
    written_run(runs_dir, "prune", PRUNE, file="result.json", name="narrowed")
    written_run(runs_dir, "search", FOUND, file="search.json", name="found")
