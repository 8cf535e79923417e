"""Dimensions of heads and hidden units: found in every transformer, and not missed once they are zero."""

import contextlib
import copy
import warnings
from functools import partial

import onnx
import pytest
import torch
from small_nets import hooks_of, images, same_state, state_of
from torch import nn
from torch.nn import functional as F

from edgecompress.core.costs import chain_macs
from edgecompress.core.types import ModelRef, Plan, Preprocess
from edgecompress.export.onnx_format import FORMAT
from edgecompress.export.parity import Limits, check_parity, outputs
from edgecompress.export.to_onnx import convert
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.nets.artefact import load, save_artefact
from edgecompress.nets.attention import Attention
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.chains import filled_block
from edgecompress.nets.dimension_groups import find_dimension_groups
from edgecompress.nets.export_ready import export_ready
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import find_layers, layer_named, replace_, weight_of
from edgecompress.nets.narrowing import entries, narrow_
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.units import find_units
from edgecompress.nets.window_attention import WindowAttention
from edgecompress.nets.zoo.embedded import FashionViT

ensure_torchvision_importable()
from torchvision.models import swin_t, vit_b_16  # noqa: E402  # needs the line above
from torchvision.models.swin_transformer import SwinTransformer  # noqa: E402
from torchvision.models.vision_transformer import VisionTransformer  # noqa: E402

OURS = (Attention, WindowAttention)


def lively_(network):
    """Gives a network weights that all matter, and eval mode.

    Biases are small and scores of attention of order one, or a wrong scale would hardly show.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 100
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
        for module in network.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(1.0)
    return network.eval()


def vit():
    return VisionTransformer(16, 8, 2, 2, 12, 24, dropout=0.1, attention_dropout=0.1, num_classes=5)


def swin():
    return SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5)


def timm_net(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timm = pytest.importorskip("timm")
    return timm.create_model(name, pretrained=False, img_size=32, depth=2, num_classes=5, **options)


def encoder(activation="relu", **options):
    layer = nn.TransformerEncoderLayer(9, 3, 8, batch_first=True, activation=activation, **options)
    stacked = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Flatten(2), stacked, nn.Flatten(), nn.Linear(27, 5))


class Fused(nn.Module):
    """Attention as many write it, with one layer for queries, keys and values."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.num_heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def parts(self, x):
        n, tokens, width = x.shape
        shape = (n, tokens, 3, self.num_heads, width // self.num_heads)
        return self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4)

    def scores(self, q, k):
        return q @ k.mT * self.scale

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.proj((self.scores(q, k).softmax(-1) @ v).transpose(1, 2).flatten(2))


class HeadsFirst(Fused):
    def parts(self, x):
        return self.qkv(x).reshape(*x.shape[:2], self.num_heads, 3, -1).permute(3, 0, 2, 1, 4)


class Normed(Fused):
    def scores(self, q, k):
        return F.normalize(q, dim=-1) @ k.mT * self.scale


class Causal(Fused):
    def scores(self, q, k):
        scores = super().scores(q, k)
        return scores + torch.full(scores.shape[-2:], -9.0).triu(1)


class Tempered(Fused):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))  # one in a new network, but not in a trained one

    def scores(self, q, k):
        return super().scores(q, k) * self.temperature


