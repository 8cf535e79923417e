"""What a TFLite file consists of, and which of its operators XNNPACK leaves to slower kernels."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from edgecompress.core.quiet import quiet
from edgecompress.errors import ExportError, MissingPackage

_MARK = b"TFL3"
"""Bytes 4 to 8 of every TFLite file."""

_DELEGATE = "DELEGATE"
"""What LiteRT calls the node that stands for a stretch of operators given to a delegate."""

_DAMAGED = (struct.error, IndexError, ValueError, TypeError, AttributeError, OverflowError)
"""What reading a flatbuffer that points outside itself ends in."""

Node = Mapping[str, Any]


def count_operators(file: Path) -> dict[str, int]:
    """Returns how many operators of each kind a file has, all subgraphs together, as `{"CONV_2D": 12}`.

    Raises:
        ExportError: the file is missing, damaged or not TFLite.
        MissingPackage: ai-edge-litert is not installed.
    """
    check_tflite(file)
    schema = litert_module("ai_edge_litert.schema_py_generated")
    try:
        kinds = Counter(_kinds(schema, file.read_bytes()))
    except _DAMAGED:
        raise ExportError(f"{file}: damaged or cut off; export it again") from None
    return dict(sorted(kinds.items()))


def operators_outside_delegate(file: Path) -> dict[str, int]:
    """Returns how many operators of each kind XNNPACK does not take; empty: it takes all.

    Raises:
        ExportError: LiteRT cannot read or prepare the file.
        MissingPackage: ai-edge-litert is not installed.
    """
    return outside_delegate(open_interpreter(file, threads=1))


def outside_delegate(interpreter: Any) -> dict[str, int]:  # noqa: ANN401  untyped package
    """Does the same for an interpreter whose tensors are allocated."""
    # LiteRT offers no public way; these details have been there since TensorFlow 2.5. It keeps the
    # operators of the file and puts the delegate's nodes, which replace some of them, behind them.
    nodes: Sequence[Node] = interpreter._get_ops_details()
    delegates = [node for node in nodes if node["op_name"] == _DELEGATE]
    own = [node for node in nodes if node["op_name"] != _DELEGATE]
    inside = {index for one in delegates for index in _replaced(one, own)}
    kinds = Counter(str(node["op_name"]) for node in own if node["index"] not in inside)
    return dict(sorted(kinds.items()))


def _replaced(delegate: Node, nodes: Sequence[Node]) -> set[int]:
    """Returns the operators between a delegate's inputs and outputs, walking backwards from the outputs."""
    maker = {int(tensor): node for node in nodes for tensor in node["outputs"]}
    given = {int(tensor) for tensor in delegate["inputs"]}
    waiting, found = _tensors(delegate["outputs"]), set[int]()
    while waiting:
        tensor = waiting.pop()
        if tensor in given or tensor not in maker or maker[tensor]["index"] in found:
            continue
        found.add(maker[tensor]["index"])
        waiting += _tensors(maker[tensor]["inputs"])
    return found


def _tensors(indices: Iterable[Any]) -> list[int]:
    """Leaves out -1, which stands for an optional input that is not there."""
    return [int(index) for index in indices if index >= 0]


def open_interpreter(file: Path, *, threads: int) -> Any:  # noqa: ANN401  untyped package
    """Returns an interpreter with its tensors allocated and XNNPACK in place, LiteRT's default.

    Raises:
        ExportError: LiteRT cannot read or prepare the file.
        MissingPackage: ai-edge-litert is not installed.
    """
    check_tflite(file)
    litert = litert_module("ai_edge_litert.interpreter")
    try:
        with quiet():
            interpreter = litert.Interpreter(model_path=str(file), num_threads=threads)
            interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"{file}: LiteRT cannot run it: {' '.join(str(error).split())}") from None
    return interpreter


def check_tflite(file: Path) -> None:
    """Does nothing for a file that begins as TFLite files do.

    Raises:
        ExportError: it is missing, cannot be read or begins otherwise.
    """
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
    except FileNotFoundError:
        raise ExportError(f"{file}: there is no such file; export it first") from None
    except OSError as error:
        raise ExportError(f"{file}: cannot be read: {error.strerror or error}") from None
    if start[4:8] != _MARK:
        raise ExportError(f"{file}: is not a TFLite file; export the network with --tflite")


def litert_module(name: str) -> ModuleType:
    """Imports a part of LiteRT when it is needed.

    Raises:
        MissingPackage: ai-edge-litert is not installed.
    """
    try:
        with quiet():
            return import_module(name)
    except ImportError:
        raise MissingPackage("TFLite: needs ai-edge-litert; run: pip install ai-edge-litert") from None


def _kinds(schema: ModuleType, data: bytes) -> Iterator[str]:
    model = schema.Model.GetRootAs(data, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    codes = [_kind(model.OperatorCodes(i), names) for i in range(model.OperatorCodesLength())]
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    return (
        codes[graph.Operators(i).OpcodeIndex()] for graph in graphs for i in range(graph.OperatorsLength())
    )


def _kind(code: Any, names: Mapping[int, str]) -> str:  # noqa: ANN401  generated classes without types
    # Codes from 127 on did not fit in the older field, which files keep for old readers.
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    custom = code.CustomCode()
    return custom.decode("utf-8", errors="replace") if custom else names.get(number, f"operator {number}")
