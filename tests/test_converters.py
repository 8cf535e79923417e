"""Every converter: files compute what the network computes, in the form promised, or a line says why not."""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from export_nets import (
    SHAPE,
    Doing,
    check_one_line,
    compressed_network,
    images,
    noise_of,
    pass_on,
    singular_vectors,
    small_network,
    spectrum,
    turn_dark_images,
)
from torch import nn

import edgecompress
from edgecompress import export
from edgecompress.core.plugins import discover
from edgecompress.errors import ArtefactError, ConfigError, ExportError
from edgecompress.export import tflite_onnx2tf
from edgecompress.export.contract import Converter, Format, missing_packages
from edgecompress.export.parity import Limits, check_parity, outputs
from edgecompress.nets.export_ready import export_ready

FORMATS = discover(export, Format)
CONVERTERS = discover(export, Converter)
every_converter = pytest.mark.parametrize("converter", CONVERTERS.values(), ids=lambda one: one.name)
TO_TFLITE = [one for one in CONVERTERS.values() if one.format == "tflite"]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return compressed_network()


@pytest.fixture(scope="module")
def made(network, tmp_path_factory) -> dict[str, tuple[Path, str]]:
    """The network as a file of every converter, once for all tests as one of them is slow, and its noise."""
    ready, found = export_ready(network, SHAPE), {}
    for name, one in CONVERTERS.items():
        file = tmp_path_factory.mktemp(name) / f"model{FORMATS[one.format].suffix}"
        found[name] = (file, noise_of(lambda one=one, file=file: one.convert(ready, SHAPE, file, False)))
    return found


def format_of(converter: Converter) -> Format:
    return FORMATS[converter.format]


# The file


@every_converter
def test_a_file_computes_what_the_network_computes(converter, network, made):
    file, _ = made[converter.name]
    expected = outputs(network, images())
    assert expected.std(0).min() > 0.05, "answers too much alike to be told apart"
    result = check_parity(format_of(converter), file, expected, images(), limits=Limits(rtol=1e-5))
    assert result.format == converter.format and result.file == str(file)
    assert result.images == 6 and result.top1_agreement == 1


@every_converter
def test_a_change_of_any_layer_would_be_found_out(converter, network, made):
    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) > 30
    file, _ = made[converter.name]
    computed = format_of(converter).run(file, images(2))
    fixed = Format("", "", "", "", lambda file, images: computed, format_of(converter).inspect, {})
    for name in layers:
        other = copy.deepcopy(network)
        with torch.no_grad():
            other.get_submodule(name).weight *= 1.05
        with pytest.raises(ExportError, match="not faithful"):
            check_parity(fixed, file, outputs(other, images(2)), images(2), limits=Limits(rtol=1e-4))


@every_converter
def test_a_file_takes_one_image_in_the_documented_order(converter, made):
    channels, height, width = SHAPE
    promised = {"NCHW": (1, channels, height, width), "NHWC": (1, height, width, channels)}
    facts = format_of(converter).inspect(made[converter.name][0])
    assert facts.input_shape == promised[format_of(converter).layout]
    assert facts.input_type == "float32"
    assert format_of(converter).layout in converter.summary or converter.format == "onnx"


@every_converter
def test_a_file_has_no_operator_too_many(converter, network, made):
    facts = format_of(converter).inspect(made[converter.name][0])
    kinds = {kind.upper().replace("_", ""): count for kind, count in facts.operators.items()}
    layers = sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules())
    multiplying = ("CONV", "CONV2D", "DEPTHWISECONV2D", "GEMM", "FULLYCONNECTED")
    assert sum(kinds.get(kind, 0) for kind in multiplying) == layers
    assert not {"TRANSPOSE", "BATCHNORMALIZATION", "MUL", "DROPOUT", "IDENTITY"} & kinds.keys()
    assert facts.transposes == 0 and not facts.outside_delegate


@every_converter
def test_a_file_tells_nothing_about_the_machine_it_was_made_on(converter, made):
    file, _ = made[converter.name]
    content = file.read_bytes()
    places = (edgecompress.__file__, torch.__file__, __file__)
    for place in (tempfile.gettempdir(), Path.home(), file.parent, *(Path(one).parent for one in places)):
        assert str(place).encode() not in content


