"""A network made ready for export computes what it did, in operators that export well, and is a copy."""

import warnings
from functools import partial

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_nets import INPUT_SHAPE, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.export import to_onnx
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.attention import AsMultihead, Attention
from edgecompress.nets.export_ready import export_ready
from edgecompress.nets.families import Family
from edgecompress.nets.modules import block_module, find_layers, replace_
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.window_attention import PatchMerging, WindowAttention
from edgecompress.nets.zoo.embedded import FashionViT

ensure_torchvision_importable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm
from torchvision.models import ResNet  # noqa: E402  # needs the line above
from torchvision.models.resnet import BasicBlock  # noqa: E402
from torchvision.models.swin_transformer import SwinTransformer  # noqa: E402
from torchvision.models.vision_transformer import VisionTransformer  # noqa: E402

GONE = (nn.Dropout, nn.MultiheadAttention, nn.BatchNorm1d, nn.BatchNorm2d)
LIBRARY_CLASSES = ("StochasticDepth", "DropPath", "ShiftedWindowAttention", "PatchMerging")


def lively(network):
    """Returns a network in eval mode whose every weight and statistic matters."""
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
        nn.init.normal_(parameter, std=fan_in**-0.5, generator=generator)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            nn.init.normal_(buffer, generator=generator)
        if name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 2.0, generator=generator)
    return network.eval()


def vit():
    return VisionTransformer(16, 8, 2, 2, 12, 24, dropout=0.1, attention_dropout=0.1, num_classes=5)


def swin():
    return SwinTransformer([2, 2], 8, [2, 2], [2, 4], [3, 3], stochastic_depth_prob=0.1, num_classes=5)


def timm_vit():
    options = {"img_size": 32, "num_classes": 5, "depth": 2, "drop_rate": 0.1, "drop_path_rate": 0.1}
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, **options)


def timm_deit():
    return timm.create_model("deit_tiny_distilled_patch16_224", pretrained=False, img_size=32, depth=2)


def encoder():
    layer = nn.TransformerEncoderLayer(9, 3, 8, batch_first=True)
    stacked = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Flatten(2), stacked, nn.Flatten(), nn.Linear(27, 5))


def compressed():
    net = small_net()
    for layer in find_layers(net, ["narrow", "wide", "biased", "hidden"], INPUT_SHAPE)[0]:
        replace_(net, layer.name, block_module(pair_candidate(layer, Family("S4"), 3).blocks[0]))
    return net


NETWORKS = {
    "torchvision vit": (vit, (3, 16, 16)),
    "torchvision swin": (swin, (3, 12, 12)),
    "torchvision swin, padded": (swin, (3, 16, 14)),
    "torchvision swin, odd": (swin, (3, 10, 18)),
    "torchvision resnet": (partial(ResNet, BasicBlock, [1, 1, 1, 1], num_classes=5), (3, 32, 32)),
    "timm vit": (timm_vit, (3, 32, 32)),
    "timm deit": (timm_deit, (3, 32, 32)),
    "torch encoder": (encoder, (3, 3, 3)),
    "fashion_vit": (partial(FashionViT, 5, width=16, depth=2), (1, 28, 28)),
    "compressed": (compressed, INPUT_SHAPE),
}


@pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)
@torch.no_grad()
def test_what_it_computes_stays_and_what_exports_badly_goes(build, shape):
    network, x = lively(build()), images(2, shape=shape)
    expected, ready = network(x), export_ready(network, shape)
    assert (ready(x) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert not any(isinstance(module, GONE) for module in ready.modules())
    kinds = {(type(m).__module__.split(".")[0], type(m).__name__) for m in ready.modules()}
    assert not {name for library, name in kinds if library in ("timm", "torchvision")} & {*LIBRARY_CLASSES}


@pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_the_network_is_left_alone_and_shares_nothing_with_the_copy(build, shape):
    network = lively(build()).train()
    state, kinds = state_of(network), [type(module) for module in network.modules()]
    ready = export_ready(network, shape)
    assert same_state(network, state)
    assert [type(module) for module in network.modules()] == kinds
    assert all(module.training for module in network.modules())
    assert not any(module.training for module in ready.modules())
    assert hooks_of(network) == hooks_of(ready) == 0
    own = {tensor.untyped_storage().data_ptr() for tensor in network.state_dict().values()}
    assert own.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in ready.state_dict().values())


