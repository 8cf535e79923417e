"""Writes small TFLite files with the schema that comes with LiteRT: no converter, a few milliseconds."""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

KINDS = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int64": schema.TensorType.INT64,
}


def write_chain(path, operators, *, kind="float32", shape=(1, 4, 4, 2)):
    """Writes a file of operators with one input and one output, such as `RELU`, one after the other."""
    codes = sorted(set(operators))
    model = schema.ModelT()
    model.version = 3
    model.description = "a chain"
    model.buffers = [schema.BufferT()]
    model.operatorCodes = [_code(name) for name in codes]
    graph = schema.SubGraphT()
    graph.tensors = [_tensor(f"t{i}", kind, shape) for i in range(len(operators) + 1)]
    graph.inputs, graph.outputs = [0], [len(operators)]
    graph.operators = [_operator(codes.index(name), i) for i, name in enumerate(operators)]
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path


def _code(name):
    code = schema.OperatorCodeT()
    number = getattr(schema.BuiltinOperator, name)
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
    return code


def _tensor(name, kind, shape):
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.shape, tensor.buffer = name, KINDS[kind], np.array(shape, np.int32), 0
    if kind in ("int8", "uint8"):
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [0.1], [0]
    return tensor


def _operator(code, place):
    operator = schema.OperatorT()
    operator.opcodeIndex, operator.inputs, operator.outputs = code, [place], [place + 1]
    return operator
