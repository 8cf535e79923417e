"""Mixing in weight space: the same kernel and the same gradients as with every candidate spelled out."""

import pytest
import torch
import torch.nn.functional as F
from rank_problems import conv, kernel_of, linear

from edgecompress.methods import branches, lowrank, tucker2
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.families import families_of
from edgecompress.nets.metric import PLAIN, LayerMetric
from edgecompress.search.mixture import make_mixture, mixed_kernel

METHODS = {"lowrank": lowrank.METHOD, "branches": branches.METHOD, "tucker2": tucker2.METHOD}
LAYERS = [
    conv("plain", 8, 12),
    conv("strided", 12, 8, stride=2, size=9),
    conv("point", 12, 16, 1),
    conv("oblong", 6, 8, (3, 5)),
    linear("head", 20, 12),
]


def filling(layer, kernel, metric=PLAIN):
    fills = {name: method.factorise(kernel, layer, metric) for name, method in METHODS.items()}
    return lambda candidate: fills[candidate.method](candidate)


def space_of(layer, *, methods=("lowrank",), metric=PLAIN, scale=None, **options):
    """Returns a mixture in float64 and the kernels of its places, dense first."""
    kernel = kernel_of(layer)
    fill = filling(layer, kernel, metric)
    candidates = [c for name in methods for c in METHODS[name].candidates(layer)]
    mixture = make_mixture(
        layer, kernel, candidates, fill, scale=scale, dtype=torch.float64, negligible=0.0, **options
    )
    explicit = torch.stack(
        [kernel, *(equivalent_kernel(c.blocks[0], fill(c)).reshape_as(kernel) for c in candidates)]
    )
    return mixture, explicit if scale is None else explicit * scale[:, None, None, None]


def output_of(layer, x, kernel):
    if layer.op.kind == "linear":
        return F.linear(x, kernel.flatten(1))
    return F.conv2d(x, kernel, stride=layer.op.stride, padding=layer.op.padding)


def input_of(layer):
    torch.manual_seed(1)
    shape = (layer.op.inputs,) if layer.op.kind == "linear" else (layer.op.inputs, *layer.in_size)
    return torch.randn(3, *shape, dtype=torch.float64)


def kernel_and_gradient(layer, mix, size):
    torch.manual_seed(2)
    weights = torch.randn(size, dtype=torch.float64).softmax(0).requires_grad_()
    kernel = mix(weights)
    output_of(layer, input_of(layer), kernel).square().sum().backward()
    return kernel.detach(), weights.grad


def assert_alike(layer, mixture, explicit):
    assert len(explicit) == mixture.size
    found = kernel_and_gradient(layer, lambda p: mixed_kernel(mixture, p), mixture.size)
    expected = kernel_and_gradient(layer, lambda p: torch.einsum("n,nfcij->fcij", p, explicit), mixture.size)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("small_bytes", [0, 1 << 30], ids=["factors", "whole kernels"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_kernel_and_gradients_equal_those_of_all_candidates_spelled_out(layer, small_bytes):
    mixture, explicit = space_of(layer, small_bytes=small_bytes)
    assert len(mixture.families) == (0 if small_bytes else len(families_of(layer.op)))
    assert_alike(layer, mixture, explicit)


def test_factors_that_are_best_in_another_metric_are_truncated_alike():
    layer = conv("layer", 6, 8)
    torch.manual_seed(0)
    inputs, pulls = torch.randn(200, 54, dtype=torch.float64), torch.randn(200, 8, dtype=torch.float64)
    metric = LayerMetric(inputs.T @ inputs / 200, pulls.T @ pulls / 200)
    assert_alike(layer, *space_of(layer, metric=metric, small_bytes=0))


def test_candidates_that_are_no_truncations_take_part():
    layer = conv("layer", 6, 8)
    mixture, explicit = space_of(layer, methods=("lowrank", "branches", "tucker2"), small_bytes=0)
    assert len(mixture.kernels) > 1
    assert mixture.families
    assert_alike(layer, mixture, explicit)


@pytest.mark.parametrize("small_bytes", [0, 1 << 30])
def test_a_scale_multiplies_the_output_channels(small_bytes):
    layer = conv("layer", 8, 12)
    scale = torch.linspace(-1, 2, 12, dtype=torch.float64)
    assert_alike(layer, *space_of(layer, scale=scale, small_bytes=small_bytes))


def test_all_weight_on_the_dense_layer_gives_the_dense_kernel():
    layer = conv("layer", 8, 12)
    mixture, explicit = space_of(layer, small_bytes=0)
    weights = torch.zeros(mixture.size, dtype=torch.float64)
    weights[0] = 1
    assert torch.equal(mixed_kernel(mixture, weights), explicit[0])


def test_negligible_ranks_change_the_kernel_by_no_more_than_their_weight():
    layer, kernel = conv("layer", 8, 12), kernel_of(conv("layer", 8, 12))
    candidates = list(lowrank.METHOD.candidates(layer))
    fill = filling(layer, kernel)
    exact, short = (
        make_mixture(layer, kernel, candidates, fill, dtype=torch.float64, small_bytes=0, negligible=n)
        for n in (0.0, 1e-2)
    )
    torch.manual_seed(0)
    weights = (6 * torch.randn(exact.size, dtype=torch.float64)).softmax(0)
    apart = (mixed_kernel(exact, weights) - mixed_kernel(short, weights)).norm()
    assert 0 < apart <= 1e-2 * len(exact.families) * kernel.norm()


def test_memory_of_factors_does_not_grow_with_the_number_of_ranks():
    layer, kernel = conv("layer", 16, 16), kernel_of(conv("layer", 16, 16))
    every = [c for c in lowrank.METHOD.candidates(layer) if c.family == "S4(1)"]
    fill = filling(layer, kernel)
    many = make_mixture(layer, kernel, every, fill, small_bytes=0)
    one = make_mixture(layer, kernel, every[-1:], fill, small_bytes=0)
    assert len(every) > 10
    assert many.nbytes == one.nbytes


def test_factors_in_half_precision_give_nearly_the_same_kernel_and_gradients():
    layer, kernel = conv("layer", 16, 16), kernel_of(conv("layer", 16, 16))
    candidates = list(lowrank.METHOD.candidates(layer))
    fill = filling(layer, kernel)
    found = []
    for factor_dtype in (None, torch.bfloat16):
        mixture = make_mixture(layer, kernel, candidates, fill, factor_dtype=factor_dtype, small_bytes=0)
        torch.manual_seed(0)
        weights = torch.randn(mixture.size).softmax(0).requires_grad_()
        mixed = mixed_kernel(mixture, weights)
        torch.manual_seed(1)
        (mixed * torch.randn_like(mixed)).sum().backward()
        found.append((mixed.detach(), weights.grad))
    for exact, rounded in zip(*found, strict=True):
        assert exact.dtype == rounded.dtype == torch.float32
        assert 0 < float((exact - rounded).norm()) < 0.01 * float(exact.norm())
