"""What a terminal shows of synthetic images."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.model_flags import model_flags
from edgecompress.core.synthesis_results import ShardSummary, SynthesisResult, SynthesisSettings
from edgecompress.core.types import ModelRef
from edgecompress.report.tables import add_row, lines, table, title

SHOWN = 12
"""Files listed one by one."""
WHY = {"iterations": "all iterations", "plateau": "no improvement", "diverged": "diverged"}


def synthesis_text(result: SynthesisResult) -> RenderableType:
    """Returns how the loss fell in every file, and what to do with the images."""
    left = len(result.shards) - SHOWN
    return Group(
        title(result.model.source, f"{result.images} images from {result.norms} batch norms"),
        _shards(result.shards[:SHOWN]),
        *lines([f"and {left} more files"] if left > 0 else []),
        *lines([_how(result.settings), *result.warnings]),
        Text(f"{result.seconds:.0f} s"),
        Text.assemble("written to ", (result.run, "bold")),
        Text.assemble("look at: ", (f"{result.run}/{result.contact_sheet}", "bold")),
        Text(f"next: edgecompress compress {_model(result.model)} --data {result.run}"),
    )


def _model(ref: ModelRef) -> str:
    return f"{shlex.quote(ref.source)}{model_flags(ref)}"


def _shards(shards: tuple[ShardSummary, ...]) -> Table:
    rows = table("file", "images", "loss", "to", "as target class", "iterations", "ended by", right_from=1)
    for one in shards:
        asked = "-" if one.asked_class is None else f"{100 * one.asked_class:.0f} %"
        figures = (f"{one.start_loss:.4g}", f"{one.end_loss:.4g}", asked, str(one.iterations))
        add_row(rows, one.file.removesuffix(".safetensors"), str(one.images), *figures, WHY[one.stopped])
    return rows


def _how(settings: SynthesisSettings) -> str:
    of = "each image" if settings.statistics == "image" else f"{settings.batch_images} images together"
    classes = ", classes evenly distributed" if settings.class_weight else ""
    return f"preset {settings.preset}: statistics of {of}{classes}"
