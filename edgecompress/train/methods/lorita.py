"""LoRITa: every weight is trained as a product of N factors with weight decay on each, and merged in the end.

Decay of the factors pulls singular values of the product to 0, so the merged network, which is the original
architecture, loses less to a low-rank search. Decay must be part of the gradient, as in `sgd` and `adam-l2`;
without decay nothing happens to the ranks.

Reference: Zhang et al., Structure-Preserving Network Compression via Low-Rank Induced Training Through
Linear Layers Composition, 2024 (arXiv 2405.03089).
"""

from __future__ import annotations

import copy
from functools import partial

from torch import nn

from edgecompress.errors import ConfigError, ModelError
from edgecompress.train.contract import Course, MethodOptions, TrainMethod, backward_once
from edgecompress.train.factored import factor_, factorable, merged
from edgecompress.train.methods import plain


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network whose weights are products; one factor leaves it as it is.

    Raises:
        ConfigError: there are no factors.
        ModelError: the network has nothing to factor.
    """
    if options.factors < 1:
        raise ConfigError(f"--factors {options.factors}: must be 1 or more; 2 and 3 are usual")
    if options.factors == 1:
        return plain.begin(network, options)
    places = factorable(network)
    if not places:
        raise ModelError("lorita: the network has no linear layer or ungrouped convolution that is trained")
    original = copy.deepcopy(network)
    factor_(network, places, options.factors, start=options.start, seed=options.seed)
    return Course(
        network,
        partial(backward_once, network),
        lambda: merged(network, places, original).eval(),
        keeps_last=True,  # ranks fall all the way, and the start, which may be trained, has them all
    )


METHOD = TrainMethod(
    "lorita",
    "weights as products of --factors factors, which weight decay makes low-rank",
    "Zhang et al., 2024 (arXiv 2405.03089)",
    begin,
)
