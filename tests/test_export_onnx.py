"""Exported files: they compute what the network computes, or there is no file and one line says why."""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import edgecompress
from edgecompress import export, methods
from edgecompress.core.plugins import discover
from edgecompress.core.types import Block, Layer
from edgecompress.errors import EdgeCompressError, ExportError, MissingPackage
from edgecompress.export import to_onnx
from edgecompress.export.contract import Exporter
from edgecompress.export.parity import check_parity
from edgecompress.methods.contract import Method
from edgecompress.nets.modules import Sum, block_module, op_of

EXPORTERS = discover(export, Exporter)
ONNX = EXPORTERS["onnx"]
SHAPE = (3, 8, 8)


class Added(nn.Module):
    """A block with its batch norm, added to its input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.norm = unlike_identity(nn.BatchNorm2d(8))

    def forward(self, x):
        return torch.relu(x + self.norm(self.block(x)))


def every_family(dense: nn.Module, in_size: tuple[int, int]) -> dict[str, Block]:
    """One block of every family of every method that could replace this layer."""
    layer = Layer(name="layer", op=op_of(dense), in_size=in_size)
    return {c.family: c.blocks[0] for m in discover(methods, Method).values() for c in m.candidates(layer)}


def compressed_network() -> nn.Sequential:
    """Blocks of every family one after the other, one of two branches, and what surrounds them."""
    torch.manual_seed(0)
    convs = every_family(nn.Conv2d(8, 8, 3, padding=1, bias=False), (8, 8))
    linears = every_family(nn.Linear(8, 8), (1, 1))
    assert {"S2", "S2T", "S4(2)", "S5(4)", "tucker2"} <= convs.keys() and linears
    both = Block(branches=convs["S2"].branches + convs["S4(2)"].branches)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Added(block_module(block)) for block in (*convs.values(), both)),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *(block_module(block) for block in linears.values()),
        nn.Linear(8, 5),
    )
    keep_scale_(network)
    return network.eval()


def keep_scale_(network: nn.Module) -> None:
    """Sets weights so that what the first layers do is still seen in the output."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)


def unlike_identity(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


def images(count: int = 6, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return compressed_network()


@pytest.fixture(scope="module")
def files(network, tmp_path_factory) -> dict[str, Path]:
    """The network as a file of every format."""
    paths = {name: tmp_path_factory.mktemp(name) / f"model{x.suffix}" for name, x in EXPORTERS.items()}
    for name, exporter in EXPORTERS.items():
        exporter.export(network, SHAPE, paths[name])
    return paths


@pytest.fixture(scope="module")
def file(files) -> Path:
    return files["onnx"]


class Doing(nn.Module):
    """A network that does something to its image on the way."""

    def __init__(self, something) -> None:
        super().__init__()
        self.something = something
        self.head = nn.Linear(3, 2)
        self.eval()

    def forward(self, x):
        return self.head(self.something(x).mean((2, 3)))


def pass_on(x):
    return x


def singular_vectors(x):
    return torch.linalg.svd(x).U


def turn_dark_images(x):
    return x if x.sum() > 0 else -x


def returning(outputs: torch.Tensor) -> Exporter:
    """A format whose files always compute these outputs."""
    return Exporter("fixed", "", ".fixed", lambda model, shape, path: None, lambda file, images: outputs)


def check_one_line(error: pytest.ExceptionInfo[EdgeCompressError], *parts: str) -> None:
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


# Every exporter


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=lambda exporter: exporter.name)
def test_every_family_exports_faithfully(exporter, network, files):
    file = files[exporter.name]
    result = check_parity(exporter, file, network, images(), rtol=1e-5)
    assert result.format == exporter.name and result.file == str(file)
    assert result.images == 6 and result.top1_agreement == 1
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=lambda exporter: exporter.name)
def test_a_change_of_any_layer_is_found_out(exporter, network, files):
    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) > 30
    as_exported = returning(exporter.run(files[exporter.name], images(2)))
    for name in layers:
        other = copy.deepcopy(network)
        with torch.no_grad():
            other.get_submodule(name).weight *= 1.05
        with pytest.raises(ExportError, match="not faithful"):
            check_parity(as_exported, files[exporter.name], other, images(2), rtol=1e-4)


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=lambda exporter: exporter.name)
def test_networks_that_are_not_ready_are_refused(exporter, tmp_path):
    half_trained = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout()).eval()
    half_trained[1].train()
    with pytest.raises(ExportError) as error:
        exporter.export(half_trained, SHAPE, tmp_path / "model")
    check_one_line(error, "1: is in training mode", ".eval()")
    with pytest.raises(ExportError) as error:
        exporter.export(Doing(pass_on).double(), SHAPE, tmp_path / "model")
    check_one_line(error, "head.weight", "float64", ".float()")
    assert not list(tmp_path.iterdir())


