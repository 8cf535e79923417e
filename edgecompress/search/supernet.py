"""Gradient search over all candidates of all layers at once (SVD-NAS, mixed in weight space).

Minimised is L (C / C_dense) ** w by Adam on one score per candidate: L the task loss of a network whose
kernels are mixtures under Gumbel-softmax probabilities, C the expected cost, w the elasticity. As the
temperature falls the mixtures become choices. A logarithm does not move the minimum, so the steps follow
grad L / L + w grad C / C, whose size does not depend on w or on units.

Reference: Yu and Bouganis, SVD-NAS, WACV 2023, in which two candidates are sampled per step and layer; see
`svd_nas_paper.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.methods.contract import Fill
from edgecompress.search.contract import Choices, Problem
from edgecompress.search.design_space import prune
from edgecompress.search.image_pool import Batch, ImagePool, make_pool, task_loss
from edgecompress.search.mixed_layers import Supernet, make_supernet
from edgecompress.search.supernet_rarts import rarts_step_
from edgecompress.search.theta import Space, gumbel, pick, start_scores, step_generator
from edgecompress.search.theta_checkpoint import Standing
from edgecompress.search.theta_training import (
    Found,
    GradientSettings,
    Step,
    StepFacts,
    adam_,
    found_by,
    fresh_adam,
    identity_of,
    restored,
    train_,
)
from edgecompress.train.images import step_indices
from edgecompress.train.parallel import add_up_, own_share

__all__ = ["SHORT", "Found", "GradientSettings", "search_by_gradient"]

SHORT = GradientSettings(steps=100, batch_images=32, temperature_start=1.0, noise=0.3, lr=0.03)
"""For searches that start from predicted errors or a plan.

The paper's temperatures and noise are for tens of thousands of steps: in a hundred they only blur the start.
"""


def search_by_gradient(
    model: nn.Module,
    problem: Problem,
    fill: Fill,
    batches: Sequence[Batch],
    settings: GradientSettings,
    *,
    start: Choices | None = None,
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
    checkpoint: Path | None = None,
) -> Found:
    """Searches the problem's candidates for the best plan within its limit.

    `fill` gives the kernels of a candidate of any layer. `start` is a plan to begin near; without one the
    predicted errors say where. With `checkpoint` a search that was killed goes on from that file. Under
    `torchrun` every process calls this with the same arguments, within `parallel.process_group`.

    Raises:
        BudgetError: no plan of the pruned space is within the limit.
        ArtefactError: the checkpoint is of another search.
        DataError: there are no images.
    """

    def prepare(space: Space, pool: ImagePool) -> Step:
        copies = settings.optimiser == "rarts"
        supernet = make_supernet(model, space.problem, fill, pool.input_shape, fold=not copies)
        one_step = rarts_step_ if copies else gradient_step_

        def step(now: Standing, temperature: float) -> StepFacts:
            return one_step(now, supernet, space, pool, settings, temperature, seed=seed)

        return step

    return run_search(
        model,
        problem,
        batches,
        settings,
        prepare,
        lambda space: start_scores(space, start),
        start=start,
        seed=seed,
        progress=progress,
        checkpoint=checkpoint,
    )


def run_search(
    model: nn.Module,
    problem: Problem,
    batches: Sequence[Batch],
    settings: GradientSettings,
    prepare: Callable[[Space, ImagePool], Step],
    first_scores: Callable[[Space], Tensor],
    *,
    start: Choices | None,
    seed: int,
    progress: Progress,
    checkpoint: Path | None,
) -> Found:
    """Prunes, goes on from the checkpoint or starts, makes the steps of `prepare` and picks a plan."""
    space = pruned_space(problem, settings, start)
    pick(space, first_scores(space))  # a limit out of reach is known before any work
    pool = make_pool(model, batches)
    identity = identity_of(space, settings, seed, pool)
    standing = restored(checkpoint, identity) or fresh_adam(first_scores(space))
    step = prepare(space, pool)
    train_(standing, space, settings, step, progress=progress, checkpoint=checkpoint, identity=identity)
    return found_by(standing, space, settings)


def pruned_space(problem: Problem, settings: GradientSettings, start: Choices | None) -> Space:
    """Returns the candidates that take part."""
    return Space(
        prune(
            problem,
            gamma=settings.gamma,
            tau=settings.tau,
            max_families=settings.max_families,
            least_candidates=settings.least_candidates,
            keep=start,
        )
    )


def gradient_step_(
    standing: Standing,
    supernet: Supernet,
    space: Space,
    pool: ImagePool,
    settings: GradientSettings,
    temperature: float,
    *,
    seed: int,
) -> StepFacts:
    """Changes the scores by one step; every candidate of every layer gets its exact gradient."""
    indices = step_indices(len(pool), settings.batch_images, standing.step, seed)
    images, targets = pool.take(own_share(indices))
    noise = settings.noise * gumbel(standing.scores.shape, step_generator(seed, standing.step))
    scores = standing.scores.detach().requires_grad_()
    probabilities = space.probabilities(scores + noise, temperature)
    loss = task_loss(supernet.run(images, probabilities), targets) / len(indices)
    (by_loss,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (by_cost,) = torch.autograd.grad(space.expected_cost(probabilities).log(), scores)
    summed = torch.cat([by_loss, loss.detach().double()[None]])
    add_up_(summed)
    by_log_loss = summed[:-1] / summed[-1]
    adam_(standing, by_log_loss + standing.elasticity * by_cost, settings)
    return StepFacts(float(summed[-1]), by_log_loss, by_cost)
