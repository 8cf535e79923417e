"""Networks `prune` cannot narrow exactly: one line with the module's name, exit code 1, and no run."""

import pytest
import torch
from cli_calls import check_one_line_error, run

from edgecompress.nets.artefact import load
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.prune import prune

NETS = '''
import torch
import torch.nn.functional as F
from torch import nn


class Tokens(nn.Module):
    """Tokens of an image, something in between, and a head."""

    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.inner, self.head = nn.Conv2d(3, 32, 8, stride=8), inner, nn.Linear(32, 7)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((x + self.inner(x)).mean(1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class TiedMlp(Mlp):
    """An auto-encoder: the second weight is the first one, transposed."""

    def forward(self, x):
        return F.linear(F.gelu(self.fc1(x)), self.fc1.weight.T)


class TwoTied(Mlp):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(32, 64)
        self.other.weight = self.fc1.weight

    def forward(self, x):
        return super().forward(x) + self.other(x).mean(-1, keepdim=True)


class FunctionalMlp(Mlp):
    def forward(self, x):
        return self.fc2(F.gelu(F.linear(x, self.fc1.weight, self.fc1.bias)))


class Attention(nn.Module):
    """Queries and keys of each head may be as wide as values, or not."""

    def __init__(self, heads=4, key=8, value=8):
        super().__init__()
        self.num_heads, self.key, self.value = heads, key, value
        self.qkv = nn.Linear(32, heads * (2 * key + value))
        self.proj = nn.Linear(heads * value, 32)

    def forward(self, x):
        widths = [self.num_heads * each for each in (self.key, self.key, self.value)]
        parts = self.qkv(x).split(widths, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        weights = (q @ k.mT * self.key**-0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Windowed(nn.Module):
    """Attention with a decay by distance, which no plain attention has."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj = 4, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1], dtype=x.dtype)
        weights = (q @ k.mT * 8**-0.5 - (places[:, None] - places).abs()).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Maps(nn.Module):
    """A convolution, something in between, and a head."""

    def __init__(self, inner, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.inner, self.head = nn.Conv2d(3, 32, 3), inner, nn.Linear(width, 7)

    def forward(self, x):
        return self.head(self.inner(self.stem(x)).mean((2, 3)))


class Shuffle(nn.Module):
    def forward(self, x):
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class Competing(nn.Module):
    """Squeeze and excitation whose channels share one softmax."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Conv2d(32, 32, 1)

    def forward(self, x):
        return x * self.fc(x.mean((2, 3), keepdim=True)).softmax(1)


class TiedConvs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 1)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class FunctionalConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 1)

    def forward(self, x):
        return F.conv2d(x, self.conv.weight)


def tied_mlp():
    return Tokens(TiedMlp())


def two_tied():
    return Tokens(TwoTied())


def functional_mlp():
    return Tokens(FunctionalMlp())


def unlike_heads():
    return Tokens(Attention(key=4, value=8))


def indivisible_heads():
    inner = Attention()
    inner.num_heads = 5  # says so and computes something else
    inner.forward = lambda x: inner.proj(inner.qkv(x)[..., :32])
    return Tokens(inner)


def odd_attention():
    return Tokens(Windowed())


def spoiled(value):
    net = Tokens(Mlp())
    net.inner.fc2.weight.data[3, 5] = value
    return net


def nan_weights():
    return spoiled(float("nan"))


def infinite_weights():
    return spoiled(float("inf"))


def grouped():
    return Maps(nn.Conv2d(32, 32, 3, groups=4))


def shuffled():
    return Maps(Shuffle())


def competing():
    return Maps(Competing())


def tied_convs():
    return Maps(TiedConvs())


def functional_conv():
    return Maps(FunctionalConv())


def grouped_and_plain():
    first, second = nn.Conv2d(32, 32, 3, groups=4), nn.Conv2d(32, 48, 1)
    return Maps(nn.Sequential(first, nn.ReLU(), second, nn.ReLU()), width=48)
'''

REFUSED = {
    "tied_mlp": ("--dims", "inner.fc1", "read without calling it"),
    "two_tied": ("--dims", "inner.fc1", "shares its weights"),
    "functional_mlp": ("--dims", "inner.fc1", "read without calling it"),
    "unlike_heads": ("--dims", "inner", "heads do not divide"),
    "indivisible_heads": ("--dims", "inner", "5 heads do not divide"),
    "odd_attention": ("--dims", "inner", "more or other than plain"),
    "nan_weights": ("--dims", "inner.fc2.weight", "not finite"),
    "infinite_weights": ("--dims", "inner.fc2.weight", "not finite"),
    "grouped": ("--widths", "inner", "of 4 groups"),
    "shuffled": ("--widths", "stem", "unflatten in inner"),
    "competing": ("--widths", "inner.fc", "softmax in inner"),
    "tied_convs": ("--widths", "inner.first", "shares its weights"),
    "functional_conv": ("--widths", "inner.conv", "not called"),
}


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "nets.py"
    path.write_text(NETS)
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_cannot_be_narrowed_is_one_line(nets, tmp_path, name):
    flag, *parts = REFUSED[name]
    result = run("prune", f"{nets}:{name}", flag, "30%", "--input-size", "32x32", "--runs-dir", tmp_path)
    check_one_line_error(result, *parts)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_go_stays_and_the_rest_is_exact(nets, tmp_path):
    source = f"{nets}:grouped_and_plain"
    result = prune(source, widths="50%", input_size=(32, 32), floor=1, multiple=1, runs_dir=tmp_path)
    (group,) = result.groups
    assert (group.name, group.before, group.after) == ("inner.2", 48, 24)
    assert {"stem", "inner.0"} <= dict(result.refused).keys()
    dense, narrow = load_model(source, input_size=(32, 32)).module, load(result.run)
    kept = [row for row, bias in enumerate(dense.inner[2].bias) if bias in narrow.inner[2].bias]
    gone = sorted(set(range(48)) - set(kept))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        dense.inner[2].weight[gone] = 0
        dense.inner[2].bias[gone] = 0
        assert len(kept) == 24
        torch.testing.assert_close(narrow(x), dense(x))
