"""`edgecompress quickstart`: compress a network that comes along, export it and check the files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from edgecompress import export
from edgecompress.core.plugins import discover
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import CompressResult, ParityResult, QuickstartResult
from edgecompress.core.store import new_directory
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.errors import ConfigError
from edgecompress.export.contract import Exporter
from edgecompress.export.parity import check_parity
from edgecompress.nets.artefact import load
from edgecompress.nets.sources import LoadedModel, load_model, zoo_entries
from edgecompress.pipeline.compress import compress

EXPORTS = "exports"
"""Directory within the run."""
PARITY_IMAGES = 256
PARITY_RTOL = 1e-4
"""Sums of float32 in another order stay some 50 times below this in all networks of the zoo."""


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
    the dense network, `model.onnx` and `dense.onnx`. What is exported is read back from the run.

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
    networks = {"dense": dense.module, "model": load(result.run)}
    files = _exported(networks, _report_images(dense, result), Path(result.run) / EXPORTS, progress)
    return QuickstartResult(
        compress=result,
        exports=(files["model"],),
        dense_onnx=files["dense"],
        seconds=round(time.perf_counter() - start, 3),
    )


def _require_images(loaded: LoadedModel) -> None:
    if loaded.data is None:
        ready = ", ".join(f"zoo:{name}" for name, entry in zoo_entries().items() if entry.data)
        raise ConfigError(
            f"{loaded.ref.source}: comes without images; quickstart takes {ready}, "
            "for others use `edgecompress compress MODEL --data SOURCE`"
        )


def _report_images(loaded: LoadedModel, result: CompressResult) -> Tensor:
    """Returns some of the images the accuracy was reported on; fewer are always a part of more."""
    assert loaded.data is not None and result.split is not None  # checked before
    source = open_source(loaded.data, loaded.ref.preprocess)
    wanted = min(PARITY_IMAGES, result.split.report)
    report = make_splits(source, calibration=0, selection=0, report=wanted, seed=0).report
    assert report is not None  # compress reported on at least one
    return report.tensors()[0]


def _exported(
    networks: Mapping[str, nn.Module], images: Tensor, path: Path, progress: Progress
) -> dict[str, ParityResult]:
    exporter = discover(export, Exporter)["onnx"]
    _, *shape = images.shape
    found = {}
    with new_directory(path) as directory:
        for name, network in progress.track(networks.items(), "exporting to ONNX"):
            file = directory / (name + exporter.suffix)
            exporter.export(network, (shape[0], shape[1], shape[2]), file)
            parity = check_parity(exporter, file, network, images, rtol=PARITY_RTOL)
            found[name] = parity.model_copy(update={"file": str(path / file.name)})
    return found
