"""Which files are measured, and which of them each is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgecompress.core.results import ExportedFile, ExportResult
from edgecompress.core.runs import RUN_FILE, latest_run
from edgecompress.core.store import read_record
from edgecompress.devices.litert_graph import check_tflite
from edgecompress.errors import ArtefactError, ConfigError, ExportError

EXPORT_FILE = "export.json"
EXPORT_RECORD = Path("exports") / EXPORT_FILE
"""Within a run."""
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
    home: Path | None
    """The run or directory of exports they come from, where that was named and not the files."""


def find_files(what: Sequence[str], runs_dir: Path, suffixes: Sequence[str]) -> BenchFiles:
    """Finds the files meant: paths of files, one run, or one directory `export` wrote.

    Nothing given means the latest run with exported files. Files are compared with the first. Those
    of a run are compared with the dense network's float32 file of their format, and formats the
    device does not run are left out.

    Raises:
        ConfigError: a file is given twice, or runs and files are mixed.
        ArtefactError: there is no such run, or it was not exported.
        ExportError: there is no such file, or the device does not run its format.
    """
    if not what:
        return _of_home(_latest_exported(runs_dir), suffixes)
    homes = [path for text in what if (path := _as_home(text, runs_dir)) is not None]
    if homes and len(what) > 1:
        raise ConfigError(f"bench {' '.join(what)}: give files, or one run; not a mixture")
    if homes:
        return _of_home(homes[0], suffixes)
    return BenchFiles(_of_paths([Path(text) for text in what], suffixes), None)


def _latest_exported(runs_dir: Path) -> Path:
    try:
        return latest_run(runs_dir, containing=str(EXPORT_RECORD))
    except ArtefactError:
        raise ArtefactError(
            f"{runs_dir}: no run has exported files; run `edgecompress export` first, or give files"
        ) from None


def _as_home(text: str, runs_dir: Path) -> Path | None:
    marks = (RUN_FILE, EXPORT_FILE)
    places = (Path(text), runs_dir / text)
    return next((path for path in places if any((path / mark).is_file() for mark in marks)), None)


def _of_home(home: Path, suffixes: Sequence[str]) -> BenchFiles:
    record = next((path for path in (home / EXPORT_RECORD, home / EXPORT_FILE) if path.is_file()), None)
    if record is None:
        raise ArtefactError(f"{home}: has no exported files; run `edgecompress export {home}` first")
    exported = read_record(record, ExportResult).files
    files = sorted((one for one in exported if Path(one.file).suffix in suffixes), key=_order)
    if not files:
        raise ArtefactError(
            f"{home}: no exported file is of a format this device runs ({', '.join(suffixes)}); "
            f"run `edgecompress export` with --{suffixes[0].lstrip('.')}"
        )
    return BenchFiles(
        tuple(BenchFile(record.parent / one.file, _dense_of(one, files)) for one in files), home
    )


def _order(one: ExportedFile) -> tuple[str, bool, bool, str]:
    return one.format, one.network != "dense", one.precision != "fp32", one.precision


def _dense_of(one: ExportedFile, files: Sequence[ExportedFile]) -> int | None:
    """Returns where the first file of the same format is: dense comes first, float32 before others."""
    first = next(index for index, other in enumerate(files) if other.format == one.format)
    return None if files[first] is one else first


def _of_paths(paths: Sequence[Path], suffixes: Sequence[str]) -> tuple[BenchFile, ...]:
    seen: set[Path] = set()
    for path in paths:
        _check(path, suffixes)
        if path.resolve() in seen:
            raise ConfigError(f"{path}: given twice; copy it under another name to compare it with itself")
        seen.add(path.resolve())
    return tuple(BenchFile(path, None if index == 0 else 0) for index, path in enumerate(paths))


def _check(path: Path, suffixes: Sequence[str]) -> None:
    if path.is_dir():
        raise ArtefactError(f"{path}: is neither a run nor a directory of exports; give one, or files")
    if not path.is_file():
        raise ExportError(f"{path}: there is no such file or run")
    if path.suffix not in SUFFIXES:
        raise ExportError(f"{path}: neither .onnx nor .tflite by its name; export the model first")
    if path.suffix not in suffixes:
        raise ExportError(f"{path}: this device runs {' and '.join(suffixes)} files; export the model as one")
    if path.suffix == ".tflite":  # a foreign file need not reach a phone to be found out
        check_tflite(path)
