"""Which files are measured, and which of them each is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgecompress.core.results import ExportedFile, ExportResult
from edgecompress.core.runs import RUN_FILE, latest_run
from edgecompress.core.store import read_record
from edgecompress.errors import ArtefactError, ConfigError, ExportError

EXPORT_RECORD = Path("exports") / "export.json"
SUFFIXES = (".onnx", ".tflite")


@dataclass(frozen=True)
class BenchFile:
    """A file to measure."""

    path: Path
    baseline: int | None
    """Position of the file it is compared with; None for a baseline."""


@dataclass(frozen=True)
class BenchFiles:
    """Files measured together."""

    files: tuple[BenchFile, ...]
    run: Path | None
    """Where they come from, when that is a run."""


def find_files(what: Sequence[str], runs_dir: Path, suffixes: Sequence[str]) -> BenchFiles:
    """Finds the files meant: paths of files, or one run (the latest when nothing is given).

    Files are compared with the first. Those of a run are compared with the dense network's float32
    file of their format, and formats the device does not run are left out.

    Raises:
        ConfigError: a file is given twice, or runs and files are mixed.
        ArtefactError: there is no such run, or it was not exported.
        ExportError: there is no such file, or the device does not run its format.
    """
    if not what:
        return _of_run(latest_run(runs_dir, containing=str(EXPORT_RECORD)), suffixes)
    runs = [path for text in what if (path := _as_run(text, runs_dir)) is not None]
    if runs and len(what) > 1:
        raise ConfigError(f"bench {' '.join(what)}: give files, or one run; not a mixture")
    if runs:
        return _of_run(runs[0], suffixes)
    return BenchFiles(_of_paths([Path(text) for text in what], suffixes), None)


def _as_run(text: str, runs_dir: Path) -> Path | None:
    return next((path for path in (Path(text), runs_dir / text) if (path / RUN_FILE).is_file()), None)


def _of_run(run: Path, suffixes: Sequence[str]) -> BenchFiles:
    try:
        exported = read_record(run / EXPORT_RECORD, ExportResult)
    except ArtefactError as error:
        if (run / EXPORT_RECORD).is_file():
            raise
        raise ArtefactError(f"{run}: has no exported files; run `edgecompress export {run}` first") from error
    directory = (run / EXPORT_RECORD).parent
    files = sorted((one for one in exported.files if (directory / one.file).suffix in suffixes), key=_order)
    if not files:
        raise ArtefactError(
            f"{run}: no exported file is of a format this device runs ({', '.join(suffixes)}); "
            f"run `edgecompress export {run} --{suffixes[0].lstrip('.')}`"
        )
    return BenchFiles(tuple(BenchFile(directory / one.file, _dense_of(one, files)) for one in files), run)


def _order(one: ExportedFile) -> tuple[str, bool, bool, str]:
    return one.format, one.network != "dense", one.precision != "fp32", one.precision


def _dense_of(one: ExportedFile, files: Sequence[ExportedFile]) -> int | None:
    """Returns where the first file of the same format is: dense comes first, float32 before others."""
    first = next(index for index, other in enumerate(files) if other.format == one.format)
    return None if files[first] is one else first


def _of_paths(paths: Sequence[Path], suffixes: Sequence[str]) -> tuple[BenchFile, ...]:
    for path in paths:
        _check(path, suffixes)
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError(
            "bench: a file is given twice; copy it under another name to compare it with itself"
        )
    return tuple(BenchFile(path, None if index == 0 else 0) for index, path in enumerate(paths))


def _check(path: Path, suffixes: Sequence[str]) -> None:
    if path.is_dir():
        raise ArtefactError(f"{path}: is a directory without run.json; give a run or files")
    if not path.is_file():
        raise ExportError(f"{path}: there is no such file or run")
    if path.suffix not in SUFFIXES:
        raise ExportError(f"{path}: neither .onnx nor .tflite by its name; export the model first")
    if path.suffix not in suffixes:
        raise ExportError(f"{path}: this device runs {' and '.join(suffixes)} files; export the model as one")
