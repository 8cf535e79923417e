"""How much harm each candidate does, predicted from moments: no forward pass per candidate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate, Layer, Record
from edgecompress.errors import UnsupportedLayer
from edgecompress.methods.contract import Fill, Method
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.metric import PLAIN, LayerMetric, kernel_error
from edgecompress.search.contract import Options

CHEAP_ENTRIES = 1 << 16
"""Kernels up to this size have every rank evaluated; larger ones at anchors, the rest interpolated."""
ANCHORS = 6


def layer_candidates(
    layer: Layer, methods: Iterable[Method], families: Sequence[str]
) -> tuple[tuple[Candidate, ...], str | None]:
    """Returns the candidates of all methods for a layer, and why there are none if there are none.

    `families` limits them to those names, or to kinds of families (`S4` means every `S4(g)`); empty
    means all.
    """
    found: list[Candidate] = []
    reasons: list[str] = []
    for method in methods:
        try:
            found += (c for c in method.candidates(layer) if _wanted(c.family, families))
        except UnsupportedLayer as error:
            reasons.append(str(error))
    if found:
        return tuple(found), None
    return (), reasons[0] if reasons else "no candidate is cheaper than the layer"


def _wanted(family: str, families: Sequence[str]) -> bool:
    parts = family.split("+")  # the branches of one candidate
    return not families or all(part in families or part.partition("(")[0] in families for part in parts)


def predicted_errors(
    options: Sequence[Options],
    methods: Mapping[str, Method],
    kernels: Mapping[str, Tensor],
    metrics: Mapping[str, LayerMetric],
    progress: Progress,
    *,
    memo: Memo = NO_MEMO,
) -> tuple[Options, ...]:
    """Returns the options with the error of every candidate filled in."""

    def errors(one: Options) -> _Errors:
        name = one.layer.name
        return _Errors(values=_errors(one, methods, kernels[name], metrics[name]))

    return tuple(
        Options(
            o.layer, o.candidates, memo.record(f"errors {o.layer.name}", _Errors, partial(errors, o)).values
        )
        for o in progress.track(options, "sensitivities")
    )


class _Errors(Record):
    values: tuple[float, ...]


def _errors(
    options: Options, methods: Mapping[str, Method], kernel: Tensor, metric: LayerMetric
) -> tuple[float, ...]:
    """Plain errors are relative to the layer: without statistics layers have no common scale."""
    whole = kernel_error(kernel, torch.zeros_like(kernel), metric)
    scale = 1 / whole if metric is PLAIN and whole > 0 else 1.0
    errors: list[float] = []
    for (name, _), group in itertools.groupby(options.candidates, key=lambda c: (c.method, c.family)):
        fill = methods[name].factorise(kernel, options.layer, metric)
        errors += _family_errors(list(group), fill, kernel, metric)
    return tuple(scale * error for error in errors)


def _family_errors(
    candidates: list[Candidate], fill: Fill, kernel: Tensor, metric: LayerMetric
) -> list[float]:
    def error(index: int) -> float:
        candidate = candidates[index]
        approximation = equivalent_kernel(candidate.blocks[0], fill(candidate))
        return kernel_error(kernel, approximation, metric)

    if kernel.numel() <= CHEAP_ENTRIES or len(candidates) <= ANCHORS or len(candidates[0].ranks) > 1:
        return [error(i) for i in range(len(candidates))]
    anchors = np.unique(np.linspace(0, len(candidates) - 1, ANCHORS).round().astype(int))
    logs = np.log([max(error(int(i)), np.finfo(float).tiny) for i in anchors])
    return [float(v) for v in np.exp(np.interp(np.arange(len(candidates)), anchors, logs))]
