import os
import pty
import re
import subprocess
import sys

from edgecompress.core.progress import NO_PROGRESS, terminal_progress

LOOP = """
from edgecompress.core.progress import terminal_progress
with terminal_progress() as progress:
    for outer in progress.track(range(2), "calibrating"):
        for inner in progress.track(iter("abc"), "fitting", total=3):
            pass
"""


def run_in_terminal(code, **env):
    """Runs Python code with a terminal as stderr and returns what the terminal got."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code]
    subprocess.run(command, stderr=theirs, check=True, env=os.environ | {"TERM": "xterm-256color"} | env)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    return shown.decode()


def test_a_terminal_shows_nested_loops():
    shown = run_in_terminal(LOOP)
    assert "calibrating" in shown
    assert "fitting" in shown


CHANGING = """
import time
from edgecompress.core.progress import terminal_progress
class Standing(list):
    def __str__(self):
        return f"loss {sum(self)}"
with terminal_progress() as progress:
    standing = Standing()
    for item in progress.track(range(1, 4), standing):
        standing.append(item)
        time.sleep(0.3)
"""


def test_a_description_may_change_on_the_way():
    shown = run_in_terminal(CHANGING)
    assert "loss 0" in shown
    assert "loss 3" in shown


def test_no_color_is_kept_to():
    colour = re.compile(r"\x1b\[(\d+;)*3[0-8][;m]")
    assert colour.search(run_in_terminal(LOOP))
    plain = run_in_terminal(LOOP, NO_COLOR="1")
    assert "calibrating" in plain
    assert not colour.search(plain)


def test_nothing_is_shown_where_stderr_is_no_terminal(capfd):
    subprocess.run([sys.executable, "-c", LOOP], check=True)
    assert capfd.readouterr() == ("", "")


def test_every_item_comes_through_in_order():
    with terminal_progress() as progress:
        assert list(progress.track(iter("abc"), "letters", total=3)) == ["a", "b", "c"]
    assert list(NO_PROGRESS.track([3, 1, 2], "numbers")) == [3, 1, 2]
