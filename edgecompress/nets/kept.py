"""Tensors of finished steps, kept in a `Memo` as safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from safetensors.torch import load_file, save_file
from torch import Tensor

from edgecompress.core.memo import Memo
from edgecompress.nets.metric import PLAIN, LayerMetric

SIDES = ("input", "output")


def kept_tensors(memo: Memo, name: str, compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns tensors by name, computed at most once.

    They lie in memory in the same way whether computed or read: sums of floats depend on it.
    """
    computed: dict[str, Tensor] = {}

    def compute_once() -> dict[str, Tensor]:
        computed.update({key: tensor.contiguous().clone() for key, tensor in compute().items()})
        return computed

    path = memo.file(f"{name}.safetensors", lambda file: save_file(compute_once(), file))
    if path is None:
        return dict(compute())
    return computed or {key: tensor.clone() for key, tensor in load_file(path).items()}


def kept_metrics(
    memo: Memo, name: str, layers: Iterable[str], compute: Callable[[], Mapping[str, LayerMetric]]
) -> Mapping[str, LayerMetric]:
    """Returns the metrics of layers, computed at most once."""

    def tensors() -> dict[str, Tensor]:
        sides = ((layer, side, getattr(one, side)) for layer, one in compute().items() for side in SIDES)
        return {f"{side} {layer}": tensor for layer, side, tensor in sides if tensor is not None}

    kept = kept_tensors(memo, name, tensors)
    return {layer: _metric(kept.get(f"input {layer}"), kept.get(f"output {layer}")) for layer in layers}


def _metric(inputs: Tensor | None, outputs: Tensor | None) -> LayerMetric:
    return PLAIN if inputs is None and outputs is None else LayerMetric(inputs, outputs)
