"""What every compression method keeps, whichever decomposition it is."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from rank_problems import conv, kernel_of, linear
from torch import nn

from edgecompress import methods
from edgecompress.core.plugins import discover
from edgecompress.errors import UnsupportedLayer
from edgecompress.methods.contract import Method, saves
from edgecompress.nets.chains import equivalent_kernel, filled_block
from edgecompress.nets.metric import PLAIN, LayerMetric, kernel_error

METHODS = discover(methods, Method).values()
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)

LAYERS = (
    conv("plain", 6, 8, bias=True),
    conv("strided", 8, 6, stride=2, size=9),
    conv("flat", 5, 7, (1, 3), stride=2),
    conv("dilated", 4, 9, 5, dilation=(2, 1)),
    conv("few", 2, 24),
    conv("point", 10, 12, 1, stride=2, bias=True),
    linear("head", 9, 15),
)


def samples(method):
    """Yields layers with some candidates of each: first and last of every family, and a few between."""
    for layer in LAYERS:
        found = list(method.candidates(layer))
        for _, members in itertools.groupby(found, key=lambda candidate: candidate.family):
            family = list(members)
            for index in sorted({0, len(family) // 2, len(family) - 1}):
                yield layer, family[index]


@pytest.fixture(autouse=True)
def modules_in_float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def best_kernels(method, layer, candidate, *, kernel=None, metric=PLAIN):
    kernel = kernel_of(layer) if kernel is None else kernel
    return method.factorise(kernel, layer, metric)(candidate)


def best_kernel(method, layer, candidate, **options):
    """Returns the one kernel that the candidate amounts to."""
    return equivalent_kernel(candidate.blocks[0], best_kernels(method, layer, candidate, **options))


def input_of(layer):
    if layer.op.kind == "linear":
        return torch.randn(3, layer.op.inputs)
    return torch.randn(1, layer.op.inputs, *layer.in_size)


def random_metric(layer):
    taps = layer.op.kernel[0] * layer.op.kernel[1]
    patches = torch.randn(400, layer.op.inputs * taps).cumsum(1)
    gradients = torch.randn(400, layer.op.outputs).cumsum(1)
    return LayerMetric(patches.T @ patches / 400, gradients.T @ gradients / 400)


def counted_macs(module, x):
    """Returns the multiply-accumulates of the convolutions and linear layers a forward pass calls."""
    counts = []

    def count(layer, _, output):
        counts.append(output[0].numel() * layer.weight[0].numel())

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    module(x)
    return sum(counts)


@EVERY_METHOD
def test_a_candidate_costs_what_it_promised(method):
    assert list(samples(method)), "give LAYERS one this method can shrink"
    for layer, candidate in samples(method):
        module = filled_block(candidate.blocks[0], best_kernels(method, layer, candidate), None)
        assert sum(p.numel() for p in module.parameters()) == candidate.params
        assert counted_macs(module, input_of(layer)[:1]) == candidate.macs


@EVERY_METHOD
def test_every_candidate_saves_and_none_comes_twice(method):
    for layer in LAYERS:
        found = list(method.candidates(layer))
        assert all(saves(candidate, layer) for candidate in found)
        assert len({candidate.blocks for candidate in found}) == len(found)
        assert all((c.method, c.layers) == (method.name, (layer.name,)) for c in found)


@EVERY_METHOD
def test_the_equivalent_kernel_is_what_the_module_computes(method):
    for layer, candidate in samples(method):
        op, x = layer.op, input_of(layer)
        bias = torch.randn(op.outputs) if op.bias else None
        kernels = best_kernels(method, layer, candidate)
        computed = filled_block(candidate.blocks[0], kernels, bias)(x)
        kernel = equivalent_kernel(candidate.blocks[0], kernels)
        if op.kind == "linear":
            expected = F.linear(x, kernel[:, :, 0, 0], bias)
        else:
            expected = F.conv2d(x, kernel, bias, op.stride, op.padding, op.dilation)
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)


@EVERY_METHOD
@pytest.mark.parametrize("aware", [False, True], ids=["plain", "aware"])
def test_a_kernel_the_candidate_can_express_is_reproduced(method, aware):
    for layer, candidate in samples(method):
        if len(candidate.blocks[0].branches) > 1:
            continue  # a sum of two parts can be taken apart in many ways
        metric = random_metric(layer) if aware else PLAIN
        kernel = best_kernel(method, layer, candidate)
        again = best_kernel(method, layer, candidate, kernel=kernel, metric=metric)
        torch.testing.assert_close(again, kernel, rtol=1e-8, atol=1e-8)


@EVERY_METHOD
def test_within_a_family_more_rank_is_never_worse(method):
    for layer in LAYERS:
        kernel, found = kernel_of(layer), list(method.candidates(layer))
        fill = method.factorise(kernel, layer, PLAIN)
        errors = {c: kernel_error(kernel, equivalent_kernel(c.blocks[0], fill(c)), PLAIN) for c in found}
        for less, more in itertools.pairwise(found):
            if less.family == more.family and all(
                a <= b for a, b in zip(less.ranks, more.ranks, strict=True)
            ):
                assert errors[more] <= errors[less] + 1e-10


@EVERY_METHOD
def test_being_aware_of_the_metric_pays_in_it(method):
    plain = aware = 0.0
    for layer, candidate in samples(method):
        kernel, metric = kernel_of(layer), random_metric(layer)
        plain += kernel_error(kernel, best_kernel(method, layer, candidate), metric)
        aware += kernel_error(kernel, best_kernel(method, layer, candidate, metric=metric), metric)
    assert aware < plain


@EVERY_METHOD
def test_a_grouped_convolution_is_refused(method):
    with pytest.raises(UnsupportedLayer, match="groups=2"):
        list(method.candidates(conv("grouped", 8, 8, groups=2)))
