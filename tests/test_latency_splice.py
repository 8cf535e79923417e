"""Networks of plans spliced from the dense network's file have the operators of the plan's real export."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from emulated_core import arm_cache, prepared
from graph_rows import kinds_of, rows_of
from small_nets import INPUT_SHAPE, images, small_net
from torch import nn

from edgecompress import export
from edgecompress.core.plugins import discover
from edgecompress.core.types import Block, Layer, Op
from edgecompress.devices.emulated import count
from edgecompress.devices.litert_graph import operators_outside_delegate
from edgecompress.devices.tflite_contents import read_contents
from edgecompress.errors import ExportError
from edgecompress.export.contract import Converter, Format
from edgecompress.latency import onnx_splice, tflite_splice
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.methods.tucker2 import METHOD as TUCKER2
from edgecompress.nets.export_ready import export_ready
from edgecompress.nets.modules import block_module, find_layers, replace_

__all__ = ["arm_cache", "prepared"]

FORMATS, CONVERTERS = discover(export, Format), discover(export, Converter)
SPLICE = {"tflite": tflite_splice.splice, "onnx": onnx_splice.splice}
every_converter = pytest.mark.parametrize(
    "converter",
    ["torch", "litert-torch", pytest.param("onnx2tf", marks=pytest.mark.slow)],
)
NAMES = ("stem.0", "narrow", "wide", "depthwise", "biased", "hidden", "head")


def layers_of(net: nn.Module) -> tuple[Layer, ...]:
    return find_layers(net, NAMES, INPUT_SHAPE)[0]


def a_plan(net: nn.Module) -> list[tuple[Layer, Block]]:
    """Two branches, a pair, a pair that strides in each half, and three layers."""
    by_name = {layer.name: layer for layer in layers_of(net)}
    methods = {"narrow": BRANCHES, "wide": LOWRANK, "biased": TUCKER2, "hidden": LOWRANK}
    chosen = {}
    for name, method in methods.items():
        found = list(method.candidates(by_name[name]))
        families = [one for one in found if one.family == "S4"] or found
        chosen[name] = random.Random(name).choice(families).blocks[0]
    return [(by_name[name], block) for name, block in chosen.items()]


class Made:
    """The dense and the compressed network as a converter writes them, and the compressed one spliced."""

    def __init__(self, directory, converter):
        self.format = FORMATS[CONVERTERS[converter].format]
        self.net = small_net()
        self.plan = a_plan(self.net)
        compressed = copy.deepcopy(self.net)
        torch.manual_seed(1)
        for layer, block in self.plan:
            replace_(compressed, layer.name, block_module(block))
        self.files = {}
        for name, net in (("dense", self.net), ("real", compressed)):
            file = directory / f"{name}{self.format.suffix}"
            CONVERTERS[converter].convert(export_ready(net, INPUT_SHAPE), INPUT_SHAPE, file, False)
            self.files[name, "fp32"] = file
            self.files[name, "int8"] = directory / f"{name}.int8{self.format.suffix}"
            self.format.recode["int8"](file, self.files[name, "int8"], images(8, dtype=torch.float32))
        for precision in ("fp32", "int8"):
            file = directory / f"spliced.{precision}{self.format.suffix}"
            layers = layers_of(self.net)
            SPLICE[self.format.name](self.files["dense", precision], self.plan, file, layers=layers)
            self.files["spliced", precision] = file


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    known = {}

    def make(converter):
        if converter not in known:
            known[converter] = Made(tmp_path_factory.mktemp(converter), converter)
        return known[converter]

    return make


@every_converter
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_spliced_network_has_the_operators_of_the_real_one(made, converter, precision):
    files = made(converter).files
    real, spliced = rows_of(files["real", precision]), rows_of(files["spliced", precision])
    assert real == spliced
    assert spliced != rows_of(files["dense", precision])


@every_converter
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_spliced_network_runs(made, converter, precision):
    one = made(converter)
    outputs = one.format.run(one.files["spliced", precision], images(2, dtype=torch.float32))
    assert outputs.shape == (2, 6)
    assert outputs.isfinite().all()
    assert outputs.std() > 0


@every_converter
def test_the_dense_file_stays_and_a_plan_of_nothing_changes_nothing(made, converter, tmp_path):
    one = made(converter)
    dense = one.files["dense", "fp32"]
    same = tmp_path / dense.name
    SPLICE[one.format.name](dense, [], same)
    pixels = images(2, dtype=torch.float32)
    assert torch.equal(one.format.run(dense, pixels), one.format.run(same, pixels))


def test_spliced_tflite_runs_inside_the_delegate_and_holds_no_old_weights(made):
    files = made("litert-torch").files
    for precision in ("fp32", "int8"):
        real, spliced = files["real", precision], files["spliced", precision]
        assert operators_outside_delegate(spliced) == {}
        assert read_contents(spliced).weight_bytes == pytest.approx(
            read_contents(real).weight_bytes, rel=0.02
        )
        assert read_contents(spliced).dtype == read_contents(real).dtype


def test_an_emulated_core_counts_as_many_instructions(made, prepared, arm_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(arm_cache))
    files = made("litert-torch").files
    for precision in ("fp32", "int8"):
        real, spliced = (count(files[name, precision], prepared) for name in ("real", "spliced"))
        assert spliced.instructions == pytest.approx(real.instructions, rel=0.01)


def test_without_the_other_layers_equal_ones_are_interchangeable(made, tmp_path):
    for converter in ("litert-torch", "torch"):
        one = made(converter)
        target = tmp_path / f"net{one.format.suffix}"
        SPLICE[one.format.name](one.files["dense", "fp32"], one.plan, target)
        assert kinds_of(target) == kinds_of(one.files["real", "fp32"])


def test_zeros_a_converter_has_built_in_come_back(made, tmp_path):
    """Networks that pad by a layer of their own: the file's convolution reads the map before it."""
    one = made("litert-torch")
    wide = next(layer for layer in layers_of(one.net) if layer.name == "biased")
    padded = wide.model_copy(update={"op": wide.op.model_copy(update={"padding": (0, 0)}), "in_size": (8, 8)})
    pair = Op(kind="conv2d", inputs=16, outputs=4), Op(kind="conv2d", inputs=4, outputs=20, kernel=(3, 3))
    target = tmp_path / "net.tflite"
    tflite_splice.splice(one.files["dense", "fp32"], [(padded, Block(branches=(pair,)))], target)
    assert kinds_of(target)["PAD"] == kinds_of(one.files["dense", "fp32"])["PAD"] + 1
    assert one.format.run(target, images(1, dtype=torch.float32)).isfinite().all()