class Separate(nn.Module):
    """Attention that has its widths written in it."""

    def __init__(self):
        super().__init__()
        self.heads = 3
        self.q, self.k, self.v, self.proj = (nn.Linear(12, 12) for _ in range(4))

    def split(self, x):
        return x.reshape(*x.shape[:2], 3, 4).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.proj(((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Rescaled(Separate):
    """Attention that takes its scale from its present width."""

    def split(self, x):
        return x.reshape(*x.shape[:2], 3, -1).transpose(1, 2)


class Multihead(nn.Module):
    def __init__(self, mask=None, **options):
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(12, 3, **{"batch_first": True} | options), mask

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=self.mask)[0]


class Functional(nn.Module):
    """Reads the weights of its layers."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(12, 36), nn.Linear(12, 12), 3

    def forward(self, x):
        q, k, v = F.linear(x, self.qkv.weight, self.qkv.bias).chunk(3, -1)
        return F.linear((q @ k.mT).softmax(-1) @ v, self.proj.weight)


class Mlp(nn.Module):
    def __init__(self, activation, **layers):
        super().__init__()
        self.fc1, self.fc2, self.activation = nn.Linear(12, 20), nn.Linear(20, 12), activation
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


class Net(nn.Module):
    """Tokens of 12 dimensions from an image of 3 x 4 x 4, one inner module, and a head."""

    def __init__(self, inner):
        super().__init__()
        self.stem, self.inner, self.head = nn.Conv2d(3, 12, 1), inner, nn.Linear(12, 5)

    def forward(self, x):
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        return self.head((tokens + self.inner(tokens)).mean(1))


SMALL = (3, 4, 4)
NETWORKS = {  # and how many groups of heads and of hidden units they have
    "torchvision vit": (vit, (3, 16, 16), 2, 2),
    "torchvision swin": (swin, (3, 32, 32), 4, 4),
    "torchvision swin, odd": (swin, (3, 24, 40), 4, 4),
    "timm vit": (partial(timm_net, "vit_tiny_patch16_224", drop_rate=0.1), (3, 32, 32), 2, 2),
    "timm deit": (partial(timm_net, "deit_tiny_distilled_patch16_224"), (3, 32, 32), 2, 2),
    "torch encoder": (encoder, (3, 3, 3), 2, 2),
    "torch encoder, norm first": (partial(encoder, "gelu", norm_first=True), (3, 3, 3), 2, 2),
    "fashion_vit": (partial(FashionViT, 5, width=16, depth=2), (1, 28, 28), 2, 2),
    "fused": (lambda: Net(Fused()), SMALL, 1, 0),
    "multihead": (lambda: Net(Multihead()), SMALL, 1, 0),
}


@pytest.fixture(params=NETWORKS)
def found(request):
    """Returns a rewritten network, images for it, its groups, and what it computed before."""
    build, shape, heads, hidden = NETWORKS[request.param]
    network, x = lively_(build()), images(2, shape=shape)
    with torch.no_grad():
        expected = network(x)
    assert rewrite_attention_(network, shape) == ()
    groups, refused = find_dimension_groups(network, shape)
    assert refused == ()
    assert [group.kind for group in groups].count("head_dim") == heads
    assert [group.kind for group in groups].count("hidden") == hidden == len(groups) - heads
    return network, x, groups, expected


@contextlib.contextmanager
def gated(network, groups, alphas):
    """Multiplies the units of groups at their gates."""
    handles = []
    for group in groups:
        for cut in group.gates:
            layer = layer_named(network, cut.module)
            factor = torch.ones(layer.out_features)
            for unit, alpha in enumerate(alphas[group.name]):
                factor[entries(cut, [unit], group.width)] = alpha
            handles.append(layer.register_forward_hook(lambda _, __, y, factor=factor: y * factor))
    yield
    for handle in handles:
        handle.remove()


@torch.no_grad()
def fold_(network, groups, alphas):
    for group in groups:
        for cut in group.gates:
            for parameter in layer_named(network, cut.module).parameters():
                for unit, alpha in enumerate(alphas[group.name]):
                    parameter[entries(cut, [unit], group.width)] *= alpha


def random_alphas(groups, *, zeros=0.0):
    """Returns numbers of both signs, a share of them zero, but never all."""
    generator = torch.Generator().manual_seed(2)
    alphas = {group.name: torch.randn(group.width, generator=generator) + 0.3 for group in groups}
    for values in alphas.values():
        values[torch.randperm(len(values), generator=generator)[: int(zeros * len(values))]] = 0.0
    return alphas


def kept_by(alphas):
    return {name: values.nonzero().flatten().tolist() for name, values in alphas.items()}


def error(output, expected):
    return float((output - expected).abs().max() / expected.abs().max())


# What is found


def test_gates_of_one_change_nothing(found):
    network, x, groups, expected = found
    with torch.no_grad(), gated(network, groups, {group.name: [1.0] * group.width for group in groups}):
        assert error(network(x), expected) <= 1e-5


def test_gates_can_be_folded_and_zeros_taken_away(found):
    network, x, groups, before = found
    alphas = random_alphas(groups, zeros=0.5)
    with torch.no_grad():
        with gated(network, groups, alphas):
            expected = network(x)
        fold_(network, groups, alphas)
        folded = network(x)
        params = total_params(network)
        narrow_(network, groups, kept_by(alphas))
        assert error(folded, expected) <= 1e-5
        assert error(network(x), expected) <= 1e-5
        assert error(before, expected) > 1e-2  # the gates do matter
    assert total_params(network) < params


def test_every_group_alone_can_be_taken_from(found):
    network, x, groups, _ = found
    alphas = random_alphas(groups, zeros=0.5)
    for group in groups:
        alone = copy.deepcopy(network)
        with torch.no_grad():
            fold_(alone, [group], alphas)
            expected = alone(x)
            narrow_(alone, [group], {group.name: kept_by(alphas)[group.name]})
            assert error(alone(x), expected) <= 1e-5


def test_finding_leaves_the_network_alone(found):
    network, x, groups, _ = found
    state = state_of(network)
    again, _ = find_dimension_groups(network, tuple(x.shape[1:]))
    assert again == groups
    assert same_state(network, state)
    assert hooks_of(network) == 0


def test_groups_come_in_forward_order_and_are_named_after_their_layers():
    network = lively_(FashionViT(5, width=16, depth=2))
    groups, _ = find_dimension_groups(network, (1, 28, 28))
    layers = ("attn.q", "mlp.fc1")
    assert [group.name for group in groups] == [f"blocks.{i}.{name}" for i in range(2) for name in layers]


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "tanh": torch.tanh,
    "mish": F.mish,
    "elu": F.elu,
    "quick_gelu": quick_gelu,
    "gelu_by_hand": gelu_by_hand,
    "inplace": nn.Sequential(nn.ReLU(inplace=True), nn.Dropout()),
    "leaky_relu": nn.LeakyReLU(),
    "squared_relu": lambda x: F.relu(x).square(),
}


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_hidden_units_are_found_whatever_maps_zero_to_zero(activation):
    network = lively_(Net(Mlp(activation)))
    groups, refused = find_dimension_groups(network, SMALL)
    assert refused == ()
    assert [(group.name, group.width) for group in groups] == [("inner.fc1", 20)]


def shifted(x):
    return F.relu(x + 1)


@pytest.mark.parametrize(
    "activation", [torch.sigmoid, F.softplus, F.hardsigmoid, torch.exp, torch.cos, shifted]
)
def test_activations_of_zero_that_are_something_are_refused(activation):
    groups, refused = find_dimension_groups(lively_(Net(Mlp(activation))), SMALL)
    assert groups == ()
    assert refused == (("inner.fc1", "the activation after it does not map zero to zero"),)


def test_layers_without_an_activation_between_them_are_no_mlp():
    assert find_dimension_groups(lively_(Net(Mlp(nn.Identity()))), SMALL) == ((), ())


# What is refused


class Gated(Mlp):
    def __init__(self):
        super().__init__(F.silu, gate=nn.Linear(12, 20))

    def forward(self, x):
        return self.fc2(F.silu(self.fc1(x)) * self.gate(x))


class Norm(Mlp):
    def __init__(self):
        super().__init__(F.gelu, norm=nn.LayerNorm(20))

    def forward(self, x):
        return self.fc2(self.norm(F.gelu(self.fc1(x))))


class Twice(Mlp):
    def forward(self, x):
        return super().forward(super().forward(x))


class Tied(Mlp):
    def __init__(self):
        super().__init__(F.relu, other=nn.Linear(12, 20))
        self.other.weight = self.fc1.weight

    def forward(self, x):
        return super().forward(x) + self.other(x).mean(-1, keepdim=True)


class Read(Mlp):
    def forward(self, x):
        return super().forward(x) + F.linear(x, self.fc1.weight).mean(-1, keepdim=True)


class Fixed(Mlp):
    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)).reshape(-1, 20)).reshape(x.shape)


class Turned(Mlp):
    """Has as many hidden units as tokens, so that only the order of numbers tells them apart."""

    def __init__(self):
        super().__init__(F.relu, fc1=nn.Linear(12, 16), fc2=nn.Linear(16, 12))

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)).mT)


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def parametrized():
    mlp = Mlp(F.relu)
    nn.utils.parametrizations.weight_norm(mlp.fc1)
    return mlp


REFUSED_MLPS = {
    "multiplied by another layer": (Gated, "fc1", "mul combines them with others"),
    "normalised": (Norm, "fc1", "native_layer_norm reads them"),
    "turned": (Turned, "fc1", "transpose reads them"),
    "called twice": (partial(Twice, F.relu), "fc1", "called 2 times"),
    "tied": (Tied, "fc1", "inner.fc1 shares its weights"),
    "read as tensors": (partial(Read, F.relu), "fc1", "without calling it"),
    "a width written in it": (partial(Fixed, F.relu), "fc1", "is a width written in it"),
    "a forward of its own": (partial(Mlp, F.relu, fc1=Own(12, 20)), "fc1", "forward of its own"),
    "computed weights": (parametrized, "fc1", "computed from others"),
}


@pytest.mark.parametrize(("build", "name", "reason"), REFUSED_MLPS.values(), ids=REFUSED_MLPS)
def test_mlps_that_cannot_be_narrowed_are_refused_by_name(build, name, reason):
    groups, refused = find_dimension_groups(lively_(Net(build())), SMALL)
    assert groups == ()
    assert [module for module, _ in refused] == [f"inner.{name}"]
    assert reason in refused[0][1]


def test_one_mlp_that_cannot_be_narrowed_leaves_the_others():
    inner = nn.Sequential(Mlp(F.relu), Fixed(F.relu), Mlp(F.gelu))
    groups, refused = find_dimension_groups(lively_(Net(inner)), SMALL)
    assert [group.name for group in groups] == ["inner.0.fc1", "inner.2.fc1"]
    assert [name for name, _ in refused] == ["inner.1.fc1"]


class Placed(Fused):
    def forward(self, x, places=None):
        return super().forward(x if places is None else x + places)


class Placing(nn.Module):
    def __init__(self, places):
        super().__init__()
        self.attention, self.places = Placed(), places

    def forward(self, x):
        return self.attention(x, self.places)


def test_options_that_are_not_used_are_no_reason_to_refuse():
    network, x = lively_(Net(Placing(None))), images(2, shape=SMALL)
    expected = network(x)
    assert rewrite_attention_(network, SMALL) == ()
    assert isinstance(network.inner.attention, Attention)
    torch.testing.assert_close(network(x), expected)


def test_whether_attention_is_plain_does_not_depend_on_its_weights():
    torch.manual_seed(0)
    network = Net(Tempered()).eval()
    assert network.inner.temperature == 1.0  # today it does compute the same
    assert [name for name, _ in rewrite_attention_(network, SMALL)] == ["inner"]


REFUSED_ATTENTION = {
    "a mask": (lambda: Multihead(torch.zeros(16, 16)), "inner.attention", "with a mask"),
    "tokens first": (lambda: Multihead(batch_first=False), "inner.attention", "set batch_first=True"),
    "keys of their own": (lambda: Multihead(add_bias_kv=True), "inner.attention", "keys of its own"),
    "another order of rows": (HeadsFirst, "inner", "more or other than plain"),
    "normalised queries": (Normed, "inner", "more or other than plain"),
    "positions": (lambda: Placing(torch.ones(16, 12)), "inner.attention", "more than tokens"),
    "a mask inside": (Causal, "inner", "more or other than plain"),
    "a learnt temperature": (Tempered, "inner", "more or other than plain"),
    "weights read as tensors": (Functional, "inner", "more or other than plain"),
    "heads that do not divide": (lambda: with_heads(5), "inner", "5 heads do not divide"),
}


def with_heads(heads):
    attention = Functional()
    attention.num_heads = heads
    return attention


@pytest.mark.parametrize(("build", "name", "reason"), REFUSED_ATTENTION.values(), ids=REFUSED_ATTENTION)
def test_attention_that_is_no_plain_one_is_refused_by_name(build, name, reason):
    network = lively_(Net(build()))
    kinds, state = [type(module) for module in network.modules()], state_of(network)
    left = rewrite_attention_(network, SMALL)
    groups, refused = find_dimension_groups(network, SMALL)
    assert [module for module, _ in left] == [name]
    assert reason in left[0][1]
    assert groups == ()
    assert refused == left
    assert [type(module) for module in network.modules()] == kinds
    assert same_state(network, state)


def test_timm_attention_with_norms_inside_is_refused():
    network = lively_(timm_net("vit_tiny_patch16_224", qk_norm=True))
    left = rewrite_attention_(network, (3, 32, 32))
    groups, refused = find_dimension_groups(network, (3, 32, 32))
    assert left == refused
    assert {name for name, _ in left} == {"blocks.0.attn", "blocks.1.attn"}
    assert {group.kind for group in groups} == {"hidden"}


@pytest.mark.parametrize("build", [Separate, Rescaled])
def test_attention_whose_widths_are_written_in_it_is_refused(build):
    groups, refused = find_dimension_groups(lively_(Net(build())), SMALL)
    assert groups == ()
    assert [name for name, _ in refused] == ["inner"]
    assert "is a width written in it" in refused[0][1]


class Unknown(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def test_attention_of_an_unknown_kind_is_named():
    _, refused = find_dimension_groups(lively_(Net(Unknown())), SMALL)
    assert refused == (("inner", "mixes tokens in a way that is not known"),)


def test_rewritten_attention_with_tied_weights_is_refused():
    inner = Fused()
    network = lively_(Net(nn.Sequential(inner, nn.Linear(12, 12))))
    network.inner[1].weight = inner.proj.weight
    assert rewrite_attention_(network, SMALL) == ()
    groups, refused = find_dimension_groups(network, SMALL)
    assert groups == ()
    assert refused == (("inner.0", "inner.0.proj shares its weights with another layer"),)


def test_attention_that_runs_twice_is_refused():
    inner = Fused()
    network = lively_(Net(nn.Sequential(inner, inner)))
    assert rewrite_attention_(network, SMALL) == ()
    assert isinstance(network.inner[1], Attention)
    groups, refused = find_dimension_groups(network, SMALL)
    assert groups == ()
    assert refused == (("inner.0", "inner.0.qkv is called 2 times in one forward pass"),)


def test_attention_that_was_not_rewritten_is_named():
    network = lively_(vit())
    groups, refused = find_dimension_groups(network, (3, 16, 16))
    names = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(2)]
    assert refused == tuple((name, "was not rewritten") for name in names)
    assert [group.kind for group in groups] == ["hidden", "hidden"]


class Asking(Net):
    def forward(self, x):
        assert self.inner.num_heads == 3
        return super().forward(x)


def test_a_module_whose_parent_reads_its_attributes_stays():
    network = lively_(Asking(Fused()))
    ((name, reason),) = rewrite_attention_(network, SMALL)
    assert name == "inner"
    assert reason.startswith("the model needs this very module: 'Attention' object has no attribute")
    assert type(network.inner) is Fused
    network(images(1, shape=SMALL))


# Swin-T and ViT-B/16

BLOCKS = ("EncoderBlock", "SwinTransformerBlock", "PatchMerging", "Encoder")
LARGE = (3, 224, 224)


def outputs_of_stages(network, x):
    """Returns what a network puts out, and the shapes of what its blocks and stages do."""
    shapes = {}
    handles = [
        module.register_forward_hook(lambda _, __, y, name=name: shapes.update({name: y.shape}))
        for name, module in network.named_modules()
        if type(module).__name__ in BLOCKS
    ]
    output = network(x)
    for handle in handles:
        handle.remove()
    assert len(shapes) >= 12
    return output, shapes


@torch.no_grad()
def check_half_(network):
    """Takes half of all dimensions away, which must show nowhere, and puts wrong scales in, which must."""
    groups, refused = find_dimension_groups(network, LARGE)
    assert refused == ()
    assert len(groups) == 24
    attentions = [module for module in network.modules() if isinstance(module, OURS)]
    alphas, x = random_alphas(groups, zeros=0.5), images(1, shape=LARGE)
    fold_(network, groups, alphas)
    expected, shapes = outputs_of_stages(network, x)
    constants = [(one.scale, one.heads, getattr(one, "table", None)) for one in attentions]
    narrow_(network, groups, kept_by(alphas))
    output, narrow_shapes = outputs_of_stages(network, x)
    assert error(output, expected) <= 1e-5
    assert narrow_shapes == shapes
    for one, (scale, heads, table) in zip(attentions, constants, strict=True):
        assert (one.scale, one.heads) == (scale, heads)
        assert one.qkv.out_features == 3 * heads * one.head_dim
        assert one.proj.in_features == heads * one.head_dim
        assert getattr(one, "table", None) is table
        one.scale = one.head_dim**-0.5
    assert error(network(x), expected) > 1e-2


def test_half_of_vit_can_go():
    with torch.device("meta"):  # spares the numbers that `lively_` draws anew
        network = vit_b_16(num_classes=20)
    network = lively_(network.to_empty(device="cpu"))
    rewrite_attention_(network, LARGE)
    check_half_(network)


UNIFORM = {0.0: (27.60, 4.49), 0.2: (22.41, 3.63), 0.4: (17.23, 2.77), 0.6: (12.05, 1.91), 0.8: (6.87, 1.05)}
"""Millions of parameters and billions of multiply-accumulates of Swin-T by the share that is taken away."""
SWIN_T = (27_596_254, 4_489_875_456)
"""Its parameters and multiply-accumulates with 100 classes."""


def costs_of(network, shape):
    return torch.tensor([total_params(network), total_macs(profile(network, shape))], dtype=torch.float64)


def test_half_of_swin_can_go_and_costs_what_the_formulas_say():
    network = lively_(swin_t(num_classes=100))
    rewrite_attention_(network, LARGE)
    dense = costs_of(network, LARGE)
    assert tuple(dense.tolist()) == SWIN_T
    check_half_(network)
    half = costs_of(network, LARGE)
    for share, figures in UNIFORM.items():
        params, macs = (dense - 2 * share * (dense - half)).tolist()
        assert (round(params / 1e6, 2), round(macs / 1e9, 2)) == figures


def test_the_units_of_swin_cost_all_but_patches_merging_and_classifier():
    network = swin_t(num_classes=100)
    rewrite_attention_(network, LARGE)
    units = sum(chain_macs(unit.ops, unit.in_size) for unit in find_units(network, LARGE))
    patches, classifier = 56 * 56 * (3 * 4 * 4) * 96, 768 * 100
    merging = sum((56 // 2**n) ** 2 * (4 * 48 * 2**n) * (96 * 2**n) for n in (1, 2, 3))
    assert units + patches + merging + classifier == SWIN_T[1]


def test_costs_are_lines():
    network, shape = lively_(swin()), (3, 32, 32)
    rewrite_attention_(network, shape)
    groups, _ = find_dimension_groups(network, shape)
    costs = []
    for eighths in (8, 6, 4, 2):
        narrow = copy.deepcopy(network)
        narrow_(narrow, groups, {group.name: range(group.width * eighths // 8) for group in groups})
        costs.append(costs_of(narrow, shape))
    assert torch.equal(torch.stack(costs).diff(n=2, dim=0), torch.zeros(2, 2, dtype=torch.float64))
    assert costs[0].gt(costs[3]).all()


def test_the_table_of_position_biases_can_be_trained():
    network = lively_(swin())
    params = total_params(network)
    rewrite_attention_(network, (3, 32, 32))
    assert total_params(network) == params
    network(images(1, shape=(3, 32, 32))).square().sum().backward()
    tables = [module.table for module in network.modules() if isinstance(module, WindowAttention)]
    assert len(tables) == 4
    assert all(table.grad.abs().max() > 0 for table in tables)


# Files


SAVED = {
    "torchvision vit": (vit, (3, 16, 16)),
    "torchvision swin": (swin, (3, 32, 32)),
    "fashion_vit": (partial(FashionViT, 5, width=16, depth=2), (1, 28, 28)),
}


def narrowed(name):
    """Returns a rewritten network that lost half of its dimensions, what it lost, and images for it."""
    build, shape = SAVED[name]
    network = lively_(build())
    rewrite_attention_(network, shape)
    groups, _ = find_dimension_groups(network, shape)
    return (
        network,
        narrow_(network, groups, kept_by(random_alphas(groups, zeros=0.5))),
        images(3, shape=shape),
    )


def ranks_of(file):
    graph = onnx.shape_inference.infer_shapes(onnx.load(file)).graph
    return {
        len(value.type.tensor_type.shape.dim) for value in (*graph.value_info, *graph.input, *graph.output)
    }


@pytest.mark.parametrize("name", ["torchvision vit", "torchvision swin"])
def test_narrow_networks_export_with_at_most_four_dimensions(name, tmp_path):
    network, _, x = narrowed(name)
    file = tmp_path / "model.onnx"
    convert(export_ready(network, SAVED[name][1]), SAVED[name][1], file)
    check_parity(FORMAT, file, outputs(network, x), x, limits=Limits(rtol=1e-5))
    assert max(ranks_of(file)) <= 4
    kinds = [node.op_type for node in onnx.load(file).graph.node]
    attentions = sum(isinstance(module, OURS) for module in network.modules())
    assert kinds.count("Softmax") == attentions
    assert not any(node.name.endswith("index_select") for node in onnx.load(file).graph.node)


@pytest.mark.parametrize("name", SAVED)
@torch.no_grad()
def test_narrow_networks_come_back_from_a_file(name, tmp_path):
    network, narrowings, x = narrowed(name)
    build, shape = SAVED[name]
    ref = ModelRef(source="nowhere.py:net", preprocess=Preprocess(size=shape[1:]))
    if shape[0] == 1:
        ref = ModelRef(source=ref.source, preprocess=Preprocess(size=shape[1:], mean=(0.5,), std=(0.5,)))
    plan = Plan(model=ref, attention_rewritten=True, narrowings=narrowings)
    save_artefact(tmp_path, plan, network)
    again = load(tmp_path, model=build().eval())
    assert torch.equal(again(x), network(x))


@pytest.mark.parametrize("name", ["torchvision vit", "torchvision swin"])
@torch.no_grad()
def test_low_rank_layers_fit_in_rewritten_attention(name, tmp_path):
    network, narrowings, x = narrowed(name)
    names = [
        n for n, m in network.named_modules() if n.endswith((".qkv", ".proj")) and isinstance(m, nn.Linear)
    ]
    layers, skipped = find_layers(network, names, SAVED[name][1])
    assert skipped == ()
    assert [layer.name for layer in layers] == names
    expected, choices = network(x), []
    for layer in layers:
        module = layer_named(network, layer.name)
        choice = list(LOWRANK.candidates(layer))[-1]  # of the largest rank that saves
        kernels = LOWRANK.factorise(weight_of(module).double(), layer, LayerMetric())(choice)
        replace_(network, layer.name, filled_block(choice.blocks[0], kernels, module.bias).float())
        choices.append(choice)
    network.eval()
    assert 1e-4 < error(network(x), expected) < 1.5
    file = tmp_path / "model.onnx"
    convert(export_ready(network, SAVED[name][1]), SAVED[name][1], file)
    check_parity(FORMAT, file, outputs(network, x), x, limits=Limits(rtol=1e-5))
    ref = ModelRef(source="nowhere.py:net", preprocess=Preprocess(size=SAVED[name][1][1:]))
    plan = Plan(model=ref, attention_rewritten=True, narrowings=narrowings, choices=tuple(choices))
    save_artefact(tmp_path, plan, network)
    assert torch.equal(load(tmp_path, model=SAVED[name][0]().eval())(x), network(x))
