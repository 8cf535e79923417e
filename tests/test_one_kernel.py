"""Blocks that are trained as one convolution compute, learn and store what they would otherwise."""

import copy

import pytest
import torch
from torch import nn

from edgecompress.core.types import Block, Op
from edgecompress.nets.families import families_of, pair_ops
from edgecompress.nets.modules import block_module
from edgecompress.train.one_kernel import OneKernel, block_of, can_be_joined, divided, join_blocks_

DENSE = Op(kind="conv2d", inputs=8, outputs=12, kernel=(3, 3), padding=(1, 1), bias=True)
OPS = [
    DENSE,
    DENSE.model_copy(update={"stride": (2, 2)}),
    DENSE.model_copy(update={"kernel": (1, 1), "padding": (0, 0)}),
]
POINTWISE = Op(kind="conv2d", inputs=8, outputs=12)


def gradients(module, images):
    module.zero_grad()
    made = module(images)
    made.square().sum().backward()
    return made.detach(), [one.grad.clone() for one in module.parameters()]


def networks(*branches):
    torch.manual_seed(0)
    plain = nn.Sequential(block_module(Block(branches=branches)), nn.ReLU()).double()
    joined = copy.deepcopy(plain)
    return plain, joined, join_blocks_(joined, ["0"])


@pytest.mark.parametrize("op", OPS)
def test_every_family_computes_and_learns_the_same(op):
    images = torch.randn(3, 8, 9, 9, dtype=torch.float64)
    families = families_of(op)
    assert families
    for family in families:
        plain, joined, names = networks(pair_ops(family, op, 2))
        assert names == (("0",) if family.slices > 1 else ()), family
        for wanted, found in zip(gradients(plain, images), gradients(joined, images), strict=True):
            torch.testing.assert_close(found, wanted)


def test_branches_become_one_kernel_together():
    first, second = (next(f for f in families_of(DENSE) if f.name == name) for name in ("S4(2)", "S5(4)"))
    bare = DENSE.model_copy(update={"bias": False})
    plain, joined, names = networks(pair_ops(first, DENSE, 2), pair_ops(second, bare, 1))
    assert names == ("0",) and isinstance(joined[0], OneKernel)
    images = torch.randn(3, 8, 9, 9, dtype=torch.float64)
    for wanted, found in zip(gradients(plain, images), gradients(joined, images), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_divided_network_has_the_blocks_again_and_the_weights_of_now():
    _, joined, _ = networks(pair_ops(families_of(DENSE)[-1], DENSE, 2))
    with torch.no_grad():
        for one in joined.parameters():
            one.mul_(1.1)
    found = divided(joined)
    assert not any(isinstance(one, OneKernel) for one in found.modules())
    assert isinstance(joined[0], OneKernel)  # the training goes on
    images = torch.randn(2, 8, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(found(images), joined(images))
    assert [tuple(one.shape) for one in found.parameters()] == [
        tuple(one.shape) for one in joined.parameters()
    ]


def changed(op, **values):
    return op.model_copy(update=values)


TAPS = Op(kind="conv2d", inputs=12, outputs=12, kernel=(3, 3), padding=(1, 1), groups=4)
DIFFERENT = {
    "a bias between layers": (changed(POINTWISE, bias=True), TAPS),
    "taps after a stride": (changed(POINTWISE, stride=(2, 2)), TAPS),
    "taps twice": (changed(TAPS, inputs=12), TAPS),
    "padding without taps": (changed(POINTWISE, padding=(1, 1)), TAPS),
    "dilation": (POINTWISE, changed(TAPS, dilation=(2, 2))),
}


@pytest.mark.parametrize("why", DIFFERENT)
def test_blocks_that_are_no_single_convolution_stay_as_they_are(why):
    assert not can_be_joined(Block(branches=(DIFFERENT[why],)))
    assert can_be_joined(Block(branches=((POINTWISE, TAPS),)))


def test_other_modules_are_no_blocks():
    assert block_of(nn.Conv2d(3, 3, 1)) is None
    assert block_of(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())) is None
    assert block_of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3))) is None