@torch.no_grad()
def test_weights_that_lie_channels_last_are_laid_out_as_converters_read_them():
    network = lively(small_net()).to(memory_format=torch.channels_last)
    assert not all(one.is_contiguous() for one in network.parameters())
    ready = export_ready(network, INPUT_SHAPE)
    assert all(one.is_contiguous() for one in ready.parameters())
    batch = images(4)
    torch.testing.assert_close(ready(batch), network(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)
@torch.no_grad()
def test_a_network_that_is_ready_stays_as_it_is(build, shape):
    ready, x = export_ready(lively(build()), shape), images(2, shape=shape)
    again = export_ready(ready, shape)
    assert [type(module) for module in again.modules()] == [type(module) for module in ready.modules()]
    assert torch.equal(again(x), ready(x))


def test_attention_of_every_library_is_rewritten():
    found = {
        kind: sum(isinstance(module, kind) for name in names for module in ready_of(name).modules())
        for kind, names in {
            AsMultihead: ("torchvision vit", "torch encoder"),
            Attention: ("timm vit", "timm deit"),
            WindowAttention: ("torchvision swin",),
            PatchMerging: ("torchvision swin",),
        }.items()
    }
    assert found == {AsMultihead: 4, Attention: 4, WindowAttention: 4, PatchMerging: 1}


def ready_of(name):
    build, shape = NETWORKS[name]
    return export_ready(lively(build()), shape)


@pytest.mark.parametrize("name", ["torchvision swin, odd", "timm vit"])
def test_exported_tensors_have_at_most_four_dimensions(name, tmp_path):
    to_onnx.convert(ready_of(name), NETWORKS[name][1], tmp_path / "model.onnx")
    graph = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "model.onnx")).graph
    values = [*graph.value_info, *graph.output]
    made = {output for node in graph.node for output in node.output}
    assert made == {value.name for value in values}  # no shape is unknown
    assert max(len(value.type.tensor_type.shape.dim) for value in values) <= 4
    kinds = {node.op_type for node in graph.node}
    assert "Softmax" in kinds and not {"ScatterND", "GatherND", "Attention"} & kinds
    steps = [node for node in graph.node if node.op_type == "Slice" and len(node.input) > 4]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert all((constants[node.input[4]] == 1).all() for node in steps)  # runtimes are slow with others


class Calling(nn.Module):
    """Calls its attention in a way that is more than self-attention."""

    def __init__(self, call, *, batch_first=True):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.call = call

    def forward(self, x):
        return self.call(self.attention, x.flatten(2))[0].flatten(1)


CALLS = {
    "other keys": lambda attention, x: attention(x, x + 1, x),
    "a mask": lambda attention, x: attention(x, x, x, attn_mask=torch.eye(3, dtype=torch.bool)),
    "one image": lambda attention, x: [y[None] for y in attention(*[x[0]] * 3)],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@torch.no_grad()
def test_attention_that_is_called_otherwise_stays(call):
    network, x = lively(Calling(call)), images(1, shape=(3, 2, 3))
    ready = export_ready(network, (3, 2, 3))
    assert type(ready.attention) is nn.MultiheadAttention
    torch.testing.assert_close(ready(x), network(x))


def test_attention_with_tokens_first_stays():
    network = lively(Calling(lambda attention, x: attention(x, x, x), batch_first=False))
    assert type(export_ready(network, (3, 2, 3)).attention) is nn.MultiheadAttention


@torch.no_grad()
def test_attention_whose_weights_are_read_still_has_them():
    network = lively(Calling(lambda attention, x: attention(x, x, x)[1:]))
    ready, x = export_ready(network, (3, 2, 3)), images(2, shape=(3, 2, 3))
    assert isinstance(ready.attention, AsMultihead)
    torch.testing.assert_close(ready(x), network(x))


class Dropping(nn.Dropout):
    def forward(self, x):
        return nn.functional.dropout(x, self.p, training=True)


def test_dropout_that_also_works_in_eval_mode_stays():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout2d(), Dropping())
    kinds = [type(module) for module in export_ready(network, INPUT_SHAPE)]
    assert kinds == [nn.Conv2d, nn.Identity, Dropping]


