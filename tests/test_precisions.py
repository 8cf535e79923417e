"""Files in float16 and int8: smaller as promised, fed like the float file, and giving its answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from export_nets import CLASSES, check_one_line, unlike_identity
from torch import nn

from edgecompress import export
from edgecompress.core.plugins import discover
from edgecompress.errors import ExportError
from edgecompress.export import tflite_litert_torch, to_onnx
from edgecompress.export.contract import Format
from edgecompress.export.parity import LIMITS, Limits, check_parity, outputs
from edgecompress.nets.equalise import equalise_pairs_
from edgecompress.nets.export_ready import export_ready

FORMATS = discover(export, Format)
every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda one: one.name)
CONVERT = {"onnx": to_onnx.convert, "tflite": tflite_litert_torch.convert}
SHAPE, WIDTH = (3, 8, 8), 64


def network() -> nn.Sequential:
    """A network with a low-rank pair whose inner channels have ranges as unlike as singular values."""
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Conv2d(WIDTH, 16, 3, padding=1, bias=False), nn.Conv2d(16, WIDTH, 1))
    net = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        unlike_identity(nn.BatchNorm2d(WIDTH)),
        nn.ReLU(),
        pair,
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, CLASSES),
    ).eval()
    spread = torch.logspace(0, -3, 16)
    with torch.no_grad():
        pair[0].weight *= spread[:, None, None, None]
        pair[1].weight *= 4 / spread[None, :, None, None]
    return net


def images(count: int, *, seed: int) -> torch.Tensor:
    """Images unlike enough for the network to give every answer."""
    generator = torch.Generator().manual_seed(seed)
    tint = torch.randn(count, 3, 1, 1, generator=generator)
    return tint + 0.5 * torch.randn(count, *SHAPE, generator=generator)


CALIBRATION, PARITY = images(32, seed=1), images(100, seed=2)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return outputs(network(), PARITY)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[tuple[str, str], Path]:
    """Files of every format and precision, and int8 of a network that was not equalised as `plain`."""
    directory, found = tmp_path_factory.mktemp("files"), {}
    plain, ready = (export_ready(network(), SHAPE) for _ in range(2))
    assert equalise_pairs_(ready, [CALIBRATION]) == 1
    for name, format in FORMATS.items():
        for kind, model in (("fp32", ready), ("unlike", plain)):
            found[name, kind] = directory / f"{kind}{format.suffix}"
            CONVERT[name](model, SHAPE, found[name, kind])
        for kind, source in (("fp16", "fp32"), ("int8", "fp32"), ("plain", "unlike")):
            found[name, kind] = directory / f"{kind}{format.suffix}"
            recode = format.recode["int8" if kind == "plain" else kind]
            recode(found[name, source], found[name, kind], None if kind == "fp16" else CALIBRATION)
    return found


@every_format
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_file_gives_the_answers_of_the_network(format, precision, files, expected):
    assert expected.argmax(1).unique().numel() > 2, "images too much alike to tell answers apart"
    limits = LIMITS[precision]
    result = check_parity(format, files[format.name, precision], expected, PARITY, limits=limits)
    assert result.images == len(PARITY)


@every_format
def test_less_precise_files_are_further_off(format, files, expected):
    off = [
        check_parity(format, files[format.name, kind], expected, PARITY, limits=Limits()).max_rel_diff
        for kind in ("fp32", "fp16", "int8")
    ]
    assert 0 < off[0] < off[1] < off[2]


@every_format
def test_float16_halves_and_int8_quarters_a_file(format, files):
    whole, half, quarter = (files[format.name, kind].stat().st_size for kind in ("fp32", "fp16", "int8"))
    assert 0.45 < half / whole < 0.6
    assert 0.2 < quarter / whole < 0.4


@every_format
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_file_is_fed_and_read_as_the_float_file_is(format, precision, files):
    whole, other = (format.inspect(files[format.name, kind]) for kind in ("fp32", precision))
    assert other.input_type == whole.input_type == "float32"
    assert other.input_shape == whole.input_shape
    found = format.run(files[format.name, precision], PARITY[:1])
    assert found.shape == (1, CLASSES) and found.dtype == torch.float32
    assert not other.outside_delegate


def onnx_weight_scales(file: Path) -> list[tuple[int, int]]:
    """Returns for every weight of more than one axis its output channels and its number of scales."""
    graph = onnx.load(file).graph
    tensors = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in tensors:
            continue
        weight, scale = (tensors[name] for name in node.input[:2])
        if weight.ndim > 1:
            assert weight.dtype == np.int8
            axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
            found.append((weight.shape[axis], scale.size))
    return found


def tflite_weight_scales(file: Path) -> list[tuple[int, int]]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file))
    weights = [
        one
        for one in interpreter.get_tensor_details()
        if one["dtype"] == np.int8
        and len(one["shape"]) > 1
        and one["quantization_parameters"]["scales"].size > 1
    ]
    return [
        (
            int(one["shape"][one["quantization_parameters"]["quantized_dimension"]]),
            one["quantization_parameters"]["scales"].size,
        )
        for one in weights
    ]


@pytest.mark.parametrize("scales_of", [onnx_weight_scales, tflite_weight_scales])
def test_int8_weights_have_a_scale_per_output_channel(scales_of, files):
    found = scales_of(files[scales_of.__name__.partition("_")[0], "int8"])
    layers = [module for module in network().modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert sorted(found) == sorted((layer.weight.shape[0],) * 2 for layer in layers)


@every_format
def test_equalised_pairs_lose_less_in_int8(format, files, expected):
    def off(kind: str) -> float:
        return float((format.run(files[format.name, kind], PARITY) - expected).square().mean())

    torch.testing.assert_close(
        format.run(files[format.name, "unlike"], PARITY),
        format.run(files[format.name, "fp32"], PARITY),
        rtol=1e-4,
        atol=1e-4,
    )
    assert off("int8") < 0.5 * off("plain")


@every_format
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_recoding_is_silent_repeatable_and_leaves_its_source_alone(format, precision, files, tmp_path, capfd):
    source = files[format.name, "fp32"]
    before = source.read_bytes()
    target = tmp_path / "target"
    target.write_text("an earlier file")
    format.recode[precision](source, target, CALIBRATION)
    assert list(tmp_path.iterdir()) == [target] and source.read_bytes() == before
    assert target.read_bytes() == files[format.name, precision].read_bytes()
    assert capfd.readouterr() == ("", "")


@every_format
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_source_that_is_cut_off_is_one_line_and_the_earlier_file_stays(format, precision, files, tmp_path):
    cut, target = tmp_path / f"cut{format.suffix}", tmp_path / "target"
    cut.write_bytes(files[format.name, "fp32"].read_bytes()[:-100])
    target.write_text("an earlier file")
    with pytest.raises(ExportError) as error:
        format.recode[precision](cut, target, CALIBRATION)
    check_one_line(error, cut.name)
    assert target.read_text() == "an earlier file" and sorted(tmp_path.iterdir()) == [cut, target]
