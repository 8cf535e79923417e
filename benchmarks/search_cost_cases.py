"""The cases of `bench_search_cost.py`: plain passes and steps of searches, ready to run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from edgecompress.core.types import Candidate, Layer
from edgecompress.methods import lowrank
from edgecompress.nets.chains import Kernels
from edgecompress.nets.modules import find_layers, layer_named, weight_of
from edgecompress.nets.sources import load_model
from edgecompress.search.contract import Options, Problem, dense_shape_cost, shape_cost
from edgecompress.search.design_space import prune
from edgecompress.search.image_pool import ImagePool
from edgecompress.search.mixed_layers import make_supernet
from edgecompress.search.supernet import GradientSettings, gradient_step_
from edgecompress.search.svd_nas_paper import PUBLISHED, sampled_net, sampling_step_
from edgecompress.search.theta import Space
from edgecompress.search.theta_checkpoint import Standing
from edgecompress.search.theta_training import StepFacts, fresh_adam, steer_

CASES = ("plain", "weights", "ours", "ours-2", "published")
BATCHES = {"resnet20": 64, "resnet18": 16}
LEAST_CANDIDATES = 100
TEMPERATURE = 5.0
"""That of the first steps, when no rank is negligible."""

Run = Callable[[], object]
Offer = Callable[[Layer], Iterable[Candidate]]


@dataclass(frozen=True)
class Subject:
    """A case of a network, ready to run."""

    run: Run
    candidates: tuple[int, ...] = ()
    """Per layer."""
    families: tuple[int, ...] = ()


def make_problem(model: nn.Module, layers: Sequence[Layer], offered: Offer) -> Problem:
    """Returns a problem without errors whose limit is half of the layers' MACs."""
    kernels = {one.name: weight_of(layer_named(model, one.name)).double() for one in layers}
    options = tuple(Options(one, tuple(offered(one))) for one in layers)
    dense_cost = dense_shape_cost("macs")
    limit = 0.5 * sum(map(dense_cost, layers))
    return Problem(options, kernels, "macs", limit, 0.0, shape_cost("macs"), dense_cost)


def first_families(layer: Layer, count: int) -> Iterator[Candidate]:
    """Yields all ranks of the first families, `count` or as many as it takes for enough candidates."""
    given = 0
    by_family = itertools.groupby(lowrank.METHOD.candidates(layer), key=lambda c: c.family)
    for taken, (_, candidates) in enumerate(by_family):
        if taken >= count and given >= LEAST_CANDIDATES:
            return
        for candidate in candidates:
            given += 1
            yield candidate


def random_kernels(candidate: Candidate) -> Kernels:
    """Returns kernels of the right shapes."""
    return tuple(
        tuple(torch.randn(op.outputs, op.inputs // op.groups, *op.kernel) * 0.02 for op in branch)
        for branch in candidate.blocks[0].branches
    )


def plain_run(model: nn.Module, layers: Sequence[Layer], pool: ImagePool, *, weights: bool) -> Subject:
    """Returns forward and backward of the dense network, with or without gradients of target weights."""
    model.requires_grad_(False)
    wanted = [layer_named(model, one.name).get_parameter("weight") for one in layers if weights]
    images = pool.batches[0].clone().requires_grad_()

    def run() -> None:
        for weight in wanted:
            weight.requires_grad_()
        loss = F.cross_entropy(model(images), pool.targets)
        torch.autograd.grad(loss, [images, *wanted])
        for weight in wanted:
            weight.requires_grad_(False)

    return Subject(run)


def gradient_run(model: nn.Module, layers: Sequence[Layer], pool: ImagePool, families: int) -> Subject:
    """Returns a step of our search."""
    space = Space(make_problem(model, layers, lambda layer: first_families(layer, families)))
    net = make_supernet(model, space.problem, random_kernels, pool.input_shape)
    settings = GradientSettings(batch_images=len(pool))

    def step(standing: Standing) -> StepFacts:
        return gradient_step_(standing, net, space, pool, settings, TEMPERATURE, seed=0)

    return search_subject(space, step)


def published_run(model: nn.Module, layers: Sequence[Layer], pool: ImagePool) -> Subject:
    """Returns a step of the paper's search."""
    space = Space(prune(make_problem(model, layers, lowrank.METHOD.candidates), gamma=PUBLISHED.gamma))
    net = sampled_net(model, space, random_kernels, pool.input_shape)
    settings = replace(PUBLISHED, batch_images=len(pool))

    def step(standing: Standing) -> StepFacts:
        return sampling_step_(standing, net, space, pool, settings, TEMPERATURE, seed=0)

    return search_subject(space, step)


def search_subject(space: Space, step: Callable[[Standing], StepFacts]) -> Subject:
    """Returns a search whose every step is like the first."""
    standing = fresh_adam(torch.zeros(sum(space.sizes), dtype=torch.float64))

    def run() -> None:
        facts = step(standing)
        standing.step += 1
        steer_(standing, facts, space, TEMPERATURE)
        standing.scores.zero_()

    options = space.problem.options
    families = tuple(len({c.family for c in o.candidates}) for o in options)
    return Subject(run, tuple(len(o.candidates) for o in options), families)


def make_subjects(net: str, cases: Sequence[str]) -> dict[str, Subject]:
    """Builds some cases of a network."""
    torch.manual_seed(0)
    loaded = load_model(f"zoo:{net}")
    shape, model, count = loaded.ref.input_shape, loaded.module.eval(), BATCHES[net]
    layers, _ = find_layers(model, loaded.targets, shape)
    pool = ImagePool((torch.randn(count, *shape),), torch.randint(0, 10, (count,)))
    make: dict[str, Callable[[], Subject]] = {
        "plain": lambda: plain_run(model, layers, pool, weights=False),
        "weights": lambda: plain_run(model, layers, pool, weights=True),
        "ours": lambda: gradient_run(model, layers, pool, 4),
        "ours-2": lambda: gradient_run(model, layers, pool, 2),
        "published": lambda: published_run(model, layers, pool),
    }
    return {case: make[case]() for case in cases}
