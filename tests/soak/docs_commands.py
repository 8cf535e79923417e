"""Every command of the README and of docs/ runs, and makes what it promises.

    make docs

Each page has a folder of its own, with small stand-ins of what it takes for granted (docs_folder.py). Its
commands run in the order of the page, as they are written but for the options below, which make them cheap.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import pytest
from bench_files import SHORT
from cli_calls import run
from emulated_core import WHEEL, lacking_for_networks
from phone.fixtures import adb, adb_server, phone
from test_docs import PAGES, commands_of
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.core.presets import PRESETS
from soak.docs_folder import STAND_INS, fill

__all__ = ["adb", "adb_server", "phone"]

FEW_IMAGES = "--calibration-images 32 --selection-images 16 --report-images 16"
ADDED = {
    r"edgecompress (search|compress|prune)": FEW_IMAGES,
    r"compress search(?!.*(-m|--model))|search .*fashion_resnet": "--layers stage3.1.* --target-speedup 1.1",
    r"(search|latency build) .*zoo:resnet20": "--layers layer3.1.*",
    r"search .*(zoo:resnet20|(a76|here|phone)\.json)": "--target-speedup 1.05",
    r"(search|latency build) .*my_net": "--layers 6",
    r"my_net.* --input-size": "--input-size 32x32",
    r"search .*svd-nas": "--families S2",
    r"edgecompress compress .*zoo:resnet20": "--no-local-search",
    r"mobilenet_v2": "--input-size 64x64",
    r"edgecompress train": "--epochs 0.5 --training-images 64 --selection-images 16 --report-images 16",
    r"edgecompress recover": "--minutes 0.05 --training-images 32 --selection-images 16 --report-images 16",
    r"edgecompress synthesize": "--images 48 --batch-images 16 --iterations 8",
    r"edgecompress topology": "--images 64 --batch-images 8 --train-steps 4 --report-images 16",
    r"edgecompress topology(?!.*--epochs)": "--steps 4",
    r"topology .*--epochs": "--epochs 1",
    r"edgecompress export": "--images 16",
    r"edgecompress export .*--sizes": "--norm-images 32 --report-images 16 --converter onnx2tf",
    r"latency build": "--parts lowrank,branches --plans 3",
    r"-o mine\.json": "--parts branches",
    r"latency check": "--plans 3",
    r"device prepare": f"--litert-wheel {WHEEL}",
}
"""Options that follow what is written: of an option given twice the last one counts."""

REPLACED = {
    r"--nnodes \d+": "--nnodes 1",
    r"\bHOST:\d+": "127.0.0.1:0",
    r"bench RUN": "bench runs/exported",
    r"resume NAME": "resume killed",
    r"runs/NAME/": "runs/topology-001/",
    r"half-energy": "energy",
}
"""What stands for something of the reader's."""

PUSHED = "edgecompress bench a.tflite --device adb --benchmark-binary benchmark_model"
BUILT = "edgecompress latency build --device adb --benchmark-binary benchmark_model -o phone.json"
RESNET20 = "zoo:resnet20 --weights resnet20.pth"
BEFORE = {
    "README.md": [PUSHED],
    "measuring.md": [PUSHED],
    "recovery.md": [
        f"edgecompress synthesize {RESNET20}",
        f"edgecompress compress {RESNET20} --data cifar/ --rank-selection uniform",
    ],
    "report.md": [
        "edgecompress compress zoo:fashion_resnet --rank-selection uniform --name a",
        "edgecompress compress zoo:fashion_resnet --rank-selection energy --name b",
        f"edgecompress search --search exact --rounds 0 --data cifar/ -m {RESNET20}",
    ],
    "search.md": [f"{BUILT} -m zoo:resnet20"],
    "topology.md": [f"{BUILT} -m my_net.py:build --input-size 96x96"],
}
"""What a page takes for granted and only commands can make; they are made cheap like the others."""

MAKES = {
    "bench": "runs/*/bench-*.json",
    "compress": "runs/*/result.json",
    "export": "runs/*/**/exports/export.json",
    "latency build": "*.json",
    "latency merge": "*.json",
    "prune": "runs/*/plan.json",
    "recover": "runs/*/weights.safetensors",
    "report": "**/*.html",
    "resume": "runs/*/search.json",
    "search": "runs/*/search.json",
    "synthesize": "runs/*/synthesis.json",
    "topology": "runs/*/genotype.json",
    "train": "runs/*/weights.safetensors",
}
"""A file every such command writes, new or anew."""

SAYS = ("device prepare", "device show", "inspect", "latency check", "latency diff", "latency show", "list")
"""Commands that only print."""

PHONE = r"--device (adb|pixel4)\b|\bphone\.json"
NEEDS = {
    PHONE: lambda: [] if shutil.which("adb") else ["adb"],
    r"emulated-a76|a76\.json": lacking_for_networks,
}
"""What some commands need of the machine, and how it is told what lacks."""


def verb_of(line: str) -> str:
    """Returns the command within a line, `latency build` of the groups."""
    words = line.partition("edgecompress ")[2].split()
    return " ".join(words[: 2 if words[0] in ("latency", "device") else 1])


def cheap(line: str) -> str:
    """Returns a line with names instead of placeholders, and with what makes it quick."""
    for pattern, name in REPLACED.items():
        line = re.sub(pattern, name, line)
    return " ".join([line, *(more for pattern, more in ADDED.items() if re.search(pattern, line))])


