"""`edgecompress quickstart`: the whole loop on a network that comes along: search, export, measure."""

from __future__ import annotations

import time
from pathlib import Path

from edgecompress.core.loop_results import QuickstartResult
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.errors import ConfigError
from edgecompress.nets.sources import LoadedModel, load_model, zoo_entries
from edgecompress.pipeline.bench import bench
from edgecompress.pipeline.export import export
from edgecompress.pipeline.search import MODEL, TABLE, search

PRESET = "quick"


def quickstart(
    *,
    model: str = MODEL,
    latency_table: str = TABLE,
    target_speedup: float | None = None,
    budget: str | None = None,
    seed: int = 0,
    runs_dir: Path = Path("runs"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> QuickstartResult:
    """Searches a faster network, exports both as TFLite, compares outputs and measures them here.

    Writes a run as `search` does; `exports/` in it holds `dense.tflite` and `compressed.tflite`, and
    `bench-local.json` what this machine says of them.

    Raises:
        ConfigError: the network comes without images.
        ExportError: a file does not compute what its network does; the run stands, without `exports/`.
        EdgeCompressError: another option is wrong, as for `search`.
    """
    start = time.perf_counter()
    _require_images(load_model(model))
    found = search(
        model,
        latency_table=latency_table,
        target_speedup=target_speedup,
        budget=budget,
        seed=seed,
        runs_dir=runs_dir,
        name=name,
        overwrite=overwrite,
        progress=progress,
    )
    exported = export(found.run, formats=("tflite",), progress=progress)
    measured = bench([found.run], preset=PRESET, seed=seed, progress=progress)
    return QuickstartResult(
        search=found, export=exported, bench=measured, seconds=round(time.perf_counter() - start, 3)
    )


def _require_images(loaded: LoadedModel) -> None:
    if loaded.data is None:
        ready = ", ".join(f"zoo:{name}" for name, entry in zoo_entries().items() if entry.data)
        raise ConfigError(
            f"{loaded.ref.source}: comes without images; quickstart takes {ready}, "
            "for others use `edgecompress search --model MODEL --data SOURCE`"
        )
