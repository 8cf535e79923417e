"""Small trainings: a network of a few hundred weights, images whose brightness tells the class."""

from functools import partial

import numpy as np
import torch
from torch import nn

from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.splits import Split
from edgecompress.train.contract import MethodOptions
from edgecompress.train.images import TrainingImages
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.methods import plain
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule

SIDE, CLASSES = 8, 4
PREPROCESS = Preprocess(size=(SIDE, SIDE), mean=(0.5,), std=(0.25,))


def tiny_net(*, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * SIDE * SIDE // 4, CLASSES),
    )


def pixels_and_labels(count, *, seed=0):
    """Returns grey images whose brightness is that of their class, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    noise = rng.normal(0, 20, (count, SIDE, SIDE))
    return (noise + 40 + 50 * labels[:, None, None]).clip(0, 255).astype(np.uint8), labels


def split_of(count, *, seed=0, labelled=True, role="calibration"):
    pixels, labels = pixels_and_labels(count, seed=seed)
    images = ArraySet("made", pixels, labels if labelled else None, PREPROCESS)
    return Split(images, tuple(range(count)), role)


def training_images(count=48, *, batch=16, changes=(), seed=0, labelled=True):
    return TrainingImages(split_of(count, labelled=labelled), batch, changes, seed)


def settings_of(steps, *, optimiser="sgd", lr=0.05, schedule="cosine", **more):
    return TrainSettings(
        steps=steps,
        schedule=parse_schedule(schedule),
        optimiser=optimiser,
        optimiser_settings=OptimiserSettings(lr=lr, weight_decay=1e-4),
        **more,
    )


def course_of(network, **options):
    return plain.begin(network, MethodOptions(**options))


def right(network, *, split=None):
    """Returns the share of held-out images a network gets right, in percent."""
    images, labels = (split or split_of(40, seed=9)).tensors()
    with torch.no_grad():
        return 100 * float((network(images).argmax(1) == labels).float().mean())


fit_labels = partial(fit, objective=from_labels())
