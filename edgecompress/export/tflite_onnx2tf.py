"""A converter to TFLite: through ONNX and TensorFlow with onnx2tf, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

from edgecompress.errors import ConfigError, ExportError, MissingPackage
from edgecompress.export import to_onnx
from edgecompress.export.contract import Converter, Shape, missing_packages
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
    options = ["-i", "model.onnx", "-o", "out", "--non_verbose"]
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
    if done.returncode != 0 or not (directory / "out" / "model_float32.tflite").is_file():
        raise ExportError(f"{name}: {_failure(done.stdout + done.stderr)}")


def _environment() -> dict[str, str]:
    """Returns an environment in which it finds `onnxsim`, a program to it, and stays on the CPU."""
    scripts = sysconfig.get_path("scripts")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return {**os.environ, **quiet, "PATH": scripts + os.pathsep + os.environ.get("PATH", "")}


def _failure(said: str) -> str:
    """Returns in one line which operator it gave up on; it colours its text and adds a page of advice."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", said)
    kind = re.search(r"onnx_op_type:\s*(\S+)", text) or re.search(r"(\w+) OP is not yet implemented", text)
    layer = re.search(r"onnx_op_name:\s*(\S+)", text)
    if kind is not None:
        where = f" of node {layer[1]!r}" if layer else ""
        return (
            f"onnx2tf cannot convert the operator {kind[1]!r}{where}; replace it in the network, "
            "or try --converter litert-torch"
        )
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*(ERROR|\w*Error)\b", line)]
    last = lines[-1] if lines else "no reason given"
    return f"onnx2tf failed: {last[:300]}; try --converter litert-torch"


CONVERTER = Converter(
    "onnx2tf",
    "through ONNX and TensorFlow; image in NHWC",
    "tflite",
    ("onnx2tf", "tensorflow", "tf-keras", "onnx-graphsurgeon", "sng4onnx", "onnxsim", "ai-edge-litert"),
    convert,
)
