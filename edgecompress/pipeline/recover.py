"""`edgecompress recover`: wins back what compression lost, one level after the other, and writes a run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.plugins import pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.recover_results import RecoverResult
from edgecompress.core.results import ModelSummary
from edgecompress.core.runs import work_directory
from edgecompress.core.store import sha256_of, write_record
from edgecompress.core.types import Plan
from edgecompress.core.unfinished import BEGUN_FILE, Start, resumable_run
from edgecompress.data.readers.synthetic import open_synthetic
from edgecompress.data.splits import Splits
from edgecompress.errors import ConfigError, DataError
from edgecompress.nets.artefact import WEIGHTS_FILE, load, read_plan, save_artefact
from edgecompress.nets.sources import LoadedModel
from edgecompress.pipeline.evaluate import batch_size
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.recover_images import has_labels, images_of_run, recovery_splits
from edgecompress.pipeline.recover_judge import SelectionJudge
from edgecompress.pipeline.recover_ladder import climb, deal_out, passed_by
from edgecompress.pipeline.recover_levels import LEVELS, Level
from edgecompress.pipeline.recover_parent import dense_network, run_meant
from edgecompress.pipeline.recover_recipes import RecoverPreset, pick_recipe
from edgecompress.pipeline.recover_scene import Scene
from edgecompress.pipeline.recover_synthetic import check_synthetic
from edgecompress.pipeline.shared_memo import own_runs, shared
from edgecompress.pipeline.train_images import TrainingCounts
from edgecompress.train.parallel import is_first, process_group
from edgecompress.train.variations import parse_variations

RESULT_FILE = "result.json"
MINUTES = 10.0
HOW = ("progress", "resuming")
"""Arguments that are no options of a run."""


def recover(
    run: str | None = None,
    *,
    level: str | None = None,
    only: bool = False,
    minutes: float = MINUTES,
    steps: int | None = None,
    preset: str = "ours",
    optimizer: str | None = None,
    lr: float | None = None,
    temperature: float | None = None,
    batch_images: int | None = None,
    augment: str | None = None,
    precision: str = "float32",
    synthetic: str | None = None,
    weights: str | None = None,
    data: str | None = None,
    report_data: str | None = None,
    training_images: int | None = None,
    selection_images: int | None = None,
    report_images: int | None = None,
    select_on_test: bool = False,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    resuming: bool = False,
    progress: Progress = NO_PROGRESS,
) -> RecoverResult:
    """Tries one level of recovery after the other on the network of a run, and writes the best as a new run.

    Each level starts from the best network so far and is kept where selection images say so. Report images
    are looked at when all is decided. Under `torchrun` every process takes a share of each batch.

    Args:
        run: Of `compress`, `search`, `prune` or `recover`: its name or path; None: the latest.
        level: The highest to try, of `LEVELS`; None: `full` where images have labels, else `distill`.
        only: Try this level alone.
        minutes: For all levels that train, together.
        steps: The same in steps, which do not depend on the speed of a machine; minutes do not count then.
        preset: Settings of these levels; the options to `precision` change single ones.
        optimizer: Of `edgecompress list optimizers`.
        lr: Largest learning rate.
        temperature: At which answers are compared.
        batch_images: Per step.
        augment: How images are varied, as `crop4,flip` or `zoom30,flip,mix`.
        precision: What networks compute in while they learn: `float32` or `bfloat16`.
        synthetic: Run of `synthesize`, for the level of that name.
        weights: Checkpoint of the dense network, where it is not where it was.
        data: Images to learn from; None: those of the run.
        report_data: Other images for the report.
        training_images: How many to learn from; all that are left when not given.
        selection_images: How many choose.
        report_images: How many are reported on.
        select_on_test: Choose with test images, and report on the others.
        seed: Makes the run repeatable.
        name: Of the new run.
        runs_dir: Where runs are kept.
        overwrite: Replace the run of that name.
        resuming: Go on with the unfinished run of that name.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option, the run, its dense network or the data is wrong.
    """
    path = run_meant(run, runs_dir)
    options = {key: value for key, value in locals().items() if key not in (*HOW, "path")}
    options["run"] = str(path)
    recipe = pick_recipe(
        preset,
        optimizer=optimizer,
        lr=lr,
        temperature=temperature,
        batch_images=batch_images,
        augment=augment,
        precision=precision,
    )
    for flag, value in (("--minutes", minutes), ("--steps", steps)):
        if value is not None and value <= 0:
            raise ConfigError(f"{flag} {value:g}: must be above 0")
    if level is not None:
        pick(LEVELS, level, what="level")
    plan = read_plan(path)
    parse_variations(augment or "none", plan.model.preprocess.size, labels=False)
    loaded = dense_network(plan, weights, path)
    counts = TrainingCounts(
        data, report_data, training_images, selection_images, report_images, seed, select_on_test
    )
    own = loaded.data or (None if synthetic is None else f"synthetic:{synthetic}")
    splits = recovery_splits(plan.model, own, counts, images_of_run(path))
    if synthetic is not None:
        open_synthetic(synthetic, plan.model.preprocess)  # whether they fit is known before all else
    levels = _planned(level, splits, only=only)
    job = _Job(path, plan, loaded, splits, levels, recipe, minutes, steps, synthetic, options, seed, progress)
    job.check()
    with process_group(), own_runs(runs_dir) as own_dir:
        goes_on = (resuming or _was_restarted(own_dir, name)) and is_first()
        start = Start(
            own_dir, "recover", name, options, seed, job.inputs, overwrite, goes_on, parent=path.name
        )
        return _run(start, job)


@dataclass(frozen=True)
class _Job:
    """The options of a recovery, understood."""

    path: Path
    plan: Plan
    loaded: LoadedModel
    """The dense network."""
    splits: Splits
    levels: tuple[Level, ...]
    recipe: RecoverPreset
    minutes: float
    steps: int | None
    synthetic: str | None
    options: dict[str, object]
    seed: int
    progress: Progress

    @property
    def material(self) -> Material:
        """The dense network and the images, to summarise networks with."""
        return Material(self.loaded, (), (), self.splits)

    @property
    def inputs(self) -> dict[str, str]:
        """SHA-256 of everything that was read, by its name."""
        weights = self.path / WEIGHTS_FILE
        return {**self.material.inputs, str(weights): sha256_of(weights)}

    @property
    def passed(self) -> dict[str, str]:
        """Levels that are not tried, each with the reason."""
        return passed_by(self.levels, self.splits.calibration.images, self.synthetic)

    def scene(self, memo: Memo) -> Scene:
        """Returns what levels work with."""
        tried = [level for level in self.levels if level.name not in self.passed]
        judge = SelectionJudge(
            self.loaded.module,
            self.splits.selection,
            has_labels(self.splits.selection.images),
            batch_size(self.plan.model.input_shape),
        )
        return Scene(
            self.plan,
            load(self.path),
            self.loaded.module,
            self.splits,
            has_labels(self.splits.calibration.images),
            judge,
            self.recipe,
            deal_out(60 * self.minutes, tried),
            None if self.steps is None else deal_out(self.steps, tried),
            self.synthetic,
            memo,
            self.options,
            self.inputs,
            self.seed,
            self.progress,
        )

    def check(self) -> None:
        """Makes sure that the highest level can work, before anything is begun.

        Raises:
            DataError: it needs labels and there are none.
            ModelError: it needs batch norms and there are none.
        """
        if self.levels[-1].needs_labels and not has_labels(self.splits.calibration.images):
            others = ", ".join(level.name for level in LEVELS.values() if not level.needs_labels)
            raise DataError(
                f"{self.splits.calibration.images.name}: no labels, which --level {self.levels[-1].name} "
                f"needs; levels that work without are: {others}"
            )
        if self.levels[-1].name == "synthetic":
            check_synthetic(self.scene(NO_MEMO))


def _run(start: Start, job: _Job) -> RecoverResult:
    with resumable_run(start) as (run, memo):
        result, network = _recovered(job, run.path, shared(memo))
        save_artefact(run.directory, result.plan, network)
        write_record(run.directory / RESULT_FILE, result)
    return result


def _recovered(job: _Job, path: Path, memo: Memo) -> tuple[RecoverResult, nn.Module]:
    scene = job.scene(memo)
    climbed = climb(scene, job.levels, job.passed)
    began = time.perf_counter()
    networks = {"dense": scene.dense, "before recovery": scene.start, "recovered": climbed.module}
    dense, before, after = (_summary(job, memo, network, what) for what, network in networks.items())
    seconds = {**climbed.seconds, "report": time.perf_counter() - began}
    result = RecoverResult(
        run=str(path),
        parent=job.path.name,
        level=job.levels[-1].name,
        preset=job.recipe.name,
        plan=job.plan,
        dense=dense,
        before=before,
        compressed=after,
        ladder=climbed.ladder,
        split=job.splits.summary,
        steps=job.material.warnings,
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
    return result, climbed.module


def _summary(job: _Job, memo: Memo, network: nn.Module, what: str) -> ModelSummary:
    return memo.record(what, ModelSummary, lambda: job.material.summary(network, job.progress, what=what))


def _planned(level: str | None, splits: Splits, *, only: bool) -> tuple[Level, ...]:
    """Returns the levels to try, the highest last."""
    usual = "full" if has_labels(splits.calibration.images) else "distill"
    highest = LEVELS[level or usual]
    if only:
        return (highest,)
    known = list(LEVELS.values())
    return tuple(one for one in known[: known.index(highest) + 1])


def _was_restarted(runs_dir: Path, name: str | None) -> bool:
    """Tells whether torchrun has started all processes again, after one of them died."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restarts > 0 and name is not None and (work_directory(runs_dir, name) / BEGUN_FILE).is_file()
