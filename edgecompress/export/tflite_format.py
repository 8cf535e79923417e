"""TFLite files: run by LiteRT, counted, and written in other precisions by ai-edge-quantizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgecompress.core.quiet import quiet
from edgecompress.core.results import GraphFacts
from edgecompress.core.store import replacing
from edgecompress.devices.litert_graph import count_operators, operators_outside_delegate
from edgecompress.errors import ExportError
from edgecompress.export.contract import Format, check_images, package, reason
from edgecompress.export.tflite_signature import INPUT_NAME, KEY

Array = NDArray[Any]


def run(file: Path, images: Tensor) -> Tensor:
    """Returns the first output of a TFLite file for images (N, C, H, W), by LiteRT on the CPU.

    Files take (1, H, W, C) or (1, C, H, W), in float or quantised; what comes back is float.

    Raises:
        ExportError: LiteRT cannot read the file, or it does not take such images.
        MissingPackage: ai-edge-litert is not installed.
    """
    check_images(images)
    interpreter = _interpreter(file)
    taken, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    arrange = _arrangement(file, tuple(int(axis) for axis in taken["shape"]), tuple(images.shape[1:]))
    rows = []
    for image in torch.split(images, 1):
        interpreter.set_tensor(taken["index"], _quantised(arrange(image.numpy()), taken))
        _invoke(interpreter, file)
        rows.append(_dequantised(interpreter.get_tensor(given["index"]), given))
    return torch.from_numpy(np.concatenate(rows))


def _interpreter(file: Path) -> Any:  # noqa: ANN401  untyped package
    litert = package("ai_edge_litert.interpreter", what="TFLite", pip="ai-edge-litert")
    if not file.is_file():
        raise ExportError(f"{file}: there is no such file; export it first")
    try:
        with quiet():
            interpreter = litert.Interpreter(model_path=str(file), num_threads=torch.get_num_threads())
            interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"{file.name}: LiteRT cannot read it: {reason(error)}") from None
    return interpreter


def _invoke(interpreter: Any, file: Path) -> None:  # noqa: ANN401
    try:
        interpreter.invoke()
    except RuntimeError as error:
        raise ExportError(f"{file.name}: LiteRT cannot run it: {reason(error)}") from None


def _arrangement(file: Path, wanted: tuple[int, ...], image: tuple[int, ...]) -> Callable[[Array], Array]:
    channels, height, width = image
    if wanted == (1, height, width, channels):
        return lambda one: np.ascontiguousarray(one.transpose(0, 2, 3, 1))
    if wanted == (1, channels, height, width):
        return lambda one: one
    raise ExportError(
        f"{file.name}: takes images of shape {wanted}, not (1, {height}, {width}, {channels}); "
        "it was made for another size"
    )


def _quantised(values: Array, detail: dict[str, Any]) -> Array:
    kind, (scale, zero) = detail["dtype"], detail["quantization"]
    if np.issubdtype(kind, np.floating) or not scale:
        return values.astype(kind)
    limits = np.iinfo(kind)
    rounded: Array = np.clip(np.round(values / scale) + zero, limits.min, limits.max)
    return rounded.astype(kind)


def _dequantised(values: Array, detail: dict[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    exact = values.astype(np.float32)
    return (exact - np.float32(zero)) * np.float32(scale) if scale else exact


def inspect(file: Path) -> GraphFacts:
    """Counts the operators of a TFLite file and those XNNPACK leaves aside.

    Raises:
        ExportError: LiteRT cannot read the file.
        MissingPackage: ai-edge-litert is not installed.
    """
    kinds = count_operators(file)
    taken = _interpreter(file).get_input_details()[0]
    return GraphFacts(
        operators=kinds,
        transposes=kinds.get("TRANSPOSE", 0),
        outside_delegate=operators_outside_delegate(file),
        input_shape=tuple(int(axis) for axis in taken["shape"]),
        input_type=np.dtype(taken["dtype"]).name,
    )


def to_fp16(source: Path, target: Path, images: Tensor | None = None) -> None:
    """Stores weights in float16: half the size; runtimes compute in float16 where the processor can.

    Raises:
        ExportError: the file cannot be read.
    """
    kinds = package("ai_edge_quantizer.qtyping", what="TFLite fp16", pip="ai-edge-quantizer")
    recipes = package("ai_edge_quantizer.recipe_manager", what="TFLite fp16", pip="ai-edge-quantizer")
    recipe = recipes.RecipeManager()
    half = kinds.TensorQuantizationConfig(num_bits=16, dtype=kinds.TensorDataType.FLOAT)
    recipe.add_quantization_config(
        regex=".*",
        operation_name=kinds.TFLOperationName.ALL_SUPPORTED,
        op_config=kinds.OpQuantizationConfig(
            weight_tensor_config=half,
            compute_precision=kinds.ComputePrecision.FLOAT,
            explicit_dequantize=True,
        ),
        algorithm_key="float_casting",
    )
    _recode(source, target, recipe, None)


def to_int8(source: Path, target: Path, images: Tensor | None) -> None:
    """Writes int8 weights per channel and int8 activations, calibrated on images (N, C, H, W).

    Input and output stay float32, so that the file can take the float file's place.

    Raises:
        ExportError: the file cannot be read or quantised, or there are no images.
    """
    assert images is not None  # the pipeline refuses int8 without images
    check_images(images)
    kinds = package("ai_edge_quantizer.qtyping", what="TFLite int8", pip="ai-edge-quantizer")
    recipes = package("ai_edge_quantizer.recipe_manager", what="TFLite int8", pip="ai-edge-quantizer")
    recipe = recipes.RecipeManager()
    recipe.add_static_config(
        regex=".*",
        operation_name=kinds.TFLOperationName.ALL_SUPPORTED,
        activation_num_bits=8,
        weight_num_bits=8,
    )
    for end in (kinds.TFLOperationName.INPUT, kinds.TFLOperationName.OUTPUT):
        recipe.add_quantization_config(regex=".*", operation_name=end, algorithm_key="no_quantize")
    _recode(source, target, recipe, images)


def _recode(source: Path, target: Path, recipe: Any, images: Tensor | None) -> None:  # noqa: ANN401
    module = package("ai_edge_quantizer.quantizer", what="TFLite", pip="ai-edge-quantizer")
    _interpreter(source)  # LiteRT looks at the whole file; the quantiser trusts it
    with replacing(target) as temporary, quiet():
        try:
            quantizer = module.Quantizer(str(source))
            quantizer.load_quantization_recipe(recipe.get_quantization_recipe())
            found = None if images is None else _ranges(source, recipe, images)
            quantizer.quantize(found).export_model(str(temporary), overwrite=True)
        except (ValueError, RuntimeError) as error:
            raise ExportError(f"{target.name}: cannot be quantised: {reason(error)}") from None


def _ranges(source: Path, recipe: Any, images: Tensor) -> Any:  # noqa: ANN401
    """Returns the least and largest value every tensor takes; the package's own choice is a moving
    average, which cuts off what rare images need."""
    calibrator = package("ai_edge_quantizer.calibrator", what="TFLite int8", pip="ai-edge-quantizer")
    values = package("ai_edge_quantizer.utils.qsv_utils", what="TFLite int8", pip="ai-edge-quantizer")
    found = calibrator.Calibrator(
        str(source), num_threads=torch.get_num_threads(), qsv_update_func=values.min_max_update
    )
    found.calibrate({KEY: _samples(source, images)}, recipe)
    return found.get_model_qsvs()


def _samples(file: Path, images: Tensor) -> list[dict[str, Array]]:
    shape = tuple(int(axis) for axis in _interpreter(file).get_input_details()[0]["shape"])
    arrange = _arrangement(file, shape, tuple(images.shape[1:]))
    return [{INPUT_NAME: arrange(image.numpy())} for image in torch.split(images, 1)]


FORMAT = Format(
    "tflite",
    "TFLite for LiteRT on Android and boards",
    ".tflite",
    "NHWC",
    run,
    inspect,
    {"fp16": to_fp16, "int8": to_int8},
)
