"""Gives a TFLite file the signature runtimes and quantisers look for, whichever converter wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgecompress.core.store import replacing
from edgecompress.export.contract import package
from edgecompress.export.tflite_tidy import (
    cancel_transposes_,
    fold_transposes_into_means_,
    write_clamps_plainly_,
)

KEY = "serving_default"
INPUT_NAME = "image"
OUTPUT_NAME = "logits"


def sign(source: Path, target: Path) -> None:
    """Writes `source` as `target` with one signature: `image` in, `logits` out, and no metadata.

    Metadata goes because converters note there how and where they ran.
    """
    tools = package("ai_edge_litert.tools.flatbuffer_utils", what="TFLite", pip="ai-edge-litert")
    schema = package("ai_edge_litert.schema_py_generated", what="TFLite", pip="ai-edge-litert")
    model = tools.read_model(str(source))
    cancel_transposes_(model, schema)
    fold_transposes_into_means_(model, schema)
    write_clamps_plainly_(model, schema)
    graph = model.subgraphs[0]
    model.signatureDefs = [_signature(schema, graph)]
    model.description = b"edgecompress"
    model.metadata = [entry for entry in model.metadata or [] if entry.name == b"min_runtime_version"]
    with replacing(target) as temporary:
        tools.write_model(model, str(temporary))


def _signature(schema: Any, graph: Any) -> Any:  # noqa: ANN401  generated classes without types
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = KEY.encode(), 0
    signature.inputs = _tensors(schema, graph.inputs, INPUT_NAME)
    signature.outputs = _tensors(schema, graph.outputs, OUTPUT_NAME)
    return signature


def _tensors(schema: Any, indices: Any, name: str) -> list[Any]:  # noqa: ANN401
    named = []
    for number, index in enumerate(indices):
        tensor = schema.TensorMapT()
        tensor.name = (name if number == 0 else f"{name}_{number}").encode()
        tensor.tensorIndex = int(index)
        named.append(tensor)
    return named