class Pooling(nn.Module):
    """Does something between a convolution and padded max pools."""

    def __init__(self, something):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, stride=2, padding=1)
        self.something = something

    def forward(self, x):
        return self.something(self.conv(x), self.pool)


def pads(module):
    return isinstance(module, nn.MaxPool2d) and (module.padding not in (0, (0, 0)) or module.ceil_mode)


@torch.no_grad()
def check_pools(network, x, *, rewritten):
    ready = export_ready(network, tuple(x.shape[1:]))
    assert torch.equal(ready(x), network(x))
    assert any(map(pads, ready.modules())) != rewritten


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    size=st.tuples(st.integers(7, 12), st.integers(7, 12)),
    data=st.data(),
)
def test_padded_pools_of_every_shape_are_rewritten(kernel, stride, dilation, ceil_mode, size, data):
    padding = tuple(data.draw(st.integers(0, extent // 2)) for extent in kernel)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.MaxPool2d(kernel, **options))
    ready, x = export_ready(network, (3, *size)), images(2, shape=(3, *size))
    with torch.no_grad():
        assert torch.equal(ready(x), network(x))
    assert isinstance(ready[2], nn.Sequential) or padding == (0, 0)


def overwritten(x, pool):
    y = x.relu()
    y[:, 0] = -1.0
    return pool(y)


KNOWN = {
    "relu": lambda x, pool: pool(x.relu()),
    "relu in place": lambda x, pool: pool(x.relu_()),
    "relu6": lambda x, pool: pool(nn.functional.relu6(x)),
    "sigmoid": lambda x, pool: pool(x.sigmoid()),
    "hard sigmoid": lambda x, pool: pool(nn.functional.hardsigmoid(x)),
    "clamp": lambda x, pool: pool(x.clamp(min=0.5)),
    "both of two": lambda x, pool: pool(torch.cat([x.relu(), x.sigmoid()], dim=1) * 2),
    "sum and view": lambda x, pool: pool((x.relu() + x.sigmoid()).transpose(2, 3)),
}
UNKNOWN = {
    "nothing": lambda x, pool: pool(x),
    "gelu": lambda x, pool: pool(nn.functional.gelu(x)),
    "clamp above": lambda x, pool: pool(x.clamp(max=1.0)),
    "clamp below zero": lambda x, pool: pool(nn.functional.hardtanh(x)),
    "one of two": lambda x, pool: pool(torch.cat([x.relu(), x], dim=1)),
    "one of two added": lambda x, pool: pool(x.relu() + x),
    "negative factor": lambda x, pool: pool(x.relu() * -2),
    "less": lambda x, pool: pool(x.relu() - 1),
    "less in place": lambda x, pool: pool(x.relu().sub_(1)),
    "part overwritten": overwritten,
    "part rectified": lambda x, pool: (x[:, 0].relu_(), pool(x))[1],
    "once only": lambda x, pool: pool(x.relu()) + pool(x),
    "two sizes": lambda x, pool: pool(x[..., 1:, 1:].relu()) + pool(x.relu()),
}


@pytest.mark.parametrize("something", KNOWN.values(), ids=KNOWN)
def test_a_pool_of_what_is_never_negative_is_rewritten(something):
    check_pools(lively(Pooling(something)), images(2, shape=(3, 8, 8)), rewritten=True)


@pytest.mark.parametrize("something", UNKNOWN.values(), ids=UNKNOWN)
def test_any_other_pool_stays(something):
    check_pools(lively(Pooling(something)), images(2, shape=(3, 8, 8)), rewritten=False)
