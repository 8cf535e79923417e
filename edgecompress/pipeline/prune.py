"""`edgecompress prune`: take channels and dimensions away from a model, without training, and write a run."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.prune_results import PrunedGroup, PruneResult
from edgecompress.core.runs import create_run
from edgecompress.core.store import write_record
from edgecompress.core.types import Group, Size
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.compress import RESULT_FILE
from edgecompress.pipeline.material import ImageOptions, Material, gather
from edgecompress.pipeline.narrowed import Narrowable, Narrowed, Readings, find_narrowable, realise_narrowed
from edgecompress.pipeline.preparation import BATCH_NORM, Setting, timed
from edgecompress.search import unit_scores
from edgecompress.search.elimination import eliminate
from edgecompress.search.readings import measure_readings
from edgecompress.search.score_contract import Scores, ScoreSettings, UnitScores
from edgecompress.search.unit_scores.magnitude import SCORES as MAGNITUDE
from edgecompress.search.unit_scores.reconstruction import SCORES as RECONSTRUCTION
from edgecompress.search.unit_selection import FLOORS, MULTIPLE, Kept, Scope, kept_by_ratio

REASONS_SHOWN = 3


def prune(
    model: str,
    *,
    dims: str | None = None,
    widths: str | None = None,
    scores: str | None = None,
    scope: str | None = None,
    multiple: int = MULTIPLE,
    floor: int | None = None,
    residual: bool = False,
    refit: bool = True,
    batch_norm: str = "auto",
    weights: str | None = None,
    data: str | None = None,
    report_data: str | None = None,
    calibration_images: int | None = None,
    selection_images: int | None = None,
    report_images: int | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> PruneResult:
    """Takes the given shares of dimensions and channels away and writes the run.

    `dims` and `widths` are shares as `40%` or `0.4`. Without a `scope`, groups of one kind are ranked
    together where the scores allow it. Labels are used for the report only.

    Raises:
        EdgeCompressError: an option, the model or the data is wrong, or nothing can go. Nothing is written.
    """
    options = {k: v for k, v in locals().items() if k != "progress"}
    rules = _rules(dims, widths, scores, scope, multiple, floor, batch_norm)
    loaded = load_model(
        model, weights=weights, classes=classes, input_size=input_size, channels=channels, mean=mean, std=std
    )
    images = ImageOptions(data, report_data, calibration_images, selection_images, report_images, seed)
    material = gather(loaded, (), images, images_needed=False)
    job = _Job(material, rules, _scoring(rules, material), refit, seed, progress)
    seconds: dict[str, float] = {}
    with timed(seconds, "groups"):
        found = find_narrowable(
            loaded, widths=rules.widths is not None, dims=rules.dims is not None, residual=residual
        )
    _check_found(found, rules, loaded.ref.source)
    with create_run(
        runs_dir,
        command="prune",
        name=name,
        options=options,
        seed=seed,
        inputs=material.inputs,
        overwrite=overwrite,
    ) as run:
        result, narrowed = _pruned(job, found, seconds, run.path)
        save_artefact(run.directory, result.plan, narrowed.module)
        write_record(run.directory / RESULT_FILE, result)
    return result


# Options


@dataclass(frozen=True)
class _Rules:
    """The options that say what goes, understood."""

    dims: float | None
    widths: float | None
    scores: Scores | None
    """None: what suits best."""
    scope: Scope | None
    """None: what suits the scores."""
    multiple: int
    floors: dict[str, int]
    batch_norm: str

    def ratio(self, group: Group) -> float | None:
        """Returns which share of a group's kind goes; hidden units count as channels where no dims go."""
        if group.kind == "channels":
            return self.widths
        return self.widths if self.dims is None else self.dims


def _rules(
    dims: str | None,
    widths: str | None,
    scores: str | None,
    scope: str | None,
    multiple: int,
    floor: int | None,
    batch_norm: str,
) -> _Rules:
    if dims is None and widths is None:
        raise ConfigError(
            "prune: nothing to take away was named; pass --widths 30% for channels or --dims 40% for "
            "dimensions of transformers, or both"
        )
    for flag, count in (("--multiple", multiple), ("--floor", floor)):
        if count is not None and count < 1:
            raise ConfigError(f"{flag} {count}: must be at least 1")
    known: tuple[Scope, ...] = get_args(Scope)
    scopes = {one: one for one in known}
    if scope is not None and scope not in scopes:
        raise ConfigError(f"scope {scope!r} is not known; known are: {', '.join(sorted(known))}")
    if batch_norm not in BATCH_NORM:
        raise ConfigError(f"batch norm {batch_norm!r} is not known; known are: {', '.join(BATCH_NORM)}")
    return _Rules(
        None if dims is None else parse_share(dims, flag="--dims"),
        None if widths is None else parse_share(widths, flag="--widths"),
        None if scores is None else pick(discover(unit_scores, Scores), scores, what="scores"),
        None if scope is None else scopes[scope],
        multiple,
        dict(FLOORS) if floor is None else dict.fromkeys(FLOORS, floor),
        batch_norm,
    )


