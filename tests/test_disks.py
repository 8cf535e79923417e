"""Disks that are full or cannot be written: one line, nothing half written, and it goes on later.

Small disks are mounted for one process only, in which the commands run.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_tables import SOURCE, write_home

SCRIPT = """
import json, subprocess, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cli_calls import run

disk, how, commands = Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=True)
(disk / "runs").mkdir()
(disk / "old.json").write_text("old")


def fill():
    with (disk / "filler").open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            pass


def told(words):
    done = run(*words)
    files = {str(path.relative_to(disk)): path.stat().st_size for path in disk.rglob("*") if path.is_file()}
    return {"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr, "files": files}


if how == "full":
    fill()
elif how == "read-only":
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
elif how == "full scratch":
    tempfile.tempdir = str(disk)
    fill()
found = [told(words) for words in commands]
if how == "full":
    (disk / "filler").unlink()
    found += [told(commands[-1])]
print(json.dumps(found))
"""
MODEL = (SOURCE, "--input-size", "10x10", "--data", "images.npz")
QUICK = {
    "compress": ("compress", *MODEL, "--no-local-search", "--calibration-images", "32"),
    "search": (
        *("search", "--model", *MODEL, "--latency-table", "t.json", "--search", "exact"),
        *("--rounds", "0", "--target-speedup", "1.3"),
    ),
    "prune": ("prune", *MODEL, "--widths", "30%", "--multiple", "1", "--floor", "2"),
    "train": ("train", *MODEL, "--epochs", "1"),
    "synthesize": ("synthesize", *MODEL[:3], "--images", "2", "--iterations", "1"),
}
OTHERS = ("export", *MODEL, "--onnx", "--images", "4")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model, images and a table."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
    return folder


@pytest.fixture
def on_disk(home, tmp_path):
    """Runs commands in one process, with a disk of 128 kB at `disk`, and returns what they say and leave."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(how, *commands):
        words = [[str(word).replace("DISK", str(disk)) for word in one] for one in commands]
        call = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(disk), how, json.dumps(words)]
        unshare = shutil.which("unshare")
        if unshare is None:
            pytest.skip("needs unshare")
        done = subprocess.run(
            [unshare, "--map-root-user", "--mount", *call], cwd=home, capture_output=True, text=True
        )
        if "unshare:" in done.stderr or "CalledProcessError" in done.stderr:
            pytest.skip("may not mount a small disk here")
        assert done.returncode == 0, done.stderr
        assert list(disk.iterdir()) == []  # it was mounted for that process
        return json.loads(done.stdout)

    return run


def check_refused(told, reason):
    assert (told["exit_code"], told["stdout"]) == (1, "")
    assert told["stderr"].startswith("edgecompress: ") and told["stderr"].count("\n") == 1
    assert reason in told["stderr"]


def test_a_full_disk_is_one_line_and_leaves_what_was_there(on_disk):
    runs = [(*words, "--runs-dir", "DISK/runs") for words in QUICK.values()]
    *full, again = on_disk("full", (*OTHERS, "--output", "DISK/e"), *runs)
    for told in full:
        check_refused(told, "No space left on device")
        assert told["files"].keys() == {"old.json", "filler"} and told["files"]["old.json"] == 3
    assert again["exit_code"] == 0, again["stderr"]  # there is room again
    assert {name.partition("/")[0] for name in again["files"]} == {"old.json", "runs"}


def test_a_disk_that_cannot_be_written_is_one_line(on_disk):
    runs = [(*words, "--runs-dir", "DISK/runs") for words in QUICK.values()]
    files = [
        (*OTHERS, "--output", "DISK/e"),
        ("latency", "build", "--model", *MODEL[:3], "--output", "DISK/t.json"),
        ("init", "DISK/settings.toml"),
    ]
    for told in on_disk("read-only", *runs, *files):
        check_refused(told, "Read-only file system")
        assert told["files"] == {"old.json": 3}


def test_no_room_for_what_is_temporary_is_one_line(on_disk, home):
    (told,) = on_disk("full scratch", (*OTHERS, "--output", "e"))
    check_refused(told, "No space left on device")
    assert told["files"].keys() == {"old.json", "filler"} and not (home / "e").exists()
