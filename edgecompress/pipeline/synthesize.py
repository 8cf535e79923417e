"""`edgecompress synthesize`: images from what batch norms remember, where no photographs are at hand."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import torch

from edgecompress.core.memo import Memo
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.runs import NewRun
from edgecompress.core.store import write_record
from edgecompress.core.synthesis_results import (
    SYNTHESIS_FILE,
    ShardSummary,
    SynthesisResult,
    SynthesisSettings,
)
from edgecompress.core.types import Size
from edgecompress.core.unfinished import Start, resumable_run
from edgecompress.data.contact_sheet import save_contact_sheet
from edgecompress.data.synthetic_shards import read_images, read_shard, shard_files
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.shared_memo import own_runs
from edgecompress.pipeline.synthesis_shards import SynthesisJob, make_shards, sha256_of_weights
from edgecompress.train.norm_statistics import WatchedNetwork
from edgecompress.train.parallel import is_first, process_group
from edgecompress.train.synthesis_presets import pick_settings

CONTACT_SHEET = "contact-sheet.png"
SHEET_IMAGES = 128
IMAGES = 256
HOW = ("progress", "resuming")
"""Arguments that are no options of a run."""


def synthesize(
    model: str,
    *,
    weights: str | None = None,
    images: int = IMAGES,
    preset: str = "ours",
    iterations: int | None = None,
    batch_images: int | None = None,
    statistics: str | None = None,
    class_weight: float | None = None,
    smooth_weight: float | None = None,
    learning_rate: float | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    resuming: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SynthesisResult:
    """Makes images whose statistics at every batch norm are those the network remembers, and writes the run.

    The network does not change. Under `torchrun` batches are dealt out to processes; images do not depend on
    how many there are.

    Args:
        model: Source as for `compress`; this and the options from `input_size` to `classes`.
        weights: Checkpoint.
        images: How many.
        preset: Of `train/synthesis_presets.py`; the options to `learning_rate` change single settings.
        iterations: At most, per batch.
        batch_images: Made together, and in one file.
        statistics: Of every `image` by itself, or of the `batch`.
        class_weight: Of looking like a given class.
        smooth_weight: Of small differences between neighbouring pixels.
        learning_rate: The first one.
        input_size: Height and width.
        channels: Of the input.
        mean: Per channel.
        std: Per channel.
        classes: Of the output.
        seed: Makes the run repeatable.
        name: Of the run.
        runs_dir: Where runs are kept.
        overwrite: Replace the run of that name.
        resuming: Go on with the unfinished run of that name.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option or the model is wrong, or it has no batch norms.
    """
    options = {key: value for key, value in locals().items() if key not in HOW}
    if images < 1:
        raise ConfigError(f"--images {images}: at least 1 is needed")
    settings = pick_settings(
        preset,
        {
            "iterations": iterations,
            "batch_images": batch_images,
            "statistics": statistics,
            "class_weight": class_weight,
            "smooth_weight": smooth_weight,
            "learning_rate": learning_rate,
        },
    )
    settings = settings.model_copy(update={"batch_images": min(images, settings.batch_images)})
    loaded = load_model(
        model, weights=weights, classes=classes, input_size=input_size, channels=channels, mean=mean, std=std
    )
    network = WatchedNetwork(loaded.module)
    _check_norms(loaded, network, settings)
    sha256 = sha256_of_weights(loaded.module)
    job = SynthesisJob(loaded, network, settings, images, seed, sha256, progress)
    inputs = {loaded.ref.source: sha256} | Material(loaded, (), (), None).inputs
    with process_group(), own_runs(runs_dir) as own_dir:
        start = Start(own_dir, "synthesize", name, options, seed, inputs, overwrite, resuming and is_first())
        with resumable_run(start) as (run, memo):
            result = _result(job, make_shards(job, memo), run.path)
            if is_first():
                _write(job, result, run, memo)
    return result


def _check_norms(loaded: LoadedModel, network: WatchedNetwork, settings: SynthesisSettings) -> None:
    source, norms = loaded.ref.source, len(network.stored)
    if norms == 0:
        raise ModelError(
            f"{source}: has no batch norms that remember statistics, so there is nothing to make images of; "
            "give recovery real images instead (refit, mimic, distill and full all work with --data)"
        )
    beyond = [number for number in settings.skipped_norms if number >= norms]
    if beyond:
        raise ConfigError(
            f"preset {settings.preset!r}: leaves out batch norm {beyond[-1]}, and {source} has {norms}; "
            "it is for one network only, take --preset ours"
        )


def _result(job: SynthesisJob, shards: tuple[ShardSummary, ...], path: Path) -> SynthesisResult:
    return SynthesisResult(
        run=str(path),
        model=job.loaded.ref,
        model_sha256=job.model_sha256,
        norms=len(job.network.stored) - len(job.settings.skipped_norms),
        images=job.images,
        settings=job.settings,
        seed=job.seed,
        shards=shards,
        contact_sheet=CONTACT_SHEET,
        warnings=tuple(_warnings(job, shards)),
        seconds=round(sum(shard.seconds for shard in shards), 3),
    )


def _warnings(job: SynthesisJob, shards: tuple[ShardSummary, ...]) -> list[str]:
    said = []
    fresh = [one.name for one in job.network.stored if one.is_fresh]
    if job.loaded.random_weights:
        said.append("weights: random, as no checkpoint was given: the images mean nothing")
    elif fresh:
        which = f"{len(fresh)} of {len(job.network.stored)} batch norms"
        said.append(f"statistics: {which} never saw an image; {fresh[0]} has mean 0 and variance 1")
    diverged = [shard.file for shard in shards if shard.stopped == "diverged"]
    if diverged:
        said.append(
            f"diverged: {', '.join(diverged)}; the best images before that were kept; "
            "try a smaller --learning-rate"
        )
    return said


def _write(job: SynthesisJob, result: SynthesisResult, run: NewRun, memo: Memo) -> None:
    for shard in result.shards:
        kept = memo.path(shard.file)
        assert kept is not None
        _link(kept, run.directory / shard.file)
    first = -(-SHEET_IMAGES // job.settings.batch_images)
    shown = [read_images(read_shard(file)) for file in shard_files(run.directory)[:first]]
    save_contact_sheet(run.directory / CONTACT_SHEET, torch.cat(shown), job.loaded.ref.preprocess)
    write_record(run.directory / SYNTHESIS_FILE, result)


def _link(file: Path, name: Path) -> None:
    """Gives a file a second name; a copy where the file system has no links."""
    with contextlib.suppress(OSError):
        name.hardlink_to(file)
        return
    shutil.copyfile(file, name)