def in_order(lines: list[str]) -> list[str]:
    """Returns the lines as they stand, but what one writes with -o is there before others name it."""
    ordered: list[int] = []
    for place, line in enumerate(lines):
        makers = [i for i, one in enumerate(lines) if i != place and written_by(one) in line.split()]
        ordered += [i for i in (*makers, place) if i not in ordered]
    return [lines[i] for i in ordered]


def without_repeats(lines: list[str]) -> list[str]:
    """Leaves out what was run before, unless there may be another latest run by now."""
    kept: list[str] = []
    for line in lines:
        since = kept[len(kept) - kept[::-1].index(line) :] if line in kept else []
        if line not in kept or any(verb_of(one) not in ("bench", "export") for one in since):
            kept.append(line)
    return kept


def written_by(line: str) -> str | None:
    """Returns the file a command is told to write."""
    words = line.split()
    return words[words.index("-o") + 1] if "-o" in words else None


def lacking(line: str) -> list[str]:
    """Returns what a command needs and this machine has not."""
    return [one for pattern, find in NEEDS.items() if re.search(pattern, line) for one in find()]


def leave_unfinished(name: str) -> None:
    """Starts a search and kills it as soon as a step of it is done."""
    words = "search --search exact --rounds 0 --layers stage1.* --families S2,S4 --budget ms=95%"
    command = [sys.executable, "-m", "edgecompress", *words.split(), *FEW_IMAGES.split(), "--name", name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(Path(f"runs/.{name}.work").glob("errors*")):
        time.sleep(0.01)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()


def call(line: str) -> str:
    """Runs a command, under torchrun in processes of its own; returns what it printed."""
    words = shlex.split(line)
    if words[0] == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout
    result = run(*words[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


def check_made(line: str, since_ns: int) -> None:
    """Makes sure a command wrote what it promises, under the names it was given."""
    words = shlex.split(line)
    asked = [words[i + 1] for i, word in enumerate(words) if word in ("-o", "--plot")]
    asked += [f"runs/{words[words.index('--name') + 1]}/run.json"] if "--name" in words else []
    asked += ["*.png"] if "--png" in words else []
    files = any(word.endswith((".tflite", ".onnx")) for word in words)
    asked += [MAKES[verb_of(line)]] if verb_of(line) in MAKES and not files and "-o" not in words else []
    for pattern in asked:
        found = [one for one in Path().glob(pattern) if one.stat().st_mtime_ns >= since_ns]
        assert found, f"{line}: made no {pattern}"


def run_page(lines: list[str]) -> list[str]:
    """Runs all commands that can be here; returns why others were not."""
    left_out = []
    for line in lines:
        if missing := lacking(line):
            left_out.append(f"{line}: {', '.join(missing)}")
            continue
        if verb_of(line) == "resume":
            leave_unfinished("killed" if "killed" in line else "stopped")
        began = time.time_ns()
        assert call(line).strip(), f"{line}: printed nothing"
        check_made(line, began)
    return left_out


@pytest.fixture
def opened(monkeypatch):
    """Pages `--open` would have shown."""
    pages: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: pages.append(url) is None)
    return pages


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, nothing prepared in the cache, and short measurements."""
    home = tmp_path / "user"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("quick", "standard"):
        monkeypatch.setitem(PRESETS, name, SHORT)
    return home


WRITTEN = {page: commands_of(page.read_text("utf-8")) for page in PAGES}
"""The commands of every page."""


def lines_of(page: Path) -> list[str]:
    """Returns what is run of a page, what it takes for granted first."""
    return [cheap(one) for one in [*BEFORE.get(page.name, []), *without_repeats(in_order(WRITTEN[page]))]]


@pytest.mark.parametrize("page", [one for one in PAGES if WRITTEN[one]], ids=lambda page: page.name)
def test_commands_of_a_page_work(page, folder, opened, request):
    lines = lines_of(page)
    if any(re.search(PHONE, line) for line in lines) and shutil.which("adb"):
        request.getfixturevalue("phone").play("size")
    fill(folder, lines)
    left_out = run_page(lines)
    assert len(opened) == sum("--open" in line for line in lines)
    if left_out:
        pytest.skip("not here: " + "; ".join(left_out))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_run_and_looked_at(page):
    text = page.read_text("utf-8").replace("\\\n", " ")
    verbs = "|".join(get_command(app).commands)
    seen = re.findall(rf"^[ \t$]*(?:[^`\n]* -m )?edgecompress (?:{verbs})\b", text, re.MULTILINE)
    assert len(seen) == len(WRITTEN[page]), "a command that is not written like the others"
    for line in lines_of(page):
        assert verb_of(line) in MAKES or verb_of(line) in SAYS, f"{line}: nothing says what it makes"
        assert not re.search(r"(?<![\w-])[A-Z]{3,}(?![\w-])", line), f"{line}: of what?"


def test_nothing_is_said_in_vain():
    written = [line for page in PAGES for line in [*BEFORE.get(page.name, []), *WRITTEN[page]]]
    lines = [line for page in PAGES for line in lines_of(page)]
    for pattern in (*ADDED, *REPLACED, *NEEDS):
        assert any(re.search(pattern, line) for line in written), pattern
    assert set(BEFORE) <= {page.name for page in PAGES if WRITTEN[page]}
    assert {*MAKES, *SAYS} == {verb_of(line) for line in lines}
    for name in STAND_INS:
        assert any(name in line for line in lines), name
