"""Exported files as bags of rows, one per operator: its kind, the shapes it reads and writes, its options."""

import math
import re
from collections import Counter

import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import helper

NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}


def rows_of(file):
    """Returns the rows of a TFLite or ONNX file."""
    return Counter(tflite_rows(file) if file.suffix == ".tflite" else onnx_rows(file))


def tflite_rows(file):
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file.read_bytes(), 0))
    main = model.subgraphs[0]
    for operator in main.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        kind = NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]
        tensors = [*operator.inputs, -1, *operator.outputs]
        shapes = [_shape(kind, main.tensors[index]) if index >= 0 else None for index in tensors]
        yield kind, repr(shapes), repr(sorted(_options(operator).items()))


def _options(operator):
    options = vars(operator.builtinOptions) if operator.builtinOptions else {}
    return {name: value for name, value in options.items() if name != "keepNumDims"}


def _shape(kind, tensor):
    shape = [int(axis) for axis in tensor.shape]
    if kind == "FULLY_CONNECTED" and len(shape) > 1:  # however the tokens are laid out
        shape = [math.prod(shape[:-1]), shape[-1]]
    scales = tensor.quantization.scale if tensor.quantization else None
    return shape, int(tensor.type), 0 if scales is None else len(scales)


def onnx_rows(file):
    model = onnx.load(file)
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        one.name: [axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in (*graph.input, *graph.value_info, *graph.output)
    }
    constants = {one.name: list(one.dims) for one in graph.initializer}
    shapes |= constants
    for node in graph.node:
        options = sorted((one.name, repr(helper.get_attribute_value(one))) for one in node.attribute)
        yield node.op_type, repr([shapes[name] for name in (*node.input, *node.output)]), repr(options)


def kinds_of(file):
    """Returns how many operators of each kind a file has."""
    found = Counter()
    for (kind, *_), count in rows_of(file).items():
        found[re.sub("_read$", "", kind)] += count
    return found
