"""What is needed only while a command runs: removed at its end, and after a kill by the next command."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edgecompress.core import scratch
from edgecompress.core.scratch import own_scratch


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_something():
    """Makes a file and a directory as libraries do, and forgets them."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    (Path(tempfile.mkdtemp()) / "deep").mkdir()
    return Path(name)


def test_what_is_temporary_goes_at_the_end(base):
    with own_scratch():
        assert make_something().parent.parent == base
    assert list(base.iterdir()) == [] and tempfile.gettempdir() == str(base)


def test_it_goes_after_an_error_too(base):
    with pytest.raises(ZeroDivisionError), own_scratch():
        make_something()
        raise ZeroDivisionError
    assert list(base.iterdir()) == [] and tempfile.gettempdir() == str(base)


HOLDER = """
import tempfile, time
from edgecompress.core.scratch import own_scratch
with own_scratch():
    tempfile.mkdtemp()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(base):
    """Another process, which has a scratch of its own."""
    env = os.environ | {"TMPDIR": str(base)}
    process = subprocess.Popen([sys.executable, "-c", HOLDER], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_what_a_killed_process_left_goes_with_the_next_and_nothing_else_does(base, holder):
    (base / "edgecompress.other").mkdir()
    (base / f"{scratch.PREFIX}file").touch()
    with own_scratch():
        assert len(list(base.glob(f"{scratch.PREFIX}*"))) == 3  # the file, the other's and ours
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with own_scratch():
        pass
    assert sorted(path.name for path in base.iterdir()) == ["edgecompress.other", f"{scratch.PREFIX}file"]


def test_a_link_is_not_followed(base, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine")
    (mine / "file").touch()
    (base / f"{scratch.PREFIX}link").symlink_to(mine)
    with own_scratch():
        pass
    assert (mine / "file").exists()


@pytest.mark.parametrize("unusable", ["gone", "file/deep"])
def test_where_nothing_can_be_made_things_are_as_they_were(base, monkeypatch, unusable):
    (base / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(base / unusable))
    with own_scratch():
        assert tempfile.gettempdir() == str(base / unusable)