# The file


def test_a_file_takes_one_image_and_names_its_ends(file):
    graph = onnx.load(file).graph
    ends = {
        end.name: [d.dim_value for d in end.type.tensor_type.shape.dim]
        for end in (*graph.input, *graph.output)
    }
    assert ends == {"image": [1, *SHAPE], "logits": [1, 5]}


def test_a_file_holds_its_weights_and_folded_batch_norms(file, network):
    proto = onnx.load(file, load_external_data=False)
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    assert proto.opset_import[0].version == to_onnx.OPSET
    left = sum(node.op_type == "BatchNormalization" for node in proto.graph.node)
    assert left == sum(
        isinstance(module, Sum) for module in network.modules()
    )  # no single layer to fold into


def test_a_file_tells_nothing_about_the_machine_it_was_made_on(file):
    content = file.read_bytes()
    for place in (Path(edgecompress.__file__).parent, Path(torch.__file__).parent, Path(__file__).parent):
        assert str(place).encode() not in content


def test_exporting_leaves_the_network_alone_and_gives_the_same_bytes_again(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), unlike_identity(nn.BatchNorm2d(8)), nn.Flatten()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("first.onnx", "second.onnx"):
        ONNX.export(model, SHAPE, tmp_path / name)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_attention_exports_and_the_fast_path_comes_back(tmp_path):
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(16, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Flatten(2), attention, nn.Flatten(1)).eval()
    ONNX.export(model, (3, 4, 4), tmp_path / "model.onnx")
    assert torch.backends.mha.get_fastpath_enabled()
    check_parity(ONNX, tmp_path / "model.onnx", model, images(3, (3, 4, 4)), rtol=1e-5)


# What cannot be exported


@pytest.mark.parametrize(
    ("something", "reason"), [(singular_vectors, "linalg_svd"), (turn_dark_images, "data-dependent")]
)
def test_what_onnx_cannot_say_is_one_line_and_no_file(something, reason, tmp_path, capfd, caplog):
    kept = tmp_path / "model.onnx"
    kept.write_text("an earlier file")
    with pytest.raises(ExportError) as error:
        ONNX.export(Doing(something), SHAPE, kept)
    check_one_line(error, "model.onnx", reason)
    assert kept.read_text() == "an earlier file" and list(tmp_path.iterdir()) == [kept]
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert torch.backends.mha.get_fastpath_enabled()


def test_weights_that_do_not_fit_one_file_are_refused(network, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "LARGEST_FILE_BYTES", 1000)
    with pytest.raises(ExportError) as error:
        ONNX.export(network, SHAPE, tmp_path / "model.onnx")
    check_one_line(error, "GB of weights")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_the_converter_the_package_is_named(package, network, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as error:
        ONNX.export(network, SHAPE, tmp_path / "model.onnx")
    check_one_line(error, f"pip install {package}")


# Running a file


def test_a_batch_is_fed_one_image_at_a_time(file):
    batch = images()
    together, apart = ONNX.run(file, batch), torch.cat([ONNX.run(file, batch[i : i + 1]) for i in range(6)])
    assert together.shape == (6, 5)
    torch.testing.assert_close(together, apart, rtol=0, atol=0)


def test_files_that_do_not_run_are_one_line(file, tmp_path):
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(file.read_bytes()[:-200])
    for path, size, reason in (
        (damaged, SHAPE, "damaged.onnx"),
        (tmp_path / "none.onnx", SHAPE, "no such file"),
        (file, (3, 9, 8), "Got: 9 Expected: 8"),
    ):
        with pytest.raises(ExportError) as error:
            ONNX.run(path, images(1, size))
        check_one_line(error, reason)


def test_without_the_runtime_the_package_is_named(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackage) as error:
        ONNX.run(file, images(1))
    check_one_line(error, "pip install onnxruntime")


def test_the_file_of_another_network_is_found_out(file):
    with pytest.raises(ExportError) as error:
        check_parity(ONNX, file, Doing(pass_on), images(), rtol=1e-4)
    check_one_line(error, "(6, 5)", "(6, 2)")
