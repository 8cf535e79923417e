"""Figures of a network's sizes, and which networks are offered so that larger is never worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from edgecompress.core.elastic_results import SizeFigures
from edgecompress.core.types import Accuracy, Metric
from edgecompress.data.splits import Split
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.pipeline.elastic_job import Job
from edgecompress.pipeline.elastic_sizes import WantedSize
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.search.contract import Choices


def figures_of(job: Job, choices: Choices, network: nn.Module, what: str) -> SizeFigures:
    """Returns what a network costs and how good it is; `what` is shown while it is found out.

    Raises:
        ModelError: an output is not finite.
    """
    shape = job.subject.loaded.ref.input_shape
    timed = job.clock is not None
    return SizeFigures(
        macs=total_macs(profile(network, shape)),
        params=total_params(network),
        predicted_ms=job.prepared.problem("ms", math.inf).total(choices) if timed else None,
        score=_score(job, network, what),
        accuracy=_accuracy(job, network, job.subject.splits.report, what),
    )


def score_name(job: Job) -> Literal["top-1", "agreement"]:
    """Returns what scores are: right answers where the selection images have labels."""
    return "agreement" if job.subject.selection.images.labels() is None else "top-1"


def _score(job: Job, network: nn.Module, what: str) -> float:
    selection = job.subject.selection
    found = _accuracy(job, network, selection, what) if score_name(job) == "top-1" else None
    if found is not None:
        return found.top1
    size = batch_size(job.subject.loaded.ref.input_shape)
    ours, theirs = (_answers(one, selection, size) for one in (network, job.subject.loaded.module))
    return 100 * float((ours == theirs).double().mean())


def _accuracy(job: Job, network: nn.Module, split: Split | None, what: str) -> Accuracy | None:
    if split is None:
        return None
    size = batch_size(job.subject.loaded.ref.input_shape)
    return accuracy(network, split, size=size, progress=job.progress, what=f"{what}, {split.role}")


@torch.no_grad()
def _answers(network: nn.Module, split: Split, size: int) -> Tensor:
    return torch.cat([network(images).argmax(1) for images, _ in split.batches(size)])


def offered_networks(
    wanted: Sequence[WantedSize], figures: Mapping[str, SizeFigures], whole: SizeFigures
) -> dict[str, str]:
    """Returns whose network each size gets: the one with the best score of all within its budget.

    That is its own where no other is better. What fits a budget fits a larger one, so a larger size is never
    worse on the selection images.
    """
    return {one.name: _best_within(one, figures, whole) for one in wanted}


def _best_within(one: WantedSize, figures: Mapping[str, SizeFigures], whole: SizeFigures) -> str:
    metric = one.budget.metric
    limit = one.budget.limit(_cost(whole, metric))
    fitting = [name for name, each in figures.items() if name == one.name or _cost(each, metric) <= limit]
    return max(
        fitting, key=lambda name: (figures[name].score, name == one.name, -_cost(figures[name], metric))
    )


def _cost(one: SizeFigures, metric: Metric) -> float:
    if metric != "ms":
        return float(one.macs)
    assert one.predicted_ms is not None  # sizes in milliseconds have a table
    return one.predicted_ms
