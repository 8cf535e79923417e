"""The files of a run as one record that pages are made of, whatever command wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from edgecompress.core.elastic_results import ELASTIC_FILE, SIZES, ElasticResult
from edgecompress.core.genotype import INPUTS, KINDS, node_words
from edgecompress.core.prune_results import PruneResult
from edgecompress.core.recover_results import RecoverResult, Rung
from edgecompress.core.report_results import CellView, LayerView, RecoveryStep, RunReport, TrainingView
from edgecompress.core.results import CompressResult, ExportResult, LayerChange, ModelSummary
from edgecompress.core.runs import Run
from edgecompress.core.search_results import SearchResult
from edgecompress.core.store import read_record, read_text
from edgecompress.core.topology_results import TopologyResult
from edgecompress.core.train_results import TrainResult
from edgecompress.core.types import Plan
from edgecompress.errors import ArtefactError
from edgecompress.pipeline.bench_files import EXPORT_RECORD
from edgecompress.pipeline.report_commands import commands_again
from edgecompress.pipeline.report_times import bench_conditions, bench_times, read_benches, search_times

PLAN_FILE = "plan.json"
RESULT_FILES = ("search.json", "topology.json", "result.json")
LADDER_KEY = "recovery"
"""Under this a result may list what won accuracy back: level, gain in points, minutes."""
SECONDS_OF = {"refit": "repair"}
"""Stages whose time goes by another name."""


@dataclass(frozen=True)
class Reading:
    """A run as far as its files tell."""

    report: RunReport
    plan: Plan | None


def read_report(path: Path, run: Run) -> Reading:
    """Reads the result of a run, its exported files and its measurements.

    Raises:
        ArtefactError: it has no result, or a file is damaged.
    """
    file = next((path / name for name in RESULT_FILES if (path / name).is_file()), None)
    if file is None:
        raise ArtefactError(f"{path}: has no result ({', '.join(RESULT_FILES)}); there is nothing to report")
    raw = _read_json(file)
    fields = _fields_of(file, run)
    benches = read_benches(path)
    measured = [time for bench in benches for time in bench_times(bench)]
    exported = path / EXPORT_RECORD
    files = read_record(exported, ExportResult).files if exported.is_file() else ()
    cut = path / SIZES / ELASTIC_FILE
    sizes = read_record(cut, ElasticResult) if cut.is_file() else None
    report = RunReport(
        **{
            **fields,
            "name": run.name,
            "path": str(path),
            "command": run.command,
            "created": run.created,
            "seed": run.seed,
            "times": (*fields.get("times", ()), *measured),
            "recovery": _ladder(raw) or fields.get("recovery", ()),
            "files": files,
            "options": run.options,
            "versions": run.versions,
            "inputs": run.inputs,
            "conditions": bench_conditions(benches),
            "elastic": sizes,
            "commands": tuple(commands_again(path, run, files, sizes, benches)),
        }
    )
    return Reading(report, read_record(path / PLAN_FILE, Plan) if (path / PLAN_FILE).is_file() else None)


def _fields_of(file: Path, run: Run) -> dict[str, Any]:
    """Returns what a result says, by the names of `RunReport`."""
    readers: Mapping[tuple[str, str], Callable[[Path], dict[str, Any]]] = {
        ("search.json", "search"): lambda one: _of_search(read_record(one, SearchResult)),
        ("topology.json", "topology"): lambda one: _of_topology(read_record(one, TopologyResult)),
        ("result.json", "prune"): lambda one: _of_prune(read_record(one, PruneResult)),
        ("result.json", "recover"): lambda one: _of_recover(read_record(one, RecoverResult)),
        ("result.json", "train"): lambda one: _of_train(read_record(one, TrainResult)),
        ("result.json", "compress"): lambda one: _of_compress(read_record(one, CompressResult)),
    }
    return readers.get((file.name, run.command), _of_other)(file)


def _of_search(result: SearchResult) -> dict[str, Any]:
    latency = result.latency
    times = {} if latency is None else {one.name: one for one in latency.layers}
    layers = [_layer(one) for one in result.layers]
    timed = [
        one.model_copy(update={"before_ms": times[one.name].before_ms, "after_ms": times[one.name].after_ms})
        if one.name in times
        else one
        for one in layers
    ]
    return {
        **_common(result),
        "how": f"search {result.search}",
        "times": () if latency is None else tuple(search_times(latency)),
        "metric": result.metric,
        "target": result.target,
        "dense_cost": result.dense_cost,
        "cost": result.cost,
        "met": result.met,
        "reason": result.reason,
        "front": result.front,
        "layers": tuple(timed),
        **_rest_ms(result),
        "slower": result.slower,
        "rounds": () if latency is None else latency.rounds,
        "left_alone": result.plan.skipped,
        "notes": ()
        if latency is None or latency.not_measured is None
        else (f"not measured: {latency.not_measured}",),
    }


def _rest_ms(result: SearchResult) -> dict[str, float]:
    latency = result.latency
    if latency is None or not latency.layers:
        return {}
    return {
        "rest_ms": latency.dense_predicted_ms - sum(one.before_ms for one in latency.layers),
        "rest_after_ms": latency.predicted_ms - sum(one.after_ms for one in latency.layers),
    }


def _of_compress(result: CompressResult) -> dict[str, Any]:
    return {
        **_common(result),
        "how": "compress",
        "layers": tuple(map(_layer, result.layers)),
        "left_alone": result.plan.skipped,
    }


def _of_prune(result: PruneResult) -> dict[str, Any]:
    return {
        **_common(result),
        "how": f"prune by {result.scores} scores, {result.scope.replace('_', ' ')}",
        "groups": result.groups,
        "left_alone": result.refused,
    }


def _of_recover(result: RecoverResult) -> dict[str, Any]:
    return {
        **_common(result),
        "how": f"recover {result.parent} up to {result.level}, preset {result.preset}",
        "unrecovered": result.before,
        "recovery": tuple(map(_climbed, result.ladder)),
        "left_alone": result.plan.skipped,
        "notes": tuple(f"{what}: {outcome}" for what, outcome in result.steps),
    }


def _climbed(one: Rung) -> RecoveryStep:
    """Returns a level as a page shows it; of one that tried nothing there is nothing to keep."""
    tried = one.after is not None and one.level != "none"
    return RecoveryStep(
        level=one.level,
        outcome=one.outcome,
        gain=one.gain if tried else None,
        minutes=one.minutes,
        kept=one.kept if tried else None,
    )


def _of_train(result: TrainResult) -> dict[str, Any]:
    return {
        **_common(result),
        "recovery": (),  # what is said of a training is no stage of a repair
        "how": f"train by {result.method} with {result.optimiser}",
        "training": TrainingView(
            method=result.method,
            optimiser=result.optimiser,
            epochs=result.epochs,
            best_epoch=result.best_epoch,
            stopped=result.stopped,
            values_used=sum(used for _, used, _ in result.ranks_used),
            values=sum(values for _, _, values in result.ranks_used),
        ),
        "notes": tuple(f"{what}: {outcome}" for what, outcome in result.steps),
    }


def _common(
    result: SearchResult | CompressResult | PruneResult | RecoverResult | TrainResult,
) -> dict[str, Any]:
    return {
        "model": result.plan.model.source,
        "dense": result.dense,
        "compressed": result.compressed,
        "split": result.split,
        "seconds": result.seconds,
        "recovery": tuple(_stages(result.steps, result.seconds)),
    }


def _of_topology(result: TopologyResult) -> dict[str, Any]:
    genotype, latency = result.genotype, result.latency
    cells = zip(KINDS[genotype.space], genotype.kinds(), result.probabilities, strict=True)
    return {
        "model": f"{genotype.space} cells, {genotype.cells} of {genotype.channels} channels",
        "how": f"topology by {result.method}, {result.steps} steps",
        "dense": None,
        "compressed": result.network,
        "operations": result.operations,
        "cells": tuple(
            CellView(kind=kind, nodes=tuple(node_words(cell, INPUTS[genotype.space])), probabilities=edges)
            for kind, cell, edges in cells
        ),
        "split": result.split,
        "seconds": result.seconds,
        "notes": (
            *result.notes,
            f"weights: {result.weights}",
            *(
                ()
                if latency is None
                else (
                    f"predicted for {latency.device} ({latency.provenance}): {latency.predicted_ms:.4g} ms, "
                    f"{latency.cells_ms:.4g} of them in cells",
                )
            ),
        ),
    }


def _of_other(file: Path) -> dict[str, Any]:
    """Reads what every result has: two networks in figures, and the plan."""
    raw = _read_json(file)
    try:
        return {
            "model": Plan.model_validate(raw.get("plan")).model.source,
            "how": str(raw.get("method") or ""),
            "dense": ModelSummary.model_validate(raw["dense"]) if raw.get("dense") else None,
            "compressed": ModelSummary.model_validate(raw.get("compressed")),
            "seconds": TypeAdapter(dict[str, float]).validate_python(raw.get("seconds") or {}),
            "layers": tuple(_layer(LayerChange.model_validate(one)) for one in raw.get("layers") or ()),
        }
    except (ValidationError, TypeError) as error:
        said = " ".join(str(error).split())[:200]
        raise ArtefactError(f"{file}: not a result that can be reported: {said}") from None


def _layer(one: LayerChange) -> LayerView:
    return LayerView(**one.model_dump())


def _stages(steps: Iterable[tuple[str, str]], seconds: Mapping[str, float]) -> Iterator[RecoveryStep]:
    for step, outcome in steps:
        spent = seconds.get(step, seconds.get(SECONDS_OF.get(step, "")))
        yield RecoveryStep(level=step, outcome=outcome, minutes=None if spent is None else spent / 60)


def _ladder(raw: Mapping[str, Any]) -> tuple[RecoveryStep, ...]:
    """Returns the levels a result lists, as triples or as objects; others are left out."""
    listed = raw.get(LADDER_KEY)
    if not isinstance(listed, list):
        return ()
    return tuple(step for one in listed if (step := _rung(one)) is not None)


def _rung(one: JsonValue) -> RecoveryStep | None:
    if isinstance(one, list) and len(one) == 3:
        one = dict(zip(("level", "gain", "minutes"), one, strict=True))
    if not isinstance(one, dict):
        return None
    known = {key: one[key] for key in RecoveryStep.model_fields if key in one}
    try:
        return RecoveryStep.model_validate(known)
    except ValidationError:
        return None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{file}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ArtefactError(f"{file}: holds a {type(content).__name__}, not a result; was it edited?")
    return content
