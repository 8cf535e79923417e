"""The commands that are killed, small enough to be run often, and what of their results must be equal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulated_core import EMULATION, WHEEL, lacking_for_networks

from edgecompress.devices.native.emulation import prepare_emulation

NET = """
from torch import nn


def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )
"""
TIMES = frozenset({"seconds", "minutes", "created", "sha256", "spent_s"})
"""What a record says of the clock. Hashes cover it; what they are hashes of is compared itself."""
RUN = Path("runs/it")
WORK = Path("runs/.it.work")
TABLE = Path("table.json")
EXPORTS = Path("exports")
RECOVERED = Path("runs/recover-base-001")
"""Named by the command itself."""
UNKNOWN = "is not an unfinished run"
FINISHED = "is finished"
Words = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A command, in an empty folder."""

    name: str
    words: Words
    result: Path
    """The file or directory it makes."""
    begun: Callable[[Path], int]
    """How many finished steps a killed one has left in its folder; what is looked at after a kill."""
    resumes: bool = False
    """Whether `edgecompress resume` goes on with it; else the same command does."""
    first: Words = ()
    """A command that makes what this one needs."""


def _files_in(work: Path, suffix: str = "") -> Callable[[Path], int]:
    def count(folder: Path) -> int:
        own = {"begun.json", "lock"}
        return sum(one.name not in own and one.name.endswith(suffix) for one in (folder / work).glob("*"))

    return count


def _lines_of_journal(folder: Path) -> int:
    journal = folder / f".{TABLE.name}.journal"
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.is_file() else 0


CASES = (
    Case(
        "search",
        (
            *("search", "--search", "exact", "--rounds", "0", "--layers", "stage1.*", "--families", "S2,S4"),
            *("--calibration-images", "32", "--selection-images", "16", "--report-images", "16"),
            *("--budget", "ms=95%", "--name", RUN.name),
        ),
        RUN,
        _files_in(WORK),
        resumes=True,
    ),
    Case(
        "latency build",
        (
            *("latency", "build", "-m", "net.py:small", "--input-size", "12x12", "--device", "emulated-a76"),
            *("--plans", "4", "--parts", "lowrank,branches", "-o", str(TABLE)),
        ),
        TABLE,
        _lines_of_journal,
    ),
    Case(
        "train",
        (
            *("train", "zoo:fashion_resnet", "--fresh", "--epochs", "4", "--training-images", "128"),
            *("--selection-images", "16", "--report-images", "16", "--batch-images", "32"),
            *("--augment", "crop2,flip", "--name", RUN.name),
        ),
        RUN,
        _files_in(WORK),
        resumes=True,
    ),
    Case(
        "recover",
        (
            *("recover", "base", "--steps", "16", "--training-images", "128", "--selection-images", "16"),
            *("--report-images", "16", "--batch-images", "16"),
        ),
        RECOVERED,
        _files_in(Path(f"runs/.{RECOVERED.name}.work")),
        resumes=True,
        first=(
            *("compress", "zoo:fashion_resnet", "--factors", "plain", "--no-refit", "--no-local-search"),
            *("--calibration-images", "16", "--selection-images", "16", "--report-images", "16"),
            *("--budget", "macs=60%", "--name", "base"),
        ),
    ),
    Case(
        "synthesize",
        (
            *("synthesize", "zoo:fashion_resnet", "--images", "12", "--batch-images", "2"),
            *("--iterations", "8", "--name", RUN.name),
        ),
        RUN,
        _files_in(WORK, "safetensors"),
        resumes=True,
    ),
    Case(
        "export",
        (
            *("export", "zoo:fashion_resnet", "--onnx", "--tflite", "--converter", "onnx2tf"),
            *("--images", "8", "-o", str(EXPORTS)),
        ),
        EXPORTS,
        _files_in(EXPORTS),
    ),
)


def reason_to_leave_out(case: Case) -> str | None:
    """Returns what a case lacks on this machine."""
    missing = lacking_for_networks() if "emulated-a76" in case.words else []
    return f"not here: {', '.join(missing)}" if missing else None


def prepare(cache: Path) -> dict[str, str]:
    """Makes the emulated core ready where that can be, and returns the environment of all commands."""
    if not lacking_for_networks():
        prepare_emulation(cache / "edgecompress", EMULATION, litert_wheel=Path(str(WHEEL)))
    return {"XDG_CACHE_HOME": str(cache)}


def make_folder(base: Path, name: str) -> Path:
    """Makes a folder to call commands in, with a place for what is temporary in it."""
    folder = base / name
    (folder / "tmp").mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    return folder


def next_words(case: Case, said: str | None) -> Words | None:
    """Returns what a user types next, after what the command before said; None: it is all done."""
    if case.resumes and said is None:
        return ("resume", case.result.name)
    if said is not None and FINISHED in said:
        return None
    return case.words


def found(case: Case, folder: Path) -> dict[str, bytes]:
    """Returns all a command has made, without what the clock says in it."""
    place = folder / case.result
    files = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): _timeless(one, folder) for one in files}


def left_over(case: Case, folder: Path) -> list[str]:
    """Returns what is in the folder besides the result and what was there."""
    ours = {"net.py", "tmp", "loaded.txt", case.result.parts[0]}
    beside = [one for one in folder.iterdir() if one.name not in ours]
    inside = [one for one in (folder / case.result).parent.iterdir() if one.name.startswith(".")]
    within = list((folder / case.result).glob(".*"))
    temporary = list((folder / "tmp").iterdir())
    return sorted({str(one.relative_to(folder)) for one in (*beside, *inside, *within, *temporary)})


def _timeless(file: Path, folder: Path) -> bytes:
    if file.suffix != ".json":
        return file.read_bytes()
    text = file.read_text().replace(str(folder), "")
    return json.dumps(_without_times(json.loads(text)), indent=1).encode()


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if key not in TIMES}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


def chosen_cases(names: Sequence[str] | None) -> list[Case]:
    """Returns the cases of these names, all of them where none is given."""
    return [one for one in CASES if not names or one.name in names]


def temporary_base() -> tempfile.TemporaryDirectory[str]:
    """Returns a directory for everything, removed at the end."""
    return tempfile.TemporaryDirectory(prefix="kills-")
