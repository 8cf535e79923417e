"""Writes one block as a TFLite file of its own, with the operators our exporters give it in a whole network.

Going through a converter takes seconds for each of the thousands of blocks of a search space; writing the
file takes milliseconds. Weights are random: their values do not change the time.
"""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.types import Block, Size
from edgecompress.latency.tflite_chain import End, map_shape, write_block_ops
from edgecompress.latency.tflite_graph import new_graph


def write_block(block: Block, in_size: Size, path: Path, dtype: str = "float32", *, seed: int = 0) -> None:
    """Writes a block for one input of `in_size`: (1, H, W, C) for convolutions, (tokens, C) for linear ones.

    With `dtype` "int8" weights and maps are int8, the file's input and output too.

    Raises:
        MissingPackage: ai-edge-litert is not installed.
        ArtefactError: the file cannot be written.
    """
    graph, first = new_graph(seed=seed), block.branches[0][0]
    source = graph.entrance(map_shape(first.kind, in_size, first.inputs), int8=dtype == "int8")
    result = write_block_ops(graph, block, source, in_size, End())
    graph.main.inputs, graph.main.outputs = [source], [result]
    graph.main.operators = graph.added
    graph.write(path)
