"""A converter to TFLite: through ONNX and TensorFlow with onnx2tf, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import nn

from edgecompress.errors import ConfigError, ExportError, MissingPackage
from edgecompress.export import to_onnx
from edgecompress.export.contract import Converter, Shape, missing_packages, package
from edgecompress.export.failing_layer import FORWARD
from edgecompress.export.tflite_signature import sign

TIMEOUT_S = 3600
_SAMPLE = "calibration_image_sample_data_20x128x128x3_float32.npy"


def convert(model: nn.Module, input_shape: Shape, path: Path, any_batch: bool = False) -> None:
    """Writes a network as TFLite: `image` (1, H, W, C) in, `logits` (1, classes) out.

    Raises:
        ExportError: a part of the network cannot be converted.
        ConfigError: `any_batch` is asked for.
        MissingPackage: onnx2tf or what it needs is not installed.
        ArtefactError: the file cannot be written.
    """
    if any_batch:
        raise ConfigError(
            "--dynamic-batch: TFLite files take a fixed number of images; use it with --onnx only"
        )
    if lacking := missing_packages(CONVERTER):  # not imported here: it loads TensorFlow
        raise MissingPackage(f"converter onnx2tf: needs {lacking[0]}; run: pip install edgecompress")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        to_onnx.convert(model, input_shape, directory / "model.onnx")
        _run_onnx2tf(directory, path.name)
        sign(directory / "out" / "model_float32.tflite", path)


def _run_onnx2tf(directory: Path, name: str) -> None:
    # Without this file it downloads one; the values are used only by checks that are not asked for.
    np.save(directory / _SAMPLE, np.zeros((20, 128, 128, 3), dtype=np.float32))
    command = [sys.executable, "-c", "import onnx2tf; onnx2tf.main()"]
    # it would simplify three times over what is simple already
    options = ["-i", "model.onnx", "-o", "out", "--non_verbose", "--not_use_onnxsim"]
    try:
        done = subprocess.run(
            command + options,
            cwd=directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExportError(f"{name}: onnx2tf took over {TIMEOUT_S} s; try --converter litert-torch") from None
    if done.returncode < 0:
        raise ExportError(
            f"{name}: onnx2tf was stopped by signal {-done.returncode}, perhaps for want of memory; "
            "try --converter litert-torch"
        )
    if done.returncode != 0 or not (directory / "out" / "model_float32.tflite").is_file():
        raise ExportError(f"{name}: {_failure(done.stdout + done.stderr, _nodes(directory / 'model.onnx'))}")


def _environment() -> dict[str, str]:
    """Returns an environment in which TensorFlow says little and stays on the CPU."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return {**os.environ, **quiet}


def _nodes(file: Path) -> dict[str, str]:
    """Returns the kind of operator of every node of an ONNX file, by name."""
    graph = package("onnx", what="ONNX").load(file).graph
    return {node.name: node.op_type for node in graph.node}


def _failure(said: str, nodes: Mapping[str, str]) -> str:
    """Returns in one line what it gave up on; it colours its text and adds a page of advice."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", said)
    errors = re.findall(r"^(?:ERROR: )?(\w+ OP is not yet implemented|\w*Error: .*)", text, re.MULTILINE)
    why = errors[0][:300].rstrip(".") if errors else "it gives no reason"
    node = _failed_node(text, nodes)
    if node is None:
        return f"onnx2tf failed: {why}; try --converter litert-torch"
    layer = node.rpartition("/")[0] or FORWARD
    return (
        f"{layer}: onnx2tf cannot convert the operator {nodes[node]!r}: {why}; "
        "replace it there, or try --converter litert-torch"
    )


def _failed_node(text: str, nodes: Mapping[str, str]) -> str | None:
    named = re.search(r"onnx_op_name: (\S+)", text)
    if named is not None and named[1] in nodes:
        return named[1]
    unknown = re.search(r"(\w+) OP is not yet implemented", text)
    return next((name for name, kind in nodes.items() if unknown is not None and kind == unknown[1]), None)


CONVERTER = Converter(
    "onnx2tf",
    "through ONNX and TensorFlow; image in NHWC",
    "tflite",
    ("onnx2tf", "tensorflow", "tf-keras", "onnx-graphsurgeon", "sng4onnx", "onnxsim", "ai-edge-litert"),
    convert,
)
