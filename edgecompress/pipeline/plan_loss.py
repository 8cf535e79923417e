"""The true loss of plans that differ in a few layers, one after the other, with as little work as possible.

Three things make it cheap and none of them changes which plan is better: layers before the first changed
one do not run again (`nets/prefix.py`); the images the start did most harm to come first; and a plan that
has already lost on some of them is not run on the rest, as no image can make up for others: a divergence
is never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.freed_memory import give_back
from edgecompress.nets.modules import replace_
from edgecompress.nets.prefix import PrefixCache
from edgecompress.pipeline.evaluate import log_probabilities
from edgecompress.search.contract import Choices

CALLS_PER_CLEARING = 4
"""After so many, what was freed goes back to the system: outputs that are kept lie scattered among others."""
IMAGES_PER_STOP = 32
"""After so many images it is checked whether a plan has lost already."""


class PlanLoss:
    """Divergence of a plan's network from the dense model, per image.

    Calls have the meaning of `search.local.Loss`. The network given is changed from call to call.
    """

    def __init__(
        self,
        network: nn.Module,
        start: Choices,
        names: Sequence[str],
        block: Callable[[Choices, str], nn.Module],
        batches: Sequence[Tensor],
        dense: nn.Module,
    ) -> None:
        """Takes the network of the plan `start`; `block` makes what stands at a name under some choices."""
        self._network, self._standing, self._block = network, dict(start), block
        reference = log_probabilities(dense, batches)
        harm = _divergences(log_probabilities(network, batches), reference)
        order = harm.argsort(descending=True, stable=True)
        size = min(IMAGES_PER_STOP, len(batches[0]))
        self._reference = torch.split(reference[order], size)
        self._cache = PrefixCache(network, tuple(names), torch.split(torch.cat(list(batches))[order], size))
        self._settled = dict(start)
        self._images = len(order)
        self._calls = 0

    def __call__(self, choices: Choices, *, near: Choices, bar: float) -> float:
        """Returns the loss of a plan, or what it has lost when it reached `bar`."""
        self._calls += 1
        if self._calls % CALLS_PER_CLEARING == 0:
            give_back()
        self._cache.settle(differing(self._settled, near))
        self._settled = dict(near)
        self._place(choices)
        total = 0.0
        for logits, reference in zip(
            self._cache.outputs(differing(near, choices)), self._reference, strict=False
        ):
            harm = float(_divergences(logits.log_softmax(1), reference).sum()) / self._images
            if not total + harm < bar:  # also where it is no number
                return max(bar, total + harm)
            total += harm
        return total

    def _place(self, choices: Choices) -> None:
        for name in differing(self._standing, choices):
            replace_(self._network, name, self._block(choices, name))
        self._standing = dict(choices)


def differing(one: Choices, other: Choices) -> list[str]:
    """Returns the layers that two plans treat differently."""
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def _divergences(found: Tensor, reference: Tensor) -> Tensor:
    """Returns KL(reference || found) of each image; sums of rounded terms, so cut off at 0."""
    each = F.kl_div(found.double(), reference.double(), log_target=True, reduction="none")
    return each.sum(1).clamp(min=0)
