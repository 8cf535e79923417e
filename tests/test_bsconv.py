"""Blueprint separable convolutions: what they compute, cost and begin with, and that runs of them reload."""

import copy
from itertools import pairwise

import pytest
import torch
from small_nets import INPUT_SHAPE, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.types import ModelRef, Plan, Preprocess
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.artefact import load, save_artefact
from edgecompress.nets.chains import equivalent_kernel, kernels_of
from edgecompress.nets.modules import block_layers, op_of
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.train import parallel
from edgecompress.train.blueprints import (
    full_block,
    full_kernels,
    middle_channels,
    orthonormality,
    subspace_block,
    subspace_kernels,
)
from edgecompress.train.contract import Batch, MethodOptions
from edgecompress.train.methods import bsconv_s, bsconv_u
from edgecompress.train.objectives import from_labels

METHODS = {"bsconv-u": bsconv_u, "bsconv-s": bsconv_s}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
REPLACED = ("narrow", "wide", "biased")
BATCH = Batch(images(6), torch.arange(6), 6, 0)


def begun(network, method, **options):
    return METHODS[method].begin(network, MethodOptions(input_shape=INPUT_SHAPE, **options))


class Bottleneck(nn.Module):
    """An inverted bottleneck with a squeeze-and-excite, as in MobileNetV3."""

    def __init__(self, outer, inner):
        super().__init__()
        self.expand, self.norm1 = nn.Conv2d(outer, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)
        self.project, self.norm3 = nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)

    def forward(self, x):
        y = self.norm2(self.depthwise(self.norm1(self.expand(x)).relu())).relu()
        y = y * self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return x + self.norm3(self.project(y))


def mobile_net():
    torch.manual_seed(0)
    body = (Bottleneck(6, 18), Bottleneck(6, 12))
    stem, head = nn.Conv2d(3, 6, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(6 * 144, 6))
    return nn.Sequential(stem, nn.BatchNorm2d(6), *body, head).eval()


# Blocks


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_block_computes_one_small_map_per_filter_scaled_by_input(stride, bias):
    """Compares the block with the convolution whose filters are w_nm B_n."""
    net = small_net().double()
    net.wide = nn.Conv2d(12, 16, 3, stride=stride, padding=1, bias=bias).double()
    course = begun(net, "bsconv-u")
    pointwise, depthwise = course.network.wide
    kernel = torch.einsum("nm,nij->nmij", pointwise.weight[:, :, 0, 0], depthwise.weight[:, 0])
    x = images(2, shape=(12, 9, 9), dtype=torch.float64)
    with torch.no_grad():
        want = nn.functional.conv2d(x, kernel, depthwise.bias, stride=stride, padding=1)
        torch.testing.assert_close(course.network.wide(x), want)
    assert pointwise.bias is None and (depthwise.bias is not None) == bias


def test_parameters_are_those_of_the_formula():
    op = _op_of_conv(12, 16)
    (course_u, course_s) = (begun(small_net(), method) for method in METHODS)
    u, s = ({one.layers[0]: one for one in course.choices} for course in (course_u, course_s))
    assert u["wide"].params == 16 * 12 + 16 * 9
    assert s["wide"].params == 4 * 12 + 16 * 4 + 16 * 9
    assert s["biased"].params == 4 * 16 + 20 * 4 + 20 * 9 + 20  # with its bias
    assert full_block(op).branches[0][1].groups == 16 and len(subspace_block(op, 4).branches[0]) == 3


def _op_of_conv(inputs, outputs):
    return op_of(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))


@pytest.mark.parametrize(
    ("inputs", "share", "middle"), [(3, 0.25, 3), (12, 0.25, 4), (64, 0.25, 16), (64, 1 / 6, 11)]
)
def test_the_middle_has_a_share_of_the_inputs_and_four_at_least(inputs, share, middle):
    assert middle_channels(inputs, share) == middle


