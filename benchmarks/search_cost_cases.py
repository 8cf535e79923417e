"""The cases of `bench_search_cost.py`: plain passes and steps of searches, ready to run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from edgecompress.core.types import Candidate
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
from edgecompress.search.theta_training import StepFacts, fresh_adam, steer_

CASES = ("plain", "weights", "ours", "ours-2", "published")
BATCHES = {"resnet20": 64, "resnet18": 16}
LEAST_CANDIDATES = 100
TEMPERATURE = 5.0
"""That of the first steps, when no rank is negligible."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A case of a network, ready to run."""

    run: Run
    candidates: tuple[int, ...] = ()
    """Per layer."""
    families: tuple[int, ...] = ()


def dense_problem(
    model: nn.Module, names: Sequence[str], shape: tuple[int, int, int], *, candidates: bool
) -> Problem:
    """Returns the problem of a network without errors, with every candidate or none."""
    layers, _ = find_layers(model, names, shape)
    offered = lowrank.METHOD.candidates
    options = tuple(Options(one, tuple(offered(one)) if candidates else ()) for one in layers)
    kernels = {one.name: weight_of(layer_named(model, one.name)).double() for one in layers}
    dense_cost = dense_shape_cost("macs")
    limit = 0.5 * sum(map(dense_cost, layers))
    return Problem(options, kernels, "macs", limit, 0.0, shape_cost("macs"), dense_cost)


def with_families(problem: Problem, count: int) -> Problem:
    """Keeps the first families of each layer, `count` or as many as it takes for enough candidates."""

    def few(options: Options) -> Options:
        kept: list[Candidate] = []
        names = list(dict.fromkeys(c.family for c in options.candidates))
        for taken, name in enumerate(names):
            if taken >= count and len(kept) >= LEAST_CANDIDATES:
                break
            kept += (c for c in options.candidates if c.family == name)
        return Options(options.layer, tuple(kept))

    return replace(problem, options=tuple(map(few, problem.options)))


def random_kernels(candidate: Candidate) -> Kernels:
    """Returns kernels of the right shapes."""
    return tuple(
        tuple(torch.randn(op.outputs, op.inputs // op.groups, *op.kernel) * 0.02 for op in branch)
        for branch in candidate.blocks[0].branches
    )


def plain_run(model: nn.Module, names: Sequence[str], pool: ImagePool, *, weights: bool) -> Run:
    """Returns forward and backward of the dense network, with or without gradients of target weights."""
    model.requires_grad_(False)
    wanted = [layer_named(model, name).get_parameter("weight") for name in names] if weights else []
    images = pool.batches[0].clone().requires_grad_()

    def run() -> None:
        for weight in wanted:
            weight.requires_grad_()
        loss = F.cross_entropy(model(images), pool.targets)
        torch.autograd.grad(loss, [images, *wanted])
        for weight in wanted:
            weight.requires_grad_(False)

    return run


def search_run(model: nn.Module, problem: Problem, pool: ImagePool, *, published: bool) -> Subject:
    """Returns a step of one of the searches."""
    settings = PUBLISHED if published else GradientSettings()
    space = Space(prune(problem, gamma=PUBLISHED.gamma) if published else problem)
    standing = fresh_adam(torch.zeros(sum(space.sizes), dtype=torch.float64))
    shape, batch = pool.input_shape, len(pool)
    settings = GradientSettings(batch_images=batch, weight_decay=settings.weight_decay)
    step: Callable[[], StepFacts]
    if published:
        sampled = sampled_net(model, space, random_kernels, shape)
        step = functools.partial(
            sampling_step_, standing, sampled, space, pool, settings, TEMPERATURE, seed=0
        )
    else:
        net = make_supernet(model, space.problem, random_kernels, shape)
        step = functools.partial(gradient_step_, standing, net, space, pool, settings, TEMPERATURE, seed=0)

    def run() -> None:
        facts = step()
        standing.step += 1
        steer_(standing, facts, space, TEMPERATURE)
        standing.scores.zero_()  # so that every step is like the first

    families = tuple(len({c.family for c in o.candidates}) for o in space.problem.options)
    return Subject(run, tuple(len(o.candidates) for o in space.problem.options), families)


def make_subjects(net: str, cases: Sequence[str]) -> dict[str, Subject]:
    """Builds some cases of a network."""
    torch.manual_seed(0)
    loaded = load_model(f"zoo:{net}")
    shape, model, count = loaded.ref.input_shape, loaded.module.eval(), BATCHES[net]
    pool = ImagePool((torch.randn(count, *shape),), torch.randint(0, 10, (count,)))
    searched = any(case not in ("plain", "weights") for case in cases)
    problem = dense_problem(model, loaded.targets, shape, candidates=searched)
    return {case: make_subject(model, problem, pool, case) for case in cases}


def make_subject(model: nn.Module, problem: Problem, pool: ImagePool, case: str) -> Subject:
    """Builds one case."""
    if case in ("plain", "weights"):
        names = [o.layer.name for o in problem.options]
        return Subject(plain_run(model, names, pool, weights=case == "weights"))
    if case == "published":
        return search_run(model, problem, pool, published=True)
    return search_run(model, with_families(problem, 2 if case == "ours-2" else 4), pool, published=False)
