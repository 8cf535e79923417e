"""Synthetic images for a recovery: those given, those it has anyway, or some made now."""

from __future__ import annotations

import time
from pathlib import Path

from edgecompress.core.memo import Memo
from edgecompress.data.readers.synthetic import SyntheticSet, open_synthetic
from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.sources import LoadedModel
from edgecompress.pipeline.recover_scene import Scene
from edgecompress.pipeline.synthesis_shards import SynthesisJob, make_shards, sha256_of_weights
from edgecompress.train.norm_statistics import WatchedNetwork, has_statistics
from edgecompress.train.parallel import processes
from edgecompress.train.synthesis_presets import pick_settings

OURS = pick_settings("ours", {})
MOST_BATCHES = 8
"""Of images that are made now."""
SHARE = 0.5
"""Of the level's time that making them may take."""
OTHER_LEVELS = "refit, mimic, distill and full work with --data"


def synthetic_images(scene: Scene) -> tuple[Split, float]:
    """Returns synthetic images to train on, and how many of the level's seconds are left for that.

    Raises:
        ModelError: there are none, and no batch norms to make them of.
        ConfigError: several processes would have to make them.
        DataError: those given do not fit the model.
    """
    seconds = scene.seconds["synthetic"]
    if scene.synthetic is not None:
        return _all_of(Path(scene.synthetic), scene), seconds
    if isinstance(scene.splits.calibration.images, SyntheticSet):
        return scene.splits.calibration, seconds
    check_synthetic(scene)
    return _all_of(_made(scene), scene), (1 - SHARE) * seconds


def check_synthetic(scene: Scene) -> None:
    """Makes sure that there will be synthetic images.

    Raises:
        ModelError: there are none, and no batch norms to make them of.
        ConfigError: several processes would have to make them.
    """
    if scene.synthetic is not None or isinstance(scene.splits.calibration.images, SyntheticSet):
        return
    if not any(map(has_statistics, scene.dense.modules())):
        raise ModelError(
            f"{scene.plan.model.source}: has no batch norms that remember statistics, so no images can be "
            f"made of them; {OTHER_LEVELS}"
        )
    if processes() > 1:
        raise ConfigError(
            "level synthetic: several processes make images with `torchrun ... edgecompress synthesize`; "
            "pass its run as --synthetic"
        )


def _all_of(directory: Path, scene: Scene) -> Split:
    pool = open_synthetic(str(directory), scene.plan.model.preprocess).pool
    assert pool is not None  # synthetic images are not divided
    return Split(pool, tuple(range(len(pool))), "calibration")


def _made(scene: Scene) -> Path:
    """Makes images for half of the level's time, at least one batch, and returns their directory."""
    network = WatchedNetwork(scene.dense)
    assert scene.memo.directory is not None  # a recovery keeps what it does
    directory = scene.memo.directory / "synthetic"
    directory.mkdir(exist_ok=True)
    memo = Memo(directory)
    loaded = LoadedModel(scene.dense, scene.plan.model, (), None, random_weights=False)
    sha256 = sha256_of_weights(scene.dense)

    def job(batches: int) -> SynthesisJob:
        images = batches * OURS.batch_images
        return SynthesisJob(loaded, network, OURS, images, scene.seed, sha256, scene.progress)

    began = time.perf_counter()
    make_shards(job(1), memo)
    a_batch = scene.memo.number("synthetic batch", lambda: time.perf_counter() - began)
    more = (
        MOST_BATCHES
        if scene.steps is not None
        else int(SHARE * scene.seconds["synthetic"] / max(a_batch, 1e-3))
    )
    make_shards(job(max(1, min(MOST_BATCHES, more))), memo)
    return directory
