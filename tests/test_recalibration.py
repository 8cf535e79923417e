"""Statistics of batch norms found anew, in sequence and in one pass: those of the images, however batched."""

import copy

import pytest
import torch
from small_nets import hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.methods.lowrank import split
from edgecompress.nets.families import Family, fold, pair_ops
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import module_of, op_of, replace_
from edgecompress.train.recalibration import recalibrate_, recalibrate_in_one_pass_, tracking_norms

STATISTICS = ("running_mean", "running_var")


def stale_net(*, seed=0):
    """A network whose norms remember other images than those of the tests."""
    return small_net(seed=seed).double()


def batches(*sizes, seed=3):
    return list(torch.split(images(sum(sizes), seed=seed, dtype=torch.float64), list(sizes)))


def statistics(network):
    return {
        name: (one.running_mean.clone(), one.running_var.clone())
        for name, one in tracking_norms(network).items()
    }


def seen_by_norms(network, x):
    """Means and biased variances of what the norms get of all images at once."""
    found, hooks = {}, []
    for name, norm in tracking_norms(network).items():

        def look(_, inputs, name=name):
            axes = [axis for axis in range(inputs[0].ndim) if axis != 1]
            found[name] = (inputs[0].mean(axes), inputs[0].var(axes, unbiased=False))

        hooks.append(norm.register_forward_pre_hook(look))
    with torch.no_grad():
        network(x)
    for hook in hooks:
        hook.remove()
    return found


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys() and ours
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-11)


def differ(ours, theirs):
    return any(
        not torch.allclose(a, b, rtol=1e-3)
        for name in ours
        for a, b in zip(ours[name], theirs[name], strict=True)
    )


def test_in_sequence_every_norm_gets_the_statistics_of_what_it_then_sees():
    network, parts = stale_net(), batches(20, 12)
    before = statistics(network)
    assert recalibrate_(network, parts) == 3
    assert_same(statistics(network), seen_by_norms(network, torch.cat(parts)))
    assert differ(statistics(network), before)


def test_batches_do_not_matter_and_a_second_time_changes_nothing():
    one, many = stale_net(), stale_net()
    recalibrate_(one, batches(32))
    recalibrate_(many, batches(5, 9, 17, 1))
    assert_same(statistics(one), statistics(many))
    before = statistics(one)
    recalibrate_(one, batches(32))
    assert_same(statistics(one), before)


def pairs_at_full_rank(network):
    """A copy with two layers in place of every convolution without groups, none of its rank cut away."""
    whole = copy.deepcopy(network)
    for name in ("narrow", "wide"):
        layer = whole.get_submodule(name)
        family, op = Family("S4"), op_of(layer)
        left, right = split(family, layer.weight.detach(), op, PLAIN)
        pair = nn.Sequential(*(module_of(one).double() for one in pair_ops(family, op, left.shape[2])))
        for one, kernel in zip(pair, fold(family, left, right, op), strict=True):
            one.weight.data.copy_(kernel)
        replace_(whole, name, pair)
    return whole.eval()


def test_at_full_rank_they_are_the_statistics_of_the_whole_network_and_not_what_it_remembered():
    network = stale_net()
    remembered, cut = statistics(network), pairs_at_full_rank(network)
    for one in (network, cut):
        recalibrate_(one, batches(16, 16))
    assert_same(statistics(cut), statistics(network))
    assert differ(statistics(cut), remembered)


def test_one_pass_is_exact_for_the_first_norm_and_only_close_for_the_others():
    exact, quick, parts = stale_net(), stale_net(), batches(8, 8, 8, 8)
    recalibrate_(exact, parts)
    assert recalibrate_in_one_pass_(quick, iter(parts)) == 3
    first, *others = statistics(exact)
    ours, theirs = statistics(quick), statistics(exact)
    assert_same({first: ours[first]}, {first: theirs[first]})
    assert differ({name: ours[name] for name in others}, {name: theirs[name] for name in others})
    for name in others:  # but close: within some percent of a deviation
        deviation = theirs[name][1].sqrt()
        assert ((ours[name][0] - theirs[name][0]).abs() < 0.3 * deviation).all()


def test_one_pass_over_a_single_batch_is_exact():
    exact, quick = stale_net(), stale_net()
    recalibrate_(exact, batches(32))
    recalibrate_in_one_pass_(quick, batches(32))
    for name, both in statistics(
        exact
    ).items():  # norms of the batch itself add their epsilon in another place
        torch.testing.assert_close(statistics(quick)[name], both, rtol=1e-6, atol=1e-9)


def without_statistics(network):
    state = state_of(network)
    return {name: value for name, value in state.items() if name.rpartition(".")[2] not in STATISTICS}


@pytest.mark.parametrize("renew", [recalibrate_, recalibrate_in_one_pass_])
def test_nothing_but_statistics_changes(renew):
    network = stale_net()
    before = without_statistics(network)
    renew(network, batches(16))
    now = without_statistics(network)
    assert now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in now)
    assert hooks_of(network) == 0 and not any(one.training for one in network.modules())
    assert all(one.track_running_stats for one in tracking_norms(network).values())


class Branching(nn.Module):
    """One norm is passed by, another is of vectors, a third keeps no statistics."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.unused, self.loose = nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)
        self.vectors, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.vectors(self.loose(self.norm(self.conv(x))).mean((2, 3))))


@pytest.mark.parametrize("renew", [recalibrate_, recalibrate_in_one_pass_])
def test_norms_that_see_nothing_keep_what_they_had_and_vectors_are_normed_as_well(renew):
    torch.manual_seed(0)
    network = Branching().double().eval()
    network.unused.running_mean.fill_(7.0)
    renew(network, batches(24))
    assert (network.unused.running_mean == 7.0).all() and network.loose.running_mean is None
    seen = seen_by_norms(network, torch.cat(batches(24)))
    for name in ("norm", "vectors"):
        torch.testing.assert_close(statistics(network)[name], seen[name], rtol=1e-6, atol=1e-9)


def test_a_network_without_norms_is_left_alone():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).double().eval()
    before = state_of(network)
    assert [one(network, batches(4)) for one in (recalibrate_, recalibrate_in_one_pass_)] == [0, 0]
    assert same_state(network, before) and not tracking_norms(network)
