"""What only the networks of a run tell: singular values of dense layers, and layers of pruned ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from edgecompress.core.report_results import LayerView, SpectrumView
from edgecompress.core.results import LayerCost
from edgecompress.core.types import Candidate, ModelRef, Plan
from edgecompress.errors import ArtefactError, EdgeCompressError
from edgecompress.methods import lowrank
from edgecompress.nets.artefact import load
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.consent import check_consent
from edgecompress.nets.families import family_named
from edgecompress.nets.profile import profile
from edgecompress.nets.sources import load_model
from edgecompress.search.spectra import singular_values

MOST_VALUES = 96
"""Of a spectrum that are kept: more cannot be told apart in a small figure."""


def spectra_of_plan(plan: Plan) -> tuple[SpectrumView, ...]:
    """Returns the spectrum of every dense layer that one pair of low-rank factors replaces.

    Raises:
        EdgeCompressError: the dense network is not at hand any more, or is another one.
    """
    chosen = [one for one in plan.choices if one.method == lowrank.METHOD.name]
    if not chosen:
        return ()
    dense = _dense(plan)
    return tuple(found for one in chosen for found in _spectra(dense, one))


def _spectra(dense: nn.Module, one: Candidate) -> Iterator[SpectrumView]:
    """Yields the spectrum of a choice; layers with weights of an unusual kind have none."""
    try:
        module, family = dense.get_submodule(one.layers[0]), family_named(one.family)
    except (AttributeError, EdgeCompressError):
        return
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() not in (2, 4):
        return
    kernel = weight.detach() if weight.dim() == 4 else weight.detach()[:, :, None, None]
    energies = singular_values(family, kernel).square().mean(0)
    total, largest = float(energies.sum()), float(energies.max())
    if total > 0:
        places = torch.linspace(0, len(energies) - 1, min(len(energies), MOST_VALUES)).round().long()
        values = (energies / largest).sqrt()[places]
        yield SpectrumView(
            layer=one.layers[0],
            family=one.family,
            rank=one.ranks[0],
            max_rank=len(energies),
            values=tuple(round(float(value), 5) for value in values),
            energy_kept=float(energies[: one.ranks[0]].sum()) / total,
        )


def pruned_layers(path: Path, plan: Plan) -> tuple[LayerView, ...]:
    """Returns the layers of a network before and after units were taken away.

    Raises:
        EdgeCompressError: one of the networks is not at hand any more.
    """
    if not plan.narrowings:
        return ()
    shape = plan.model.input_shape
    after = {row.name: row for row in profile(load(path), shape)}
    before = [row for row in profile(_dense(plan), shape) if row.kind in ("conv2d", "linear")]
    return tuple(_view(row, after[row.name]) for row in before if row.name in after)


def _view(before: LayerCost, after: LayerCost) -> LayerView:
    narrower = before.params != after.params
    return LayerView(
        name=before.name,
        family="narrower" if narrower else "dense",
        ranks=(_channels(after.in_shape), _channels(after.out_shape)) if narrower else (),
        in_size=(before.in_shape[1], before.in_shape[2]) if len(before.in_shape) == 3 else (1, 1),
        params_before=before.params,
        params_after=after.params,
        macs_before=before.macs,
        macs_after=after.macs,
    )


def _channels(shape: tuple[int, ...]) -> int:
    """Maps are channels first, tokens channels last."""
    return shape[0] if len(shape) == 3 else shape[-1]


def _dense(plan: Plan) -> nn.Module:
    ref = plan.model
    check_consent(ref.source, artefact=None)
    loaded = load_model(
        ref.source,
        weights=ref.weights,
        classes=ref.classes,
        input_size=ref.preprocess.size,
        channels=len(ref.preprocess.mean),
    )
    _check_same_weights(ref, loaded.ref)
    if plan.attention_rewritten:
        rewrite_attention_(loaded.module, ref.input_shape)
    return loaded.module


def _check_same_weights(then: ModelRef, now: ModelRef) -> None:
    if then.weights_sha256 != now.weights_sha256:
        raise ArtefactError(f"{then.weights or then.source}: the weights are not those of the run any more")
