"""Foreign output: all of it is caught, nothing is lost afterwards, and everything is as before."""

# ruff: noqa: T201  printing is what is tested

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from edgecompress.core.quiet import quiet

CHATTER = """
import ctypes, logging, os, subprocess, sys, warnings
from edgecompress.core.quiet import quiet

def talk(word):
    print(word, "print")
    print(word, "error", file=sys.stderr)
    os.write(1, f"{word} one\\n".encode())
    os.write(2, f"{word} two\\n".encode())
    ctypes.CDLL(None).printf(f"{word} printf\\n".encode())  # stays in a buffer of C
    subprocess.run(["echo", word, "child"])
    warnings.warn(word + " warning")
    logging.warning(word + " logging")

def talk_quietly():
    with quiet() as said:
        talk("inside")
        return said()
"""


def run_python(code: str, **more) -> subprocess.CompletedProcess[str]:
    """Runs a program with pipes for its output, which C and Python fill in blocks."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, **more
    )


def test_nothing_reaches_the_terminal_from_inside_and_everything_from_outside():
    done = run_python(CHATTER + "talk('before'); caught = talk_quietly(); talk('after')")
    assert "inside" not in done.stdout + done.stderr
    for word in ("before", "after"):
        assert sorted(line for line in done.stdout.splitlines() if word in line) == sorted(
            f"{word} {what}" for what in ("print", "one", "printf", "child")
        )
        for what in ("error", "two", "warning", "logging"):
            assert f"{word} {what}" in done.stderr


def test_what_was_said_can_be_asked_for():
    done = run_python(CHATTER + "print(sorted(talk_quietly().splitlines()))")
    expected = sorted(f"inside {what}" for what in ("print", "error", "one", "two", "printf", "child"))
    assert done.stdout == f"{expected}\n" and done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_program_without_output_works_too(closed, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(CHATTER + "open('said', 'w').write(talk_quietly())", encoding="utf-8")
    done = subprocess.run(f'"{sys.executable}" "{program}" {closed}', shell=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert "inside print" in (tmp_path / "said").read_text()


def test_under_pytests_capture_of_file_descriptors_nothing_gets_through(capfd):
    print("before")
    with quiet() as said:
        print("inside")
        os.write(2, b"below\n")
        subprocess.run(["echo", "child"], check=True)
        assert sorted(said().split()) == ["below", "child", "inside"]
    print("after", file=sys.stderr)
    assert capfd.readouterr() == ("before\n", "after\n")


def test_under_pytests_capture_of_streams_nothing_gets_through(capsys):
    print("before")
    with quiet() as said:
        print("inside")
        print("error", file=sys.stderr)
        assert sorted(said().split()) == ["error", "inside"]
    print("after")
    assert capsys.readouterr() == ("before\nafter\n", "")


def test_one_inside_another_catches_its_own_part():
    with quiet() as outer:
        print("first")
        with quiet() as inner:
            print("second")
            assert inner() == "second\n"
        print("third")
        assert outer() == "first\nthird\n"


def test_what_is_not_utf_8_does_no_harm():
    with quiet() as said:
        os.write(1, b"\xff\xfe caf\xc3\xa9\n")
        assert "café" in said()


@pytest.mark.parametrize("failing", [False, True])
def test_everything_is_as_before_also_after_an_error(failing, capfd):
    streams, filters = (sys.stdout, sys.stderr), list(warnings.filters)
    descriptors = sorted(Path("/proc/self/fd").iterdir())
    try:
        with quiet():
            warnings.warn("foreign", stacklevel=1)
            ctypes.CDLL(None).printf(b"buffered")
            if failing:
                raise ValueError("told")
    except ValueError as error:
        assert str(error) == "told"
    assert (sys.stdout, sys.stderr) == streams and warnings.filters == filters
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors
    assert logging.root.manager.disable == logging.NOTSET
    os.write(1, b"out")
    os.write(2, b"err")
    assert capfd.readouterr() == ("out", "err")


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO, logging.CRITICAL])
def test_logging_is_silent_inside_and_as_loud_as_before_outside(level, caplog):
    logging.disable(level)
    try:
        with quiet():
            logging.getLogger("foreign").error("inside")
            assert logging.root.manager.disable >= max(level, logging.ERROR)
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("foreign").error("outside")
    assert [record.message for record in caplog.records] == ["outside"]


def test_logging_comes_back_where_there_is_no_room_for_what_is_caught(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"), quiet():
        pass
    assert logging.root.manager.disable == logging.NOTSET