@every_converter
def test_converting_is_silent_and_leaves_one_file(converter, made):
    file, noise = made[converter.name]
    assert noise == ""
    assert list(file.parent.iterdir()) == [file]


def test_tflite_files_of_all_converters_look_alike_from_outside(made):
    from ai_edge_litert.interpreter import Interpreter

    signatures = [Interpreter(model_path=str(made[one.name][0])).get_signature_list() for one in TO_TFLITE]
    assert signatures == [{"serving_default": {"inputs": ["image"], "outputs": ["logits"]}}] * len(TO_TFLITE)


# What is not converted


@every_converter
def test_networks_that_are_not_ready_are_refused(converter, tmp_path):
    half_trained = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout()).eval()
    half_trained[1].train()
    with pytest.raises(ExportError) as error:
        converter.convert(half_trained, SHAPE, tmp_path / "model", False)
    check_one_line(error, "1: is in training mode", ".eval()")
    with pytest.raises(ExportError) as error:
        converter.convert(Doing(pass_on).double(), SHAPE, tmp_path / "model", False)
    check_one_line(error, "head.weight", "float64", ".float()")
    assert not list(tmp_path.iterdir())


@every_converter
@pytest.mark.parametrize(
    ("something", "operator"),
    [(singular_vectors, "'aten._linalg_svd'"), (turn_dark_images, "data-dependent")],
)
def test_what_torch_cannot_hand_over_is_named_with_its_layer(
    converter, something, operator, tmp_path, capfd, caplog
):
    kept = tmp_path / f"model{format_of(converter).suffix}"
    kept.write_text("an earlier file")
    with pytest.raises(ExportError) as error:
        converter.convert(Doing(something), SHAPE, kept, False)
    check_one_line(error, "model.", ": stage.1: ", operator)
    assert kept.read_text() == "an earlier file" and list(tmp_path.iterdir()) == [kept]
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("converter", "operator"), [("onnx2tf", "'DFT'"), ("litert-torch", "'aten._fft_r2c'")]
)
def test_what_tflite_converters_cannot_convert_is_named_with_its_layer(converter, operator, tmp_path, capfd):
    other = next(one.name for one in TO_TFLITE if one.name != converter)
    with pytest.raises(ExportError) as error:
        CONVERTERS[converter].convert(Doing(spectrum), SHAPE, tmp_path / "model.tflite", False)
    check_one_line(error, "model.tflite: stage.1: ", converter, operator, f"--converter {other}")
    assert capfd.readouterr() == ("", "") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("converter", TO_TFLITE, ids=lambda one: one.name)
def test_tflite_files_for_any_number_of_images_are_refused(converter, tmp_path):
    with pytest.raises(ConfigError) as error:
        converter.convert(Doing(pass_on), SHAPE, tmp_path / "model.tflite", True)
    check_one_line(error, "--dynamic-batch", "--onnx")


@pytest.mark.parametrize("name", ["torch", "litert-torch"])  # the third ends in the same step as the second
def test_a_place_that_cannot_be_written_is_one_line(name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArtefactError) as error:
        CONVERTERS[name].convert(small_network(), SHAPE, tmp_path / "file" / "model", False)
    check_one_line(error, "could not be written")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("kill -9 $$", "stopped by signal 9"),
        ("exit 0", "no reason"),
        ("echo 'ValueError: odd' >&2; exit 1", "ValueError: odd"),
        ("exec sleep 60", "took over 1 s"),
    ],
)
def test_a_converter_that_dies_is_one_line(program, reason, tmp_path, monkeypatch):
    other_python = tmp_path / "python"
    other_python.write_text(f"#!/bin/sh\n{program}\n")
    other_python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other_python))
    monkeypatch.setattr(tflite_onnx2tf, "TIMEOUT_S", 1)
    with pytest.raises(ExportError) as error:
        tflite_onnx2tf.convert(Doing(pass_on), SHAPE, tmp_path / "model.tflite")
    check_one_line(error, "model.tflite: onnx2tf", reason, "--converter litert-torch")
    assert list(tmp_path.iterdir()) == [other_python]


@every_converter
def test_a_converter_is_complete_here(converter):
    assert missing_packages(converter) == ()
    assert converter.format in FORMATS and converter.summary
