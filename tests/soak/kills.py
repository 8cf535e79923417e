"""Kills commands at random moments, lets them go on, and compares what they make with the undisturbed.

    python tests/soak/kills.py --moments 60 --json

Every moment is a fresh start in an empty folder: a process that runs the command, and all it has started,
are killed (SIGKILL) after it has computed for a time drawn evenly from nothing to what the undisturbed
command takes, and then a user goes on as the documentation says. Processes are forked from one that has
loaded the libraries, so that moments fall into the work itself. Weights, plans, tables, images and exported
files must be the same bytes, records the same but for what the clock says in them. A command that ended
before its moment counts for nothing and is started again. Exits with 1 where a result differs, is lost, or
something is left behind.
"""

# ruff: noqa: T201  what it prints is its result

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
os.environ["OMP_NUM_THREADS"] = "1"  # before torch, which cannot be forked with threads

import edgecompress.pipeline.latency_build  # noqa: E402  loaded here, and not anew in every process
import edgecompress.pipeline.resume  # noqa: E402, F401
from edgecompress.cli.main import main as main_of_command  # noqa: E402
from soak.killed_commands import (  # noqa: E402  needs the path above
    Case,
    Words,
    chosen_cases,
    found,
    left_over,
    make_folder,
    next_words,
    prepare,
    reason_to_leave_out,
    temporary_base,
)

POLL_S = 0.002
ERRORS = "errors.txt"
LOADED = "loaded.txt"
QUIET = {
    "edgecompress",
    "torch",
    "torchvision",
    "scipy",
    "numpy",
    "onnx",
    "onnxscript",
    "sympy",
    "PIL",
    "rich",
}
Environment = dict[str, str]


@dataclass(frozen=True)
class Moment:
    """One kill and what came of it."""

    at_s: float
    steps: int
    """Finished steps that were on the disk; the command before may have loaded libraries, no more."""
    faults: tuple[str, ...]


@dataclass
class Row:
    """What came of all kills of one command."""

    command: str
    seconds: float
    """Of computing, of the undisturbed command."""
    killed: int = 0
    in_the_middle: int = 0
    """Kills that found finished steps."""
    same: int = 0
    leftovers: int = 0
    faults: tuple[str, ...] = ()

    def add(self, moment: Moment) -> None:
        """Counts a moment."""
        self.killed += 1
        self.in_the_middle += moment.steps > 0
        self.same += not [one for one in moment.faults if not one.startswith("left")]
        self.leftovers += any(one.startswith("left") for one in moment.faults)
        self.faults += tuple(f"at {moment.at_s:.2f} s: {one}" for one in moment.faults)


