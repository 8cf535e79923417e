"""Repeated runs from the first changed layer on: the same bits as plain runs, and nothing computed twice."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import hooks_of
from torch import nn

from edgecompress.nets.modules import replace_
from edgecompress.nets.prefix import PrefixCache

SHAPE = (3, 12, 12)


class Residual(nn.Module):
    """With everything that writes into the outputs of others."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = inputs == outputs
        self.down = (
            None if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.layer1 = nn.Sequential(Residual(6, 6), Residual(6, 6))
        self.layer2 = nn.Sequential(Residual(6, 8, 2), Residual(8, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu_(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


def unit(inputs, outputs, kernel, *, stride=1, groups=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class Inverted(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        wide = 2 * inputs
        layers = [unit(inputs, wide, 1), unit(wide, wide, 3, stride=stride, groups=wide)]
        self.conv = nn.Sequential(*layers, nn.Conv2d(wide, outputs, 1), nn.BatchNorm2d(outputs))
        self.added = inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.added else self.conv(x)


class MobileLike(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = [unit(3, 6, 3), Inverted(6, 6), Inverted(6, 8, 2), Inverted(8, 8), unit(8, 10, 1)]
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(10, 5))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(torch.softmax(q @ k.transpose(1, 2), -1) @ v)
        return x + self.mlp(self.norm2(x))


class ViTLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.ModuleList([Encoder(8), Encoder(8)])
        self.torch_block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.torch_block(x)[:, 0])


class Repeating(nn.Module):
    """One layer runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.last(self.twice(self.twice(self.first(x)).relu())).mean((2, 3)))


class Branching(Repeating):
    """The order of layers depends on the images."""

    def forward(self, x):
        order = [self.twice, self.last] if x.mean() > 0 else [self.last, self.twice]
        x = self.first(x)
        for layer in order:
            x = layer(x).relu()
        return self.head(x.mean((2, 3)))


NETS = (ResNetLike, MobileLike, ViTLike, Repeating, Branching)


def made(kind, seed=0):
    torch.manual_seed(seed)
    net = kind()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.2)
    return net.eval()


def layers_of(net):
    inside = ("torch_block",)  # those are read, not called
    plain = (nn.Conv2d, nn.Linear)
    return tuple(n for n, m in net.named_modules() if isinstance(m, plain) and not n.startswith(inside))


def batches_of(count=3, size=2):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, *SHAPE, generator=generator) + (0.5 - i) for i in range(count)]


def other(layer, seed):
    """Returns something of the same shape that computes something else; now and then of several layers."""
    torch.manual_seed(seed)
    new = copy.deepcopy(layer)
    first = next(m for m in new.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    nn.init.normal_(first.weight, std=0.3)
    return nn.Sequential(new, nn.Identity()) if seed % 3 == 0 else new


@torch.no_grad()
def plain(net, batches):
    return [net(batch) for batch in batches]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", NETS)
@given(
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 30), max_size=3), st.booleans(), st.integers(0, 99)), max_size=6
    ),
    max_bytes=st.sampled_from([0, 5_000, 40_000, 10**9]),
)
@settings(max_examples=25)
def test_any_sequence_of_changes_gives_the_bits_of_plain_runs(kind, steps, max_bytes):
    net, batches = made(kind), batches_of()
    names = layers_of(net)
    cache = PrefixCache(net, names, batches, max_bytes=max_bytes)
    for picks, keep, seed in steps:
        changed = {names[i % len(names)] for i in picks}
        before = {name: net.get_submodule(name) for name in changed}
        for i, name in enumerate(sorted(changed)):
            replace_(net, name, other(before[name], seed + i))
        assert same(cache.outputs(changed), plain(net, batches))
        if keep:
            cache.settle(changed)
        else:
            for name, layer in before.items():
                replace_(net, name, layer)
    assert same(cache.outputs(()), plain(net, batches))
    assert held(cache) <= max_bytes


def held(cache):
    """Returns the bytes of all outputs kept."""
    kept = {t.data_ptr(): t.nbytes for outputs in cache._kept.values() for t in outputs.values()}
    return sum(kept.values())


def runs_of(net, names, run):
    """Returns how often each layer computes while `run` runs."""
    counts = dict.fromkeys(names, 0)

    def counting(name, forward):
        def call(*args):
            counts[name] += 1
            return forward(*args)

        return call

    layers = {name: net.get_submodule(name) for name in names}
    for name, layer in layers.items():
        layer.forward = counting(name, layer.forward)
    try:
        run()
    finally:
        for layer in layers.values():
            del layer.forward
    return counts


@pytest.mark.parametrize("kind", [ResNetLike, MobileLike, ViTLike])
def test_layers_before_the_first_changed_one_do_not_compute(kind):
    net, batches = made(kind), batches_of()
    names = layers_of(net)
    order = [n for n, count in runs_of(net, names, lambda: plain(net, batches)).items() if count]
    order = forward_order(net, order, batches[0])
    cache = PrefixCache(net, names, batches)
    list(cache.outputs(()))
    for place, name in enumerate(order):
        counts = runs_of(net, names, lambda name=name: list(cache.outputs({name})))
        assert [counts[n] for n in order] == [0] * place + [len(batches)] * (len(order) - place)


def forward_order(net, names, batch):
    order = []
    hooks = [net.get_submodule(n).register_forward_pre_hook(lambda *_, n=n: order.append(n)) for n in names]
    plain(net, [batch])
    for hook in hooks:
        hook.remove()
    return order


@pytest.mark.parametrize("kind", [ResNetLike, MobileLike])
def test_batch_norms_and_activations_of_finished_blocks_do_not_run_either(kind):
    net, batches = made(kind), batches_of()
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    cache = PrefixCache(net, layers_of(net), batches)
    list(cache.outputs(()))
    counts = runs_of(net, norms, lambda: list(cache.outputs({layers_of(net)[-1]})))
    assert set(counts.values()) == {0}


def test_a_change_that_is_not_settled_leaves_nothing_behind():
    net, batches = made(ResNetLike), batches_of()
    cache = PrefixCache(net, layers_of(net), batches)
    expected = plain(net, batches)
    layer = net.layer1[1].conv1
    replace_(net, "layer1.1.conv1", other(layer, 1))
    assert not same(cache.outputs({"layer1.1.conv1"}), expected)
    replace_(net, "layer1.1.conv1", layer)
    assert same(cache.outputs(()), expected)


@pytest.mark.parametrize("kind", NETS)
def test_every_layer_can_be_tried_several_times(kind):
    net, batches = made(kind), batches_of()
    cache = PrefixCache(net, layers_of(net), batches)
    for name, seed in itertools.product(layers_of(net), (1, 3)):
        layer = net.get_submodule(name)
        replace_(net, name, other(layer, seed))
        assert same(cache.outputs({name}), plain(net, batches))
        replace_(net, name, layer)


@pytest.mark.parametrize("kind", NETS)
def test_outputs_that_others_write_into_stay_as_they_were(kind):
    net, batches = made(kind), batches_of()
    cache, expected = PrefixCache(net, layers_of(net), batches), plain(net, batches)
    for name in layers_of(net) * 2:
        assert same(cache.outputs({name}), expected)


def test_stopping_between_batches_is_harmless():
    net, batches = made(MobileLike), batches_of()
    cache = PrefixCache(net, layers_of(net), batches)
    list(itertools.islice(cache.outputs(()), 1))
    cache.outputs(()).close()
    assert same(cache.outputs(()), plain(net, batches))


def test_the_network_is_as_before_even_when_it_fails():
    net, batches = made(ResNetLike), batches_of()
    cache = PrefixCache(net, layers_of(net), batches)
    replace_(net, "fc", nn.Linear(3, 5))
    with pytest.raises(RuntimeError):
        list(cache.outputs({"fc"}))
    assert not any("forward" in vars(module) for module in net.modules())
    assert hooks_of(net) == 0


def test_layers_that_run_twice_or_in_any_order_are_never_kept():
    for kind in (Repeating, Branching):
        net, batches = made(kind), batches_of()
        cache = PrefixCache(net, layers_of(net), batches)
        list(cache.outputs(()))
        counts = runs_of(net, ["twice"], lambda cache=cache: list(cache.outputs({"last", "twice"})))
        assert counts["twice"] > 0


def test_without_memory_everything_computes():
    net, batches = made(ResNetLike), batches_of()
    cache = PrefixCache(net, layers_of(net), batches, max_bytes=0)
    list(cache.outputs(()))
    counts = runs_of(net, layers_of(net), lambda: list(cache.outputs({"fc"})))
    assert set(counts.values()) == {len(batches)}
