"""Predicted harm: exact where it is computed, between its neighbours where it is not."""

import itertools

import numpy as np
import pytest
import torch
from rank_problems import conv, kernel_of, linear

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.methods import lowrank, tucker2
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.metric import PLAIN, LayerMetric, kernel_error
from edgecompress.search import sensitivity
from edgecompress.search.contract import Options
from edgecompress.search.sensitivity import layer_candidates, predicted_errors

METHODS = {"lowrank": lowrank.METHOD, "tucker2": tucker2.METHOD}
LAYER = conv("layer", 12, 16, stride=2, size=9)


def metric_of(layer):
    torch.manual_seed(0)
    entries = layer.op.inputs * layer.op.kernel[0] * layer.op.kernel[1]
    rows = torch.randn(300, entries, dtype=torch.float64).cumsum(1)
    pulls = torch.randn(300, layer.op.outputs, dtype=torch.float64)
    return LayerMetric(rows.T @ rows / 300, pulls.T @ pulls / 300)


def options_of(layer, *families):
    found, reason = layer_candidates(layer, METHODS.values(), families)
    assert reason is None
    return Options(layer, found)


def predicted(options, metric, kernel=None):
    name = options.layer.name
    kernels = {name: kernel_of(options.layer) if kernel is None else kernel}
    (filled,) = predicted_errors([options], METHODS, kernels, {name: metric}, NO_PROGRESS)
    assert filled.candidates == options.candidates
    return filled.errors


def true_errors(options, metric):
    kernel = kernel_of(options.layer)
    fills = {name: method.factorise(kernel, options.layer, metric) for name, method in METHODS.items()}
    found = [equivalent_kernel(c.blocks[0], fills[c.method](c)) for c in options.candidates]
    return [kernel_error(kernel, one, metric) for one in found]


def families_of(options):
    """Yields the indices of the candidates of each family of one rank."""
    grouped = itertools.groupby(enumerate(options.candidates), key=lambda pair: pair[1].family)
    for _, members in grouped:
        indices = [index for index, _ in members]
        if len(options.candidates[indices[0]].ranks) == 1:
            yield indices


def test_small_layers_have_every_error_exact():
    options, metric = options_of(LAYER), metric_of(LAYER)
    assert predicted(options, metric) == pytest.approx(true_errors(options, metric), rel=1e-9)


def test_large_layers_are_exact_at_anchors_and_between_their_neighbours_elsewhere(monkeypatch):
    options, metric = options_of(LAYER, "S2", "S2T", "S4(1)", "S5(1)", "tucker2"), metric_of(LAYER)
    exact = true_errors(options, metric)
    monkeypatch.setattr(sensitivity, "CHEAP_ENTRIES", 0)
    monkeypatch.setattr(sensitivity, "ANCHORS", 4)
    found = predicted(options, metric)
    for indices in families_of(options):
        anchors = [indices[i] for i in np.unique(np.linspace(0, len(indices) - 1, 4).round().astype(int))]
        assert [found[i] for i in anchors] == pytest.approx([exact[i] for i in anchors], rel=1e-9)
        for low, high in itertools.pairwise(anchors):
            between = found[low : high + 1]
            assert min(found[low], found[high]) * (1 - 1e-9) <= min(between)
            assert max(between) <= max(found[low], found[high]) * (1 + 1e-9)
            assert list(between) == sorted(between, reverse=found[low] > found[high])
    several = [i for i, c in enumerate(options.candidates) if len(c.ranks) > 1]
    assert several
    assert [found[i] for i in several] == pytest.approx([exact[i] for i in several], rel=1e-9)


def test_interpolated_errors_are_close_to_true_ones(monkeypatch):
    options, metric = options_of(LAYER, "S2", "S4(1)"), metric_of(LAYER)
    exact = true_errors(options, metric)
    monkeypatch.setattr(sensitivity, "CHEAP_ENTRIES", 0)
    ratios = np.log(np.array(predicted(options, metric)) / np.array(exact))
    assert np.abs(ratios).max() < 0.3


def test_more_rank_never_looks_more_harmful():
    options = options_of(LAYER, "S2", "S2T", "S4", "S5")
    found = predicted(options, PLAIN)
    for indices in families_of(options):
        errors = [found[i] for i in indices]
        assert errors == sorted(errors, reverse=True)


def test_plain_errors_are_shares_of_the_layer():
    options = options_of(LAYER)
    found = predicted(options, PLAIN)
    larger = predicted(options, PLAIN, 1000 * kernel_of(LAYER))
    assert found == pytest.approx(larger, rel=1e-9)
    assert all(0 <= error <= 1 for error in found)


def test_errors_in_a_metric_keep_their_scale():
    options, metric = options_of(LAYER, "S2"), metric_of(LAYER)
    twice = LayerMetric(metric.input, 2 * metric.output)
    assert predicted(options, twice) == pytest.approx([2 * e for e in predicted(options, metric)], rel=1e-6)


def test_a_layer_of_zeros_does_no_harm():
    options = options_of(LAYER, "S2", "S4")
    for metric in (PLAIN, metric_of(LAYER)):
        assert set(predicted(options, metric, torch.zeros(16, 12, 3, 3, dtype=torch.float64))) == {0.0}


def test_families_are_chosen_by_name_or_by_kind():
    found = {c.family for c in options_of(LAYER, "S4").candidates}
    assert found > {"S4(1)", "S4(2)"}
    assert {family.partition("(")[0] for family in found} == {"S4"}
    assert {c.family for c in options_of(LAYER, "S4(2)", "S2").candidates} == {"S4(2)", "S2"}
    assert {c.method for c in options_of(LAYER).candidates} == {"lowrank", "tucker2"}


def test_without_a_candidate_there_is_a_reason():
    grouped = conv("grouped", 8, 8, groups=4)
    found, reason = layer_candidates(grouped, METHODS.values(), ())
    assert found == ()
    assert "groups=4" in reason
    found, reason = layer_candidates(linear("tiny", 2, 2), METHODS.values(), ())
    assert found == ()
    assert reason
    assert layer_candidates(LAYER, METHODS.values(), ("S9",))[0] == ()