def main() -> int:
    """Kills all commands asked for and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=60, help="in all, dealt out evenly")
    parser.add_argument("--only", nargs="*", help="commands; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    cases = chosen_cases(asked.only)
    with temporary_base() as name:
        environment = prepare(Path(name) / "cache")
        rows = [_row(one, asked.moments // len(cases), asked.seed, Path(name), environment) for one in cases]
    _print(rows, as_json=asked.json)
    return int(any(row.faults for row in rows))


def _row(case: Case, moments: int, seed: int, base: Path, environment: Environment) -> Row:
    if reason := reason_to_leave_out(case):
        return Row(case.name, 0.0, faults=(reason,))
    base = base / case.name.replace(" ", "-")
    whole, rng = _folder(case, base, "whole", environment), random.Random(f"{seed} {case.name}")
    _call(case.words, whole, environment)
    assert found(case, whole), f"{case.name}: made nothing that could be compared"
    _load_as(whole)
    again = _folder(case, base, "again", environment)
    row = Row(case.name, round(_call(case.words, again, environment), 2))
    if found(case, whole) != found(case, again):
        row.faults += ("undisturbed, it gives another result the second time",)
    while row.killed < moments:
        folder = _folder(case, base, f"{row.killed:03d}-{rng.randrange(10**9)}", environment)
        moment = _moment(case, folder, whole, rng.uniform(0, row.seconds), environment)
        if moment is not None:
            row.add(moment)
            print(f"{case.name}: {moment}", file=sys.stderr, flush=True)
    return row


def _folder(case: Case, base: Path, name: str, environment: Environment) -> Path:
    folder = make_folder(base, name)
    if case.first:
        _call(case.first, folder, environment)
    return folder


def _moment(case: Case, folder: Path, whole: Path, at_s: float, environment: Environment) -> Moment | None:
    """Kills a command and goes on; None where it had ended before."""
    if not _killed(case.words, folder, at_s, environment):
        return None
    steps, faults = case.begun(folder), []
    try:
        _go_on(case, folder, environment)
    except RuntimeError as error:
        faults.append(str(error))
    wanted, got = found(case, whole), found(case, folder)
    faults += [
        f"differs: {one}" for one in sorted(wanted.keys() | got.keys()) if wanted.get(one) != got.get(one)
    ]
    faults += [f"left behind: {one}" for one in left_over(case, folder)]
    return Moment(round(at_s, 2), steps, tuple(faults))


def _killed(words: Words, folder: Path, at_s: float, environment: Environment) -> bool:
    process = _started(words, folder, environment)
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0) and _computed_s(process) < at_s:
        time.sleep(POLL_S)
    if ended == (0, 0):
        os.killpg(process, signal.SIGKILL)
        ended = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(ended[1]) == -signal.SIGKILL


def _started(words: Words, folder: Path, environment: Environment) -> int:
    """Starts a command in a process and a group of its own."""
    process = os.fork()
    if process == 0:
        _run_and_exit(words, folder, environment)
    while _group(process) == os.getpgrp():  # it is not yet on its own: killing its group would be our end
        time.sleep(POLL_S)
    return process


def _group(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return process


def _run_and_exit(words: Words, folder: Path, environment: Environment) -> NoReturn:
    """Does what `edgecompress WORDS` would do in a process that has just been started."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment | {"TMPDIR": str(folder / "tmp")})
    tempfile.tempdir = None  # looked up anew
    for target, descriptor in ((os.devnull, 1), (str(folder / "tmp" / ERRORS), 2)):
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv, code = ["edgecompress", *words], 1
    try:
        main_of_command()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as Python does at the end of a process
        traceback.print_exc()
    finally:
        (folder / LOADED).write_text("\n".join(sys.modules))
        sys.stderr.flush()
        os._exit(code)


def _load_as(folder: Path) -> None:
    """Loads what a command has loaded; not what starts threads, which a fork would lose."""
    for name in (folder / LOADED).read_text().split():
        if name.partition(".")[0] in QUIET and name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _computed_s(process: int) -> float:
    """Returns how long a process, and children it has waited for, have computed, whatever else runs."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _go_on(case: Case, folder: Path, environment: Environment) -> None:
    """Does as a user would: goes on where that can be, else begins anew."""
    words = next_words(case, None)
    assert words is not None
    try:
        _call(words, folder, environment)
    except RuntimeError as error:
        if words == case.words:
            raise
        again = next_words(case, str(error))
        if again is not None:
            _call(again, folder, environment)


def _call(words: Words, folder: Path, environment: Environment) -> float:
    """Runs a command to its end, and returns for how many seconds it computed."""
    errors = folder / "tmp" / ERRORS
    errors.unlink(missing_ok=True)
    _, status, used = os.wait4(_started(words, folder, environment), 0)
    code, said = os.waitstatus_to_exitcode(status), errors.read_text()[-500:]
    errors.unlink()
    if code != 0:
        raise RuntimeError(f"`{' '.join(words[:2])}` exits with {code}: {said}")
    return used.ru_utime + used.ru_stime


def _print(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    names = ("seconds", "killed", "in the middle", "same", "leftovers")
    print(f"{'command':16}" + "".join(f"{name:>15}" for name in names))
    for row in rows:
        counts = (row.seconds, row.killed, row.in_the_middle, row.same, row.leftovers)
        print(f"{row.command:16}" + "".join(f"{one:>15}" for one in counts))
        for fault in row.faults:
            print(f"    {fault}")


if __name__ == "__main__":
    sys.exit(main())