@pytest.mark.parametrize("converter", ["litert-torch", "torch"])
def test_a_layer_that_is_not_there_is_named(made, converter, tmp_path):
    one = made(converter)
    layer, block = one.plan[0]
    wider = layer.op.model_copy(update={"outputs": 999})
    foreign = layer.model_copy(update={"name": "stage9.conv", "op": wider})
    with pytest.raises(ExportError, match=r"no operator fits layer 'stage9\.conv'"):
        SPLICE[one.format.name](one.files["dense", "fp32"], [(foreign, block)], tmp_path / "x")
    twice = [one.plan[0]] * 2
    with pytest.raises(ExportError, match="no operator fits layer 'narrow'"):
        SPLICE["tflite"](made("litert-torch").files["dense", "fp32"], twice, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", SPLICE)
def test_what_is_no_such_file_is_refused(name, tmp_path):
    with pytest.raises(ExportError, match="no such file"):
        SPLICE[name](tmp_path / "gone", [], tmp_path / "x")
    (tmp_path / "text").write_bytes(np.random.default_rng(0).bytes(2000))
    with pytest.raises(ExportError, match="export"):
        SPLICE[name](tmp_path / "text", [], tmp_path / "x")


# Transformers


class Mixer(nn.Module):
    """Attention with layers of its own for queries, keys and values: exporters make one product of them."""

    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(16), 8**-0.5
        self.q, self.k, self.v, self.proj = (nn.Linear(16, 16) for _ in range(4))
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        for norm in (self.norm, self.mlp[0]):  # as training leaves them; 1 and 0 would be left out
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        y = self.norm(x)
        q, k, v = (torch.unflatten(part(y), -1, (2, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return (x + self.mlp(x)).mean(1)


def split(layer: Layer, rank: int) -> tuple[Layer, Block]:
    first = Op(kind="linear", inputs=layer.op.inputs, outputs=rank)
    second = Op(kind="linear", inputs=rank, outputs=layer.op.outputs, bias=True)
    return layer, Block(branches=((first, second),))


@pytest.fixture(
    scope="module", params=["torch", "litert-torch", pytest.param("onnx2tf", marks=pytest.mark.slow)]
)
def mixers(request, tmp_path_factory):
    """A converter's format and three files: the network, the same with two layers split, and that spliced."""
    torch.manual_seed(0)
    net, converter = Mixer().eval(), CONVERTERS[request.param]
    layers = find_layers(net, ("q", "k", "v", "proj", "mlp.1", "mlp.3"), (16, 3, 3))[0]
    plan = [split(layer, 3) for layer in layers if layer.name in ("k", "mlp.1")]
    form, compressed = FORMATS[converter.format], copy.deepcopy(net)
    for layer, block in plan:
        replace_(compressed, layer.name, block_module(block))
    directory = tmp_path_factory.mktemp(request.param)
    dense, real, spliced = (directory / f"{name}{form.suffix}" for name in ("dense", "real", "spliced"))
    converter.convert(net, (16, 3, 3), dense, False)
    converter.convert(compressed.eval(), (16, 3, 3), real, False)
    SPLICE[form.name](dense, plan, spliced, layers=layers)
    return form, dense, real, spliced


def test_layers_that_were_made_one_come_apart(mixers):
    _, dense, real, spliced = mixers
    free = {"RESHAPE", "Reshape"}  # simplifiers join and share some
    found, wanted, before = (
        {kind: count for kind, count in kinds_of(file).items() if kind not in free}
        for file in (spliced, real, dense)
    )
    assert found == wanted != before


def test_spliced_transformers_run(mixers):
    form, dense, _, spliced = mixers
    outputs = form.run(spliced, torch.randn(2, 16, 3, 3))
    assert outputs.isfinite().all()
    assert outputs.shape == form.run(dense, torch.randn(2, 16, 3, 3)).shape