def parse_share(text: str, *, flag: str) -> float:
    """Reads `40%` or `0.4`.

    Raises:
        ConfigError: the text is neither, or not above 0 and below 100 %.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if match is None:
        raise ConfigError(f"{flag} {text!r}: not understood; write 40% or 0.4")
    share = float(match[1]) / (100 if match[2] else 1)
    if not 0 < share < 1:
        meant = f"; did you mean {match[1]}%?" if not match[2] and 1 < share < 100 else ""
        raise ConfigError(f"{flag} {text!r}: the share that goes must be above 0 and below 100%{meant}")
    return share


def _scoring(rules: _Rules, material: Material) -> Scores:
    """Returns the rule by which units are ranked.

    Raises:
        ConfigError: images are needed and there are none.
    """
    source = material.loaded.ref.source
    has_images = material.splits is not None and len(material.splits.calibration) > 0
    if not has_images and rules.batch_norm == "correct":
        raise ConfigError(f"{source}: no images to correct batch norms with; pass --data")
    if rules.scores is None:
        return RECONSTRUCTION if has_images else MAGNITUDE
    if rules.scores.needs_images and not has_images:
        others = [one.name for one in discover(unit_scores, Scores).values() if not one.needs_images]
        raise ConfigError(
            f"{source}: no images, which scores {rules.scores.name!r} need; pass --data, "
            f"or --scores {'|'.join(sorted(others))}"
        )
    return rules.scores


def _check_found(found: Narrowable, rules: _Rules, source: str) -> None:
    """Raises ModelError where nothing of what was asked for can go."""
    kinds = {group.kind for group in found.groups}
    asked = {"--dims": rules.dims, "--widths": rules.widths}
    there = {"--dims": bool(kinds - {"channels"}), "--widths": "channels" in kinds or rules.dims is None}
    for flag in (flag for flag, ratio in asked.items() if ratio is not None):
        if not found.groups or not there[flag]:
            reasons = [f"{name or 'the model'} {why}" for name, why in found.refused]
            more = f" and {len(reasons) - REASONS_SHOWN} more" if len(reasons) > REASONS_SHOWN else ""
            because = ", ".join(reasons[:REASONS_SHOWN]) or "it has no layers of that kind"
            raise ModelError(f"{source}: nothing that {flag} could take away: {because}{more}")


# Work


@dataclass(frozen=True)
class _Job:
    material: Material
    rules: _Rules
    scoring: Scores
    refit: bool
    seed: int
    progress: Progress

    @property
    def scope(self) -> Scope:
        """What is ranked together; groups that cannot be compared are ranked each by itself."""
        return self.rules.scope or ("per_type" if self.scoring.comparable else "per_layer")


def _pruned(
    job: _Job, found: Narrowable, seconds: dict[str, float], path: Path
) -> tuple[PruneResult, Narrowed]:
    setting = job.material.setting({})
    with timed(seconds, "scores"):
        scores, *readings = _scored(job, found, setting)
    kept = _kept(job, found.groups, scores)
    narrowed = realise_narrowed(
        found.module,
        found.groups,
        kept,
        setting.calibration,
        setting.selection,
        readings=readings.pop,  # nothing else holds them
        make_up=job.refit,
        refit=job.refit,
        batch_norm=job.rules.batch_norm,
        seed=job.seed,
        progress=job.progress,
    )
    if not setting.calibration:
        narrowed.steps.append(("refit", "none, as there are no images: weights that stay are as they were"))
    return _result(job, found, kept, narrowed, seconds, path), narrowed


def _scored(job: _Job, found: Narrowable, setting: Setting) -> tuple[UnitScores, Readings | None]:
    """Returns the scores of all units and, where they are known anyway, the moments behind them."""
    batches = [(images, None) for images in setting.calibration]
    if job.scoring is not RECONSTRUCTION:
        rule = job.scoring.score
        return rule(found.module, found.groups, batches, ScoreSettings(), job.seed, job.progress), None
    readings = measure_readings(found.module, found.groups, batches, job.seed, job.progress)
    groups = job.progress.track(found.groups, "taking units away")
    return {group.name: eliminate(readings[group.name], group.width).scores for group in groups}, readings


def _kept(job: _Job, groups: tuple[Group, ...], scores: UnitScores) -> Kept:
    kept, rules = dict[str, list[int]](), job.rules
    for ratio in dict.fromkeys(rules.ratio(group) for group in groups):
        assert ratio is not None  # groups are looked for where a ratio is given
        own = [group for group in groups if rules.ratio(group) == ratio]
        kept |= kept_by_ratio(
            own, scores, ratio, scope=job.scope, floors=rules.floors, multiple=rules.multiple
        )
    if all(len(kept[group.name]) == group.width for group in groups):
        raise ConfigError(
            f"{job.material.loaded.ref.source}: no group would lose a unit, as widths are multiples of "
            f"{rules.multiple} above a floor; take a larger share away or lower --multiple and --floor"
        )
    return kept


def _result(
    job: _Job, found: Narrowable, kept: Kept, narrowed: Narrowed, seconds: dict[str, float], path: Path
) -> PruneResult:
    start = time.perf_counter()
    material = job.material
    dense = material.summary(material.loaded.module, job.progress, what="dense")
    after = material.summary(narrowed.module, job.progress, what="pruned")
    seconds = {**seconds, **narrowed.seconds, "report": time.perf_counter() - start}
    changed = {"attention_rewritten": found.rewritten, "narrowings": narrowed.narrowings}
    return PruneResult(
        run=str(path),
        plan=material.plan({}, ()).model_copy(update=changed),
        scores=job.scoring.name,
        scope=job.scope,
        dense=dense,
        compressed=after,
        groups=tuple(
            PrunedGroup(name=one.name, kind=one.kind, before=one.width, after=len(kept[one.name]))
            for one in found.groups
        ),
        refused=found.refused,
        split=material.split,
        steps=(*material.warnings, *narrowed.steps),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