@EVERY_METHOD
def test_promised_costs_are_those_of_the_network(method):
    net = small_net()
    before = profile(net, INPUT_SHAPE)
    params, macs = total_params(net), total_macs(before)
    dense = {one.name: one for one in before}
    course = begun(net, method)
    for choice in course.choices:
        macs += choice.macs - dense[choice.layers[0]].macs
        params += choice.params - dense[choice.layers[0]].params
    assert macs == total_macs(profile(course.network.eval(), INPUT_SHAPE))
    assert params == total_params(course.network)


# What is replaced, and what it begins with


@EVERY_METHOD
def test_convolutions_are_replaced_but_the_first_depthwise_and_pointwise_ones(method):
    net = small_net()
    net.hidden = nn.Sequential(nn.Unflatten(1, (20, 1, 1)), nn.Conv2d(20, 16, 1), nn.Flatten())
    course = begun(net, method)
    assert tuple(choice.layers[0] for choice in course.choices) == REPLACED
    assert {choice.method for choice in course.choices} == {method}


def test_a_kernel_of_blueprints_is_kept_exactly_and_others_as_well_as_possible():
    generator = torch.Generator().manual_seed(0)
    op = _op_of_conv(6, 8)
    scales = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    maps = torch.randn(8, 3, 3, generator=generator, dtype=torch.float64)
    blueprint = torch.einsum("nm,nij->nmij", scales, maps)
    block = full_block(op)
    torch.testing.assert_close(equivalent_kernel(block, full_kernels(blueprint, op)), blueprint)
    other = torch.randn(8, 6, 3, 3, generator=generator, dtype=torch.float64)
    lost = (equivalent_kernel(block, full_kernels(other, op)) - other).square().sum()
    values = torch.linalg.svdvals(other.flatten(2))
    torch.testing.assert_close(lost, values[:, 1:].square().sum())


def test_a_kernel_of_the_subspace_is_kept_and_a_wider_middle_loses_less():
    generator = torch.Generator().manual_seed(0)
    op = _op_of_conv(9, 7)
    kernel = torch.randn(7, 9, 3, 3, generator=generator, dtype=torch.float64)
    full = equivalent_kernel(full_block(op), full_kernels(kernel, op))

    def found(middle):
        kernels = subspace_kernels(kernel, op, middle)
        assert float(orthonormality(kernels[0][0])) < 1e-12
        return equivalent_kernel(subspace_block(op, middle), kernels)

    lost = [float((found(middle) - full).norm()) for middle in (4, 5, 6, 7, 9)]
    assert all(one > other for one, other in pairwise(lost[:4]))
    assert max(lost[3:]) < 1e-12  # 7 filters span no more, 9 inputs allow more
    low = torch.einsum("nr,rm,nij->nmij", *_low_rank_parts(generator))
    torch.testing.assert_close(
        equivalent_kernel(subspace_block(op, 4), subspace_kernels(low, op, 4)), low, rtol=1e-6, atol=1e-9
    )


def _low_rank_parts(generator):
    shapes = ((7, 4), (4, 9), (7, 3, 3))
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_a_network_of_bottlenecks_stays_and_what_narrows_is_kept_near_orthonormal():
    net = mobile_net()
    kinds = [type(module) for module in net.modules()]
    course = begun(net, "bsconv-s", orthonormal=1.0)
    assert course.choices == () and [type(module) for module in net.modules()] == kinds
    without = begun(copy.deepcopy(net), "bsconv-s", orthonormal=0.0)
    losses = [one.backward(from_labels(), BATCH) for one in (course, without)]
    narrowing = [net[2].project.weight, net[3].project.weight]
    wanted = sum(orthonormality(weight.detach()) for weight in narrowing)
    torch.testing.assert_close(losses[0] - losses[1], wanted)
    changed = [
        name
        for (name, one), other in zip(net.named_parameters(), without.network.parameters(), strict=True)
        if not torch.equal(one.grad, other.grad)
    ]
    assert changed == ["2.project.weight", "3.project.weight"]


