"""ONNX files: what stands in them, which networks they can hold, and what they need to be made."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import torch
from export_nets import (
    CLASSES,
    SHAPE,
    Doing,
    check_one_line,
    compressed_network,
    images,
    pass_on,
    singular_vectors,
    small_network,
    turn_dark_images,
    unlike_identity,
)
from torch import nn

import edgecompress
from edgecompress.errors import ExportError, MissingPackage
from edgecompress.export import onnx_format, to_onnx
from edgecompress.export.onnx_format import FORMAT
from edgecompress.export.parity import Limits, check_parity, outputs
from edgecompress.export.to_onnx import convert
from edgecompress.nets.modules import Sum

CLOSE = Limits(rtol=1e-5)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return compressed_network()


@pytest.fixture(scope="module")
def file(network, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    convert(network, SHAPE, path)
    return path


# The file


def test_a_file_takes_one_image_and_names_its_ends(file):
    graph = onnx.load(file).graph
    ends = {
        end.name: [d.dim_value for d in end.type.tensor_type.shape.dim]
        for end in (*graph.input, *graph.output)
    }
    assert ends == {"image": [1, *SHAPE], "logits": [1, CLASSES]}


def test_a_file_holds_its_weights_and_folded_batch_norms(file, network):
    proto = onnx.load(file, load_external_data=False)
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    assert proto.opset_import[0].version == to_onnx.OPSET
    left = sum(node.op_type == "BatchNormalization" for node in proto.graph.node)
    assert left == sum(
        isinstance(module, Sum) for module in network.modules()
    )  # no single layer to fold into


def test_nodes_are_named_after_their_layers(file, network):
    nodes = onnx.load(file).graph.node
    assert len({node.name for node in nodes}) == len(nodes)
    layers = dict(network.named_modules())
    for node in nodes:
        layer = layers[node.name.rpartition("/")[0]]
        if node.op_type in ("Conv", "Gemm"):
            # a convolution that took up its batch norm bears the name of either
            assert isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d), node.name


def test_exporting_leaves_the_network_alone_and_gives_the_same_bytes_again(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), unlike_identity(nn.BatchNorm2d(8)), nn.Flatten()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("first.onnx", "second.onnx"):
        convert(model, SHAPE, tmp_path / name)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_attention_exports_and_the_fast_path_comes_back(tmp_path):
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(16, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Flatten(2), attention, nn.Flatten(1)).eval()
    convert(model, (3, 4, 4), tmp_path / "model.onnx")
    assert torch.backends.mha.get_fastpath_enabled()
    batch = images(3, (3, 4, 4))
    result = check_parity(FORMAT, tmp_path / "model.onnx", outputs(model, batch), batch, limits=CLOSE)
    assert result.images == 3


@pytest.mark.parametrize("answer", [RuntimeError("no"), (None, False)])
def test_where_the_simplifier_gives_up_the_file_is_right_and_tells_no_more(answer, tmp_path, monkeypatch):
    def give_up(proto):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("onnxsim.simplify", give_up)
    path, network = tmp_path / "model.onnx", small_network()
    convert(network, SHAPE, path)
    assert check_parity(FORMAT, path, outputs(network, images()), images(), limits=CLOSE).images == 6
    for place in (Path(torch.__file__).parent, Path(edgecompress.__file__).parent, Path(__file__).parent):
        assert str(place).encode() not in path.read_bytes()


def test_a_file_for_any_number_of_images_takes_one_and_many(tmp_path):
    network, path = small_network(), tmp_path / "model.onnx"
    convert(network, SHAPE, path, any_batch=True)
    session = onnx_format.package("onnxruntime", what="").InferenceSession(path)
    assert onnx_format.inspect(path).input_shape == (0, *SHAPE)
    for count in (1, 5):
        batch = images(count)
        (found,) = session.run(None, {"image": batch.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), outputs(network, batch), rtol=1e-5, atol=1e-5)


# What cannot be exported


def test_a_path_that_depends_on_the_image_is_said_to(tmp_path):
    with pytest.raises(ExportError) as error:
        convert(Doing(turn_dark_images), SHAPE, tmp_path / "model.onnx")
    check_one_line(error, "model.onnx: stage.1: ", "data-dependent")


def test_an_operator_onnx_splits_up_is_still_found_in_its_layer(tmp_path):
    with pytest.raises(ExportError) as error:
        convert(Doing(torch.erfinv), SHAPE, tmp_path / "model.onnx")
    check_one_line(error, "model.onnx: stage.1: ", "erf_inv")


class InForward(nn.Linear):
    """A network without layers of its own."""

    def __init__(self, something) -> None:
        super().__init__(8, 2)
        self.something = something
        self.eval()

    def forward(self, x):
        return super().forward(self.something(x).mean((1, 2)))


@pytest.mark.parametrize(
    ("something", "reason"), [(singular_vectors, "linalg_svd"), (turn_dark_images, "data-dependent")]
)
def test_what_is_in_no_layer_is_in_the_forward(something, reason, tmp_path):
    with pytest.raises(ExportError) as error:
        convert(InForward(something), SHAPE, tmp_path / "model.onnx")
    check_one_line(error, "model.onnx: the network's forward: ", reason)


def test_weights_that_do_not_fit_one_file_are_refused(network, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "LARGEST_FILE_BYTES", 1000)
    with pytest.raises(ExportError) as error:
        convert(network, SHAPE, tmp_path / "model.onnx")
    check_one_line(error, "GB of weights")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxsim"])
def test_without_the_converter_the_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as error:
        convert(Doing(pass_on), SHAPE, tmp_path / "model.onnx")
    check_one_line(error, f"pip install {package}")


# Another network's file


def test_the_file_of_another_network_is_found_out(file):
    with pytest.raises(ExportError) as error:
        check_parity(FORMAT, file, outputs(Doing(pass_on), images()), images(), limits=CLOSE)
    check_one_line(error, f"(6, {CLASSES})", "(6, 2)")
