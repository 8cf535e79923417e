"""Files and directories are written whole or not at all, whatever happens in the middle."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from edgecompress.core.search_results import Round
from edgecompress.core.store import (
    new_directory,
    read_record,
    replacing,
    sha256_of,
    to_json,
    write_record,
    write_text,
)
from edgecompress.core.types import Op
from edgecompress.errors import ArtefactError

RECORD = Op(kind="conv2d", inputs=3, outputs=4, kernel=(3, 3))


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def make(path, *files, replace=False):
    with new_directory(path, replace=replace) as directory:
        for file in files:
            (directory / file).write_text(file)


def one_line(error):
    return "\n" not in str(error.value)


def test_a_record_is_read_back(tmp_path):
    write_record(tmp_path / "deep" / "op.json", RECORD)
    assert read_record(tmp_path / "deep" / "op.json", Op) == RECORD
    assert names(tmp_path / "deep") == ["op.json"]
    assert json.loads(to_json(RECORD)) == json.loads((tmp_path / "deep" / "op.json").read_text())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "invalid json"),
        (b'{"kind": "conv2d", "inp', "invalid json"),
        (b"\x80\x04\x95", "not a text file"),
        (b"[]", "input should be an object"),
        (b'{"kind": "conv2d", "inputs": 3}', "outputs: "),
        (b'{"kind": "conv2d", "inputs": 3, "outputs": "many"}', "outputs: "),
        (b'{"kind": "linear", "inputs": 3, "outputs": 4, "colour": 1}', "colour: "),
    ],
)
def test_a_damaged_record_is_one_line_that_names_the_file(tmp_path, content, says):
    file = tmp_path / "op.json"
    file.write_bytes(content)
    with pytest.raises(ArtefactError, match=f"op.json: .*{says}") as error:
        read_record(file, Op)
    assert one_line(error)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity", "NaN", "9" * 400])
def test_a_number_without_end_is_refused(tmp_path, number):
    file = tmp_path / "round.json"
    rest = '"number": 1, "limit_ms": 2, "measured_ms": 2, "file": "exported", "met": true'
    file.write_text(f'{{"predicted_ms": {number}, {rest}}}')
    with pytest.raises(ArtefactError, match=r"round\.json: .*(finite|valid number)") as error:
        read_record(file, Round)
    assert one_line(error)


def test_what_only_looks_like_a_number_without_end_is_read(tmp_path):
    written = Round(
        number=1,
        limit_ms=2,
        predicted_ms=1e-200,
        measured_ms=2,
        file="exported",
        met=True,
        doubts=("NaN 1e999",),
    )
    write_record(tmp_path / "round.json", written)
    assert read_record(tmp_path / "round.json", Round) == written


def test_a_missing_record_and_a_directory_in_its_place_are_said(tmp_path):
    with pytest.raises(ArtefactError, match="no such file"):
        read_record(tmp_path / "op.json", Op)
    (tmp_path / "op.json").mkdir()
    with pytest.raises(ArtefactError, match="directory") as error:
        read_record(tmp_path / "op.json", Op)
    assert one_line(error)


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "a.txt"
    for text in ("old", "new"):
        write_text(file, text)
        assert file.read_text() == text
        assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path, error):
    file = tmp_path / "a.txt"
    write_text(file, "old")
    with pytest.raises(error), replacing(file) as temporary:
        temporary.write_text("ne")
        raise error
    assert (file.read_text(), names(tmp_path)) == ("old", ["a.txt"])


def test_a_failing_disk_is_one_line_that_names_the_file(tmp_path):
    file = tmp_path / "a.txt"
    with (
        pytest.raises(ArtefactError, match=r"a\.txt: could not be written: No space") as error,
        replacing(file),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert one_line(error)
    assert names(tmp_path) == []


def test_a_path_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a", tmp_path / "file" / "deep" / "a", tmp_path / ("x" * 300)):
        with pytest.raises(ArtefactError, match="could not be written") as error:
            write_text(path, "text")
        assert one_line(error)
        with pytest.raises(ArtefactError, match="could not be written") as error:
            make(path, "a")
        assert one_line(error)
    assert names(tmp_path) == ["file"]


def test_a_directory_in_the_place_of_a_file_is_kept(tmp_path):
    make(tmp_path / "a", "inside")
    with pytest.raises(ArtefactError, match="could not be written"):
        write_text(tmp_path / "a", "text")
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["inside"]


def test_a_directory_appears_when_it_is_complete(tmp_path):
    with new_directory(tmp_path / "run") as directory:
        (directory / "deep").mkdir()
        (directory / "deep" / "file").write_text("text")
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "run" / "deep" / "file").read_text() == "text"
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("replace", [False, True])
def test_a_directory_that_fails_half_way_leaves_what_was_there(tmp_path, error, replace):
    if replace:
        make(tmp_path / "run", "old")
    with pytest.raises(error), new_directory(tmp_path / "run", replace=replace) as directory:
        (directory / "new").write_text("")
        raise error
    assert names(tmp_path) == (["run"] if replace else [])
    assert not replace or names(tmp_path / "run") == ["old"]


def test_an_existing_directory_is_refused_unless_it_may_be_replaced(tmp_path):
    make(tmp_path / "run", "old")
    with pytest.raises(ArtefactError, match="--overwrite"):
        make(tmp_path / "run", "new")
    assert names(tmp_path / "run") == ["old"]
    make(tmp_path / "run", "new", replace=True)
    assert names(tmp_path / "run") == ["new"]
    assert names(tmp_path) == ["run"]


def test_of_a_link_to_a_directory_the_link_is_replaced(tmp_path):
    make(tmp_path / "elsewhere", "theirs")
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    for new in ("first", "second"):
        make(tmp_path / "run", new, replace=True)
        assert names(tmp_path / "run") == [new] and not (tmp_path / "run").is_symlink()
    assert names(tmp_path) == ["elsewhere", "run"] and names(tmp_path / "elsewhere") == ["theirs"]


def test_a_file_in_the_place_of_a_directory_is_never_overwritten(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ArtefactError, match="is a file"):
        make(tmp_path / "run", "new", replace=True)
    assert (tmp_path / "run").read_text() == "mine"
    assert names(tmp_path) == ["run"]


def test_the_old_directory_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    make(tmp_path / "run", "old")
    rename = Path.rename

    def fail_into_place(self, target):
        if target == tmp_path / "run" and self.name != ".run.old":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_into_place)
    with pytest.raises(ArtefactError, match="could not be written"):
        make(tmp_path / "run", "new", replace=True)
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["old"]


KILLED = """
import os, signal, sys
from pathlib import Path
from edgecompress.core.store import new_directory, replacing
base = Path(sys.argv[1])
with new_directory(base / "run", replace=True) as directory, replacing(base / "file") as temporary:
    (directory / "half").write_text("half")
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("existed", [False, True])
def test_a_killed_process_leaves_what_was_there_and_hinders_nobody(tmp_path, existed):
    if existed:
        make(tmp_path / "run", "old")
        write_text(tmp_path / "file", "old")
    before = names(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in names(tmp_path) if not name.startswith(".")] == before
    if existed:
        assert names(tmp_path / "run") == ["old"]
        assert (tmp_path / "file").read_text() == "old"
    make(tmp_path / "run", "new", replace=True)
    write_text(tmp_path / "file", "new")
    assert names(tmp_path / "run") == ["new"]
    assert (tmp_path / "file").read_text() == "new"
    assert not list(tmp_path.glob(".run.*"))  # what the killed one left is gone


