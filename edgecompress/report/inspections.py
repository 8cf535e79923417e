"""What `inspect` shows in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from edgecompress.core.results import InspectResult, LayerCost
from edgecompress.report.figures import left_alone
from edgecompress.report.numbers import count, megabytes, shape, share
from edgecompress.report.tables import add_row, lines, table, title


def inspect_text(result: InspectResult) -> RenderableType:
    """Returns a table of layers with their costs; the layers the papers compress carry a star."""
    rows = table("layer", "kind", "input", "output", "params", "MACs", "of MACs", right_from=4)
    for layer in result.layers:
        add_row(rows, *_layer_cells(layer, result))
    return Group(
        title(result.model.source, f"for inputs of {shape(result.model.input_shape)}"),
        rows,
        Text(
            f"{count(result.params)} parameters, {count(result.macs)} MACs, {megabytes(result.weight_bytes)}"
        ),
        *lines(
            [f"* compressed by default (--layers paper): {len(result.targets)}"] if result.targets else []
        ),
        *left_alone(result.skipped),
    )


def _layer_cells(layer: LayerCost, result: InspectResult) -> tuple[str, ...]:
    star = "*" if layer.name in result.targets else ""
    kind = f"{layer.kind} {layer.detail}".strip()
    sizes = (shape(layer.in_shape), shape(layer.out_shape))
    return (
        layer.name + star,
        kind,
        *sizes,
        count(layer.params),
        count(layer.macs),
        share(layer.macs, result.macs),
    )
