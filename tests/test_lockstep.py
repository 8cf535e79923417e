"""Many forward passes in step: the same numbers as one after the other, each layer met once."""

import gc

import pytest
import torch
from small_nets import TARGETS, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.errors import ModelError
from edgecompress.nets.lockstep import run_in_step
from edgecompress.nets.modules import layer_named

BATCHES = [images(3, seed=0), images(3, seed=1), images(2, seed=2)]


def inputs_of(net, name, batches):
    """Returns what a layer gets in ordinary forward passes."""
    seen = []
    hook = layer_named(net, name).register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    with torch.no_grad():
        for batch in batches:
            net(batch)
    hook.remove()
    return seen


def test_layers_are_visited_once_each_in_forward_order():
    visited = []
    run_in_step([small_net()], list(reversed(TARGETS)), BATCHES, lambda name, _: visited.append(name))
    assert visited == list(TARGETS)


def test_inputs_are_those_of_ordinary_passes_of_every_network():
    nets, seen = [small_net(seed=0), small_net(seed=1)], {}
    run_in_step(nets, TARGETS, BATCHES, lambda name, inputs: seen.update({name: inputs}))
    for name in TARGETS:
        for net, row in zip(nets, seen[name], strict=True):
            expected = inputs_of(net, name, BATCHES)
            assert all(torch.equal(a, b) for a, b in zip(row, expected, strict=True))
            assert not any(x.requires_grad for x in row)


def test_a_change_counts_for_all_batches_from_that_layer_on():
    net, reference, seen = small_net(), small_net(), {}

    def visit(name, inputs):
        seen[name] = inputs[0]
        if name == "wide":
            net.wide.weight.mul_(-1)

    run_in_step([net], TARGETS, BATCHES, visit)
    before = {name: inputs_of(reference, name, BATCHES) for name in TARGETS}
    after = {name: inputs_of(net, name, BATCHES) for name in TARGETS}  # the change is in place by now
    for name in ("narrow", "wide"):
        assert all(torch.equal(a, b) for a, b in zip(seen[name], before[name], strict=True))
    for name in ("depthwise", "biased", "hidden"):
        assert all(torch.equal(a, b) for a, b in zip(seen[name], after[name], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(seen[name], before[name], strict=True))


def test_networks_and_gradient_mode_are_left_as_they_were():
    net = small_net()
    state = state_of(net)
    run_in_step([net], TARGETS, BATCHES, lambda *_: None)
    assert same_state(net, state)
    assert hooks_of(net) == 0
    assert torch.is_grad_enabled()


def test_without_layers_or_images_nothing_is_visited():
    visited = []
    run_in_step([small_net()], [], BATCHES, lambda name, _: visited.append(name))
    run_in_step([small_net()], TARGETS, [], lambda name, _: visited.append(name))
    assert visited == []


class Wayward(nn.Module):
    """Takes its layers in an order that depends on the image."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        first, second = (self.a, self.b) if x.mean() > 0 else (self.b, self.a)
        return second(first(x))


class Stopping(Wayward):
    def forward(self, x):
        x = self.a(x)
        return self.b(x) if x.shape[0] > 1 else x


@pytest.mark.parametrize("make", [Wayward, Stopping])
def test_an_order_that_depends_on_the_image_is_refused(make):
    net = make()
    batches = [torch.ones(2, 3, 4, 4), -torch.ones(1, 3, 4, 4)]
    with pytest.raises(ModelError, match="order of layers depends on the image") as error:
        run_in_step([net], ["a", "b"], batches, lambda *_: None)
    assert "\n" not in str(error.value)
    assert hooks_of(net) == 0


def test_networks_that_differ_in_their_order_are_refused():
    class Turned(Wayward):
        def forward(self, x):
            return self.a(self.b(x))

    with pytest.raises(ModelError, match="order of layers"):
        run_in_step([Wayward(), Turned()], ["a", "b"], [torch.ones(1, 3, 4, 4)], lambda *_: None)


def fail(name, _):
    if name == "biased":
        raise ZeroDivisionError


def test_a_failure_in_a_visit_comes_out_and_leaves_the_networks_usable():
    nets = [small_net(), small_net()]
    expected = nets[0](BATCHES[0])
    with pytest.raises(ZeroDivisionError):
        run_in_step(nets, TARGETS, BATCHES, fail)
    gc.collect()  # passes that never went on are gone
    visited = []
    assert [hooks_of(net) for net in nets] == [0, 0]
    assert torch.is_grad_enabled()
    assert torch.equal(nets[0](BATCHES[0]), expected)
    run_in_step(nets, TARGETS, BATCHES, lambda name, _: visited.append(name))
    assert visited == list(TARGETS)


def test_a_failure_in_a_network_comes_out_and_leaves_no_hooks():
    net = small_net()
    with pytest.raises(RuntimeError, match="channels"):
        run_in_step([net], TARGETS, [*BATCHES, torch.zeros(1, 5, 12, 12)], lambda *_: None)
    assert hooks_of(net) == 0


def test_an_unknown_name_is_refused_and_leaves_no_hooks():
    net = small_net()
    with pytest.raises(ModelError, match="nowhere"):
        run_in_step([net], [*TARGETS, "nowhere"], BATCHES, lambda *_: None)
    assert hooks_of(net) == 0