def test_what_is_being_written_is_not_taken_for_what_a_killed_process_left(tmp_path):
    with new_directory(tmp_path / "run", replace=True) as first:
        (first / "first").write_text("")
        make(tmp_path / "run", "second")
        (tmp_path / ".run.2.abcd1234").mkdir()  # of another name
        make(tmp_path / "run", "third", replace=True)
    assert names(tmp_path / "run") == ["first"]
    assert names(tmp_path) == [".run.2.abcd1234", "run"]


def test_of_two_that_write_one_name_the_first_to_end_stays(tmp_path):
    with pytest.raises(ArtefactError, match="could not be written") as error, new_directory(tmp_path / "run"):
        make(tmp_path / "run", "other")
    assert one_line(error)
    assert (names(tmp_path), names(tmp_path / "run")) == (["run"], ["other"])


TAKING_TURNS = """
import sys
from pathlib import Path
from edgecompress.core.store import locked_directory, write_text
shared, own = Path(sys.argv[1]), sys.argv[2]
for turn in range(60):
    with locked_directory(shared):
        found = [file.read_text() for file in sorted(shared.iterdir())]
        assert len(set(found)) <= 1, found
        for name in ("export.json", "net.onnx", "net.tflite"):
            write_text(shared / name, f"{own} {turn}")
"""


def test_processes_that_write_several_files_into_one_directory_take_turns(tmp_path):
    """As two exports do: what a record says of files is true of them."""
    words = [sys.executable, "-c", TAKING_TURNS, str(tmp_path / "shared")]
    running = [subprocess.Popen([*words, own]) for own in ("one", "two")]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len({file.read_text() for file in (tmp_path / "shared").iterdir()}) == 1


FULL = """
import os, sys
from pathlib import Path
from edgecompress.core.store import new_directory, write_text
from edgecompress.errors import ArtefactError
base = Path(sys.argv[1])
{limit}
write_text(base / "file", "old")
for write in ("file", "directory"):
    try:
        if write == "file":
            write_text(base / "file", "x" * 1_000_000)
        else:
            with new_directory(base / "run") as directory:
                write_text(directory / "weights", "x" * 1_000_000)
    except ArtefactError as error:
        print(error)
print(sorted(os.listdir(base)), (base / "file").read_text())
"""
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"


def check_full(stdout, reason):
    first, second, left = stdout.splitlines()
    assert f"file: could not be written: {reason}" in first
    assert f"weights: could not be written: {reason}" in second
    assert left == "['file'] old"


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
def test_a_file_that_grows_too_large_leaves_what_was_there(tmp_path):
    code = FULL.format(limit=LIMIT)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    check_full(done.stdout, "File too large")


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """On a disk of 100 kB, mounted for one process only."""
    script = textwrap.dedent("""
        mount -t tmpfs -o size=100k tmpfs "$1" || exit 77
        exec "$2" -c "$3" "$1"
    """)
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare")
    command = [unshare, "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    arguments = [str(tmp_path), sys.executable, FULL.format(limit="")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "Traceback" not in done.stderr:
        pytest.skip("may not mount a small disk here")
    assert done.returncode == 0, done.stderr
    check_full(done.stdout, "No space left on device")
    assert names(tmp_path) == []


def test_the_hash_is_that_of_the_content(tmp_path):
    content = bytes(range(256)) * 10_000  # more than one chunk
    (tmp_path / "a").write_bytes(content)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(content).hexdigest()
