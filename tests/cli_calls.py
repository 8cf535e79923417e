"""Calls of the command line, and the law its errors keep."""

import subprocess
import sys

from typer.testing import CliRunner

from edgecompress.cli.main import app


def run(*args):
    """Runs a command in this process."""
    return CliRunner().invoke(app, [str(arg) for arg in args])


def start(*args, **more):
    """Runs a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "edgecompress", *map(str, args)], capture_output=True, text=True, **more
    )


def check_one_line_error(result, *parts):
    """The law of errors: exit code 1, nothing on stdout, one line on stderr that begins with our name."""
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("edgecompress: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
