"""Feature mimicking: compressed layers learn to put out what the dense ones do, before batch norm.

Both networks see the same image, each with its own inputs at every layer, and outputs are compared layer by
layer (Yu and Bouganis, "SVD-NAS", WACV 2023). No labels are needed, and few images go a long way: every pixel
of every map teaches. What the dense network answers, and labels, can be part of the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from edgecompress.errors import ConfigError
from edgecompress.nets.modules import layer_named
from edgecompress.train.contract import Batch, Objective
from edgecompress.train.objectives import divergence, label_loss, with_digits

Rows = Mapping[str, Sequence[int]]
"""Outputs of the dense module that stayed, by name of a module that got narrower."""
LEAST_SCALE = 1e-12


@dataclass(frozen=True)
class Place:
    """A module of both networks whose outputs are compared."""

    name: str
    rows: tuple[int, ...] | None = None
    """Outputs of the dense module that the other one has, too; None: all."""
    scale: float = 1.0
    """Errors are divided by it."""


@dataclass(frozen=True)
class Mix:
    """What a loss consists of, all parts added up."""

    features: float = 0.0
    """Weight of the mean squared error of outputs, summed over places."""
    answers: float = 0.0
    """Weight of T^2 KL(dense | compressed) at temperature T."""
    labels: float = 0.0
    """Weight of the cross-entropy with labels."""
    temperature: float = 4.0
    relative: bool = False
    """Errors of features as shares of the dense outputs' variance, averaged over places: one weight then
    suits all networks."""

    def __post_init__(self) -> None:
        """Checks all numbers."""
        parts = (self.features, self.answers, self.labels)
        if min(parts) < 0 or not any(parts):
            raise ConfigError(f"weights {parts} of a loss: none may be below 0, and not all of them 0")
        if self.temperature <= 0:
            raise ConfigError(f"temperature {self.temperature:g}: must be above 0")


FEATURES = Mix(features=1.0)
"""SVD-NAS after training: the sum of squared errors, nothing else."""
FEW_SAMPLE = Mix(features=1.0, answers=0.95, labels=0.05, temperature=6.0)
"""SVD-NAS with few images: 0.95 * 36 * KL at T = 6, 0.05 * cross-entropy, and the squared errors."""


def mimicking(teacher: nn.Module, places: Sequence[Place], mix: Mix, *, smoothing: float = 0.0) -> Objective:
    """Returns the loss of a network that has modules at all `places`; `teacher` must be in eval mode."""
    weight = mix.features / len(places) if mix.relative and places else mix.features
    names = [place.name for place in places] if weight else []

    def objective(network: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad(), outputs_of(teacher, names) as wanted:
            said: Tensor = teacher(batch.images)
        with outputs_of(network, names) as made:
            answers: Tensor = network(batch.images)
        loss = with_digits(answers).new_zeros(())
        if mix.answers:
            loss = loss + mix.answers * divergence(answers, said, mix.temperature)
        if mix.labels:
            loss = loss + mix.labels * label_loss(answers, batch.labels, smoothing)
        for place in places if names else ():
            error = feature_error(made[place.name], wanted[place.name], place)
            loss = loss + weight * len(batch.images) * error / (place.scale if mix.relative else 1.0)
        return loss

    return objective


def feature_error(made: Tensor, wanted: Tensor, place: Place) -> Tensor:
    """Returns the mean squared difference of outputs at a place, over images and all else."""
    return (with_digits(made) - with_digits(_staying(wanted, place.rows))).square().mean()


def find_places(
    network: nn.Module,
    teacher: nn.Module,
    names: Iterable[str],
    batches: Sequence[Tensor],
    rows: Rows | None = None,
) -> tuple[Place, ...]:
    """Returns where two networks can be compared, with the variance of the dense outputs on some images.

    Left out are modules that one of them does not run exactly once, that return no tensor, or that have
    outputs of unlike shapes.
    """
    wanted = list(dict.fromkeys(names))
    shapes = [_shapes(one, wanted, batches[0][:1]) for one in (network, teacher)]
    staying = {name: None if rows is None or name not in rows else tuple(rows[name]) for name in wanted}
    found = [name for name in wanted if _fit(shapes[0].get(name), shapes[1].get(name), staying[name])]
    scales = _variances(teacher, found, staying, batches)
    return tuple(Place(name, staying[name], scales[name]) for name in found)


@contextlib.contextmanager
def outputs_of(network: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Yields the outputs of modules by name, as the network runs; no hook is left behind."""
    seen: dict[str, Tensor] = {}
    with _hooked(network, names, seen.__setitem__):
        yield seen


@contextlib.contextmanager
def _hooked(network: nn.Module, names: Iterable[str], note: Callable[[str, Tensor], None]) -> Iterator[None]:
    def hook(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        note(name, output)

    handles = [layer_named(network, name).register_forward_hook(partial(hook, name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _shapes(network: nn.Module, names: Sequence[str], image: Tensor) -> dict[str, torch.Size]:
    """Returns the shapes of outputs for one image, of modules that run once and return a tensor."""
    seen: dict[str, list[Tensor]] = {}
    known = dict(network.named_modules())
    with _hooked(network, [name for name in names if name in known], _collector(seen)):
        network(image)
    return {name: own[0].shape for name, own in seen.items() if len(own) == 1 and isinstance(own[0], Tensor)}


def _collector(seen: dict[str, list[Tensor]]) -> Callable[[str, Tensor], None]:
    return lambda name, output: seen.setdefault(name, []).append(output)


def _fit(made: torch.Size | None, wanted: torch.Size | None, rows: tuple[int, ...] | None) -> bool:
    if made is None or wanted is None or len(made) != len(wanted) or len(made) < 2:
        return False
    axis = _axis(len(wanted))
    width = wanted[axis] if rows is None else len(rows)
    return made == (*wanted[:axis], width, *wanted[axis + 1 :])


@torch.no_grad()
def _variances(
    teacher: nn.Module,
    names: Sequence[str],
    rows: Mapping[str, tuple[int, ...] | None],
    batches: Sequence[Tensor],
) -> dict[str, float]:
    """Returns the variance of dense outputs about the means of their channels, over all images."""
    sums: dict[str, Tensor] = {}
    for batch in batches:
        with outputs_of(teacher, names) as seen:
            teacher(batch)
        for name, output in seen.items():
            channels = _staying(output, rows[name]).double().movedim(_axis(output.ndim), 0).flatten(1)
            counted = torch.full_like(channels[:, 0], channels.shape[1])
            part = torch.stack([counted, channels.sum(1), channels.square().sum(1)])
            sums[name] = sums[name] + part if name in sums else part
    return {
        name: max(float((square / count - (total / count) ** 2).mean()), LEAST_SCALE)
        for name, (count, total, square) in sums.items()
    }


def _staying(output: Tensor, rows: tuple[int, ...] | None) -> Tensor:
    if rows is None:
        return output
    return output.index_select(_axis(output.ndim), torch.as_tensor(rows, device=output.device))


def _axis(ndim: int) -> int:
    """Returns where channels are: maps have them second, rows and tokens last."""
    return 1 if ndim == 4 else ndim - 1
