"""`edgecompress quickstart`: compress a network that comes along, export it and check the files."""

from __future__ import annotations

import time
from pathlib import Path

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import QuickstartResult
from edgecompress.errors import ConfigError
from edgecompress.nets.sources import LoadedModel, load_model, zoo_entries
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.export import export


def quickstart(
    *,
    model: str = "zoo:fashion_resnet",
    budget: str = "macs=50%",
    seed: int = 0,
    runs_dir: Path = Path("runs"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> QuickstartResult:
    """Compresses a network that comes with weights and images, exports both and compares the files.

    Writes a run as `compress` does; `exports/` in it holds the ONNX files of the compressed and
    the dense network, `compressed.onnx` and `dense.onnx`. What is exported is read back from the run.

    Raises:
        ConfigError: the network comes without images.
        ExportError: a file does not compute what its network does; the run stands, without `exports/`.
        EdgeCompressError: another option is wrong, as for `compress`.
    """
    start = time.perf_counter()
    dense = load_model(model)
    _require_images(dense)
    result = compress(
        model,
        budget=budget,
        seed=seed,
        runs_dir=runs_dir,
        name=name,
        overwrite=overwrite,
        progress=progress,
    )
    return QuickstartResult(
        compress=result,
        export=export(result.run, formats=("onnx",), progress=progress),
        seconds=round(time.perf_counter() - start, 3),
    )


def _require_images(loaded: LoadedModel) -> None:
    if loaded.data is None:
        ready = ", ".join(f"zoo:{name}" for name, entry in zoo_entries().items() if entry.data)
        raise ConfigError(
            f"{loaded.ref.source}: comes without images; quickstart takes {ready}, "
            "for others use `edgecompress compress MODEL --data SOURCE`"
        )
