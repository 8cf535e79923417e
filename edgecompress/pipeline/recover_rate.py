"""How fast a level of a recovery may learn: as its recipe says, unless that ruins the network at once.

What small networks thrive on spoils large ones within ten steps, and no minutes bring that back. So a rate is
tried on a copy, for a few steps and down to zero as in the training itself.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

from torch import nn

from edgecompress.errors import ModelError
from edgecompress.pipeline.recover_recipes import Training
from edgecompress.train.contract import Course, Objective, backward_once
from edgecompress.train.images import TrainingImages
from edgecompress.train.loop import Judge, fit
from edgecompress.train.one_kernel import divided
from edgecompress.train.parallel import same_everywhere

SHARES = (1.0, 0.25, 0.0625, 0.015625)
"""Of a recipe's learning rate, in the order they are tried; the last one is for when all others fail."""
TRIED, LEAST_TRIED, MOST_TRIED = 0.04, 5, 60
"""Share of the training's steps that a try takes, and how many it has at least and at most."""
BEARABLE = 0.1
"""Share of its score that a network may lose in a try."""


def bearable_share(
    network: nn.Module,
    objective: Objective,
    images: TrainingImages,
    training: Training,
    steps: int,
    judge: Judge,
) -> float:
    """Returns the largest share of a learning rate by which a short training does not ruin a network.

    All processes of `torchrun` take part.
    """
    brief = min(max(round(TRIED * steps), LEAST_TRIED), MOST_TRIED)
    start = same_everywhere(judge(network))

    def bearable(share: float) -> bool:
        settings = replace(training, lr=share * training.lr).settings(brief)
        try:
            tried = fit(course_of(copy.deepcopy(network)), objective, images, settings).module
        except ModelError:  # the loss was not finite
            return False
        return same_everywhere(judge(tried)) >= start - BEARABLE * abs(start)

    return next((share for share in SHARES[:-1] if bearable(share)), SHARES[-1])


def course_of(network: nn.Module) -> Course:
    """Returns an ordinary training of a network whose blocks may run as one convolution."""
    return Course(network, partial(backward_once, network), lambda: divided(network).eval())