def test_networks_without_suitable_layers_are_refused_with_a_reason():
    with pytest.raises(ModelError, match=r"bsconv-u: .* can be trained by bsconv-s"):
        begun(mobile_net(), "bsconv-u")
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(600, 6)).eval()
    with pytest.raises(ModelError, match=r"bsconv-s: .* neither"):
        begun(plain, "bsconv-s")


@pytest.mark.parametrize("options", [{"middle": 0.0}, {"middle": 1.5}, {"orthonormal": -1.0}])
def test_shares_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=f"--{next(iter(options))}"):
        begun(small_net(), "bsconv-s", **options)


# The penalty


def test_the_penalty_is_the_distance_from_orthonormal_rows():
    weight = torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)[:, :, None, None]
    # W W^T - I = [[1, 2], [2, 3]]
    assert float(orthonormality(weight)) == pytest.approx(18**0.5)
    weight = torch.randn(3, 5, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(orthonormality, weight.requires_grad_())
    turned = torch.linalg.qr(weight.detach().flatten(1).T).Q.T
    assert float(orthonormality(turned)) < 1e-12


def test_the_penalty_adds_its_gradient_to_that_of_the_loss():
    courses = [begun(small_net().double(), "bsconv-s", orthonormal=weight) for weight in (0.0, 0.1)]
    batch = Batch(BATCH.images.double(), BATCH.labels, 6, 0)
    for course in courses:
        with torch.no_grad():
            for name in REPLACED:
                course.network.get_submodule(name)[0].weight.mul_(1.3)
    losses = [course.backward(from_labels(), batch) for course in courses]
    first = [courses[1].network.get_submodule(name)[0].weight for name in REPLACED]
    wanted = 0.1 * sum(orthonormality(weight) for weight in first)
    torch.testing.assert_close(losses[1] - losses[0], wanted.detach())
    extra = torch.autograd.grad(wanted, first)
    for name, want in zip(REPLACED, extra, strict=True):
        plain, penalised = (course.network.get_submodule(name)[0].weight.grad for course in courses)
        torch.testing.assert_close(penalised - plain, want)


def test_of_several_processes_one_adds_the_penalty(monkeypatch):
    def loss_and_gradient(rank):
        monkeypatch.setattr(bsconv_s, "is_first", lambda: rank == 0)
        course = begun(small_net(), "bsconv-s", orthonormal=100.0)
        with torch.no_grad():
            course.network.wide[0].weight.mul_(2)
        loss = course.backward(from_labels(), BATCH)
        return float(loss), float(course.network.wide[0].weight.grad.norm())

    assert bsconv_s.is_first is parallel.is_first
    first, second = loss_and_gradient(0), loss_and_gradient(1)
    assert first[0] > second[0] + 100 and first[1] > second[1]


# Training and reloading


@EVERY_METHOD
def test_a_run_reloads_to_the_network_that_was_trained(method, tmp_path):
    course = begun(small_net(), method)
    optimiser = torch.optim.SGD(course.network.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimiser.zero_grad()
        course.network.train()
        losses.append(float(course.backward(from_labels(), BATCH)))
        optimiser.step()
    assert losses[-1] < losses[0]
    trained = course.finish()
    ref = ModelRef(source="small.py:model", classes=6, preprocess=Preprocess(size=(12, 12)))
    save_artefact(tmp_path, Plan(model=ref, choices=course.choices), trained)
    reloaded = load(tmp_path, model=small_net(seed=5))
    assert same_state(reloaded, state_of(trained))
    with torch.no_grad():
        torch.testing.assert_close(reloaded(BATCH.images), trained(BATCH.images))


@EVERY_METHOD
def test_blocks_are_ordinary_ones(method):
    course = begun(small_net(), method)
    for choice in course.choices:
        module = course.network.get_submodule(choice.layers[0])
        (ops,) = choice.blocks[0].branches
        assert len(block_layers(module)[0]) == len(ops)
        shapes = [tuple(kernel.shape[:2]) for kernel in kernels_of(module)[0]]
        assert shapes == [(op.outputs, op.inputs // op.groups) for op in ops]
