"""Writes small ONNX files by hand."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
}


def write_net(path, *, kind="float32", shape=(1, 3, 8, 8)):
    """Writes a cast to float, a convolution and an average over the map; axes may be names."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT, name="to_float"),
        helper.make_node("Conv", ["x", "weight"], ["y"], pads=[1] * 4, name="convolution"),
        helper.make_node("GlobalAveragePool", ["y"], ["mean"], name="pool"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", KINDS[kind], shape)],
        [helper.make_tensor_value_info("mean", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path
