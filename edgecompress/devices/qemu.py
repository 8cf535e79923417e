"""Runs our ARM runner under qemu and counts what it executes.

The guest gets no environment, and copies of its files in a folder whose name is always as long, so
that its memory is laid out the same on every machine and a count is the same every time.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgecompress.devices.benchmark_model import last_line
from edgecompress.devices.board_runner import FAULT_OF_MODEL
from edgecompress.devices.native.build import LIBRARY, RUNNER
from edgecompress.devices.native.emulation import Prepared
from edgecompress.devices.transport import Done
from edgecompress.errors import DeviceError, ExportError, MissingPackage

QEMU = "qemu-aarch64"
GRAPH = "net.tflite"
"""What the runner is given as the network's file."""
COUNTS = "counts.txt"
FOLDER_LENGTH = 100
"""The loader keeps the path of what it loads: a longer one moves all that comes after it in memory."""
NO_QEMU = f"{QEMU}: no such program; on Debian 12: apt-get install qemu-user"
NEEDS_PLUGINS = "counting needs a qemu of release 6 to 8 built with plugins, as qemu-user of Debian 12"
HELP_TIMEOUT_S = 20.0
USAGE_ERROR = 2
"""Exit code of the runner."""
LAST_MARK = 3
"""After the second inference: the first still sets memory up. The third would be the same to within 160
instructions."""
STEADY = (f"--graph={GRAPH}", "--num_runs=1", "--mark")
"""After one uncounted run, so that there are two."""


def find_qemu() -> str:
    """Returns the path of a qemu that takes plugins.

    Raises:
        MissingPackage: there is none, or it takes none.
    """
    program = shutil.which(QEMU)
    if program is None:
        raise MissingPackage(NO_QEMU)
    program = str(Path(program).absolute())
    told = _call([program, "-help"], Path("/"), timeout_s=HELP_TIMEOUT_S, name="-help").out
    if not re.search(r"^-plugin\b", told, re.MULTILINE):
        raise MissingPackage(f"{program}: takes no plugins; {NEEDS_PLUGINS}")
    return program


def check_emulation(prepared: Prepared, *, timeout_s: float = 60.0) -> None:
    """Does nothing where qemu, the plugin, the runner and ARM's libraries work together.

    Raises:
        MissingPackage: there is no qemu that takes plugins of our kind.
        DeviceError: something else fails.
    """
    with _folder(prepared) as folder:
        done = _run(prepared, folder, [], plugin_options=[f"out={COUNTS}"], timeout_s=timeout_s)
    if done.code != USAGE_ERROR or "--graph=FILE is missing" not in done.err:
        raise _failure(done, file=RUNNER, cpu=prepared.cpu)


def counted_marks(file: Path, prepared: Prepared, *, timeout_s: float) -> list[dict[str, int]]:
    """Runs a file twice and returns what was counted up to each mark, before and after every run.

    Raises:
        ExportError: the file cannot be read or run.
        DeviceError: qemu fails or takes too long.
        MissingPackage: there is no qemu that takes plugins of our kind.
    """
    options = [f"out={COUNTS}"]
    with _folder(prepared, file) as folder:
        done = _run(prepared, folder, STEADY, plugin_options=options, timeout_s=timeout_s, name=file.name)
        if done.code != 0:
            raise _failure(done, file=file.name, cpu=prepared.cpu)
        written = folder / COUNTS
        return parse_marks(written.read_text(encoding="utf-8") if written.exists() else "", file=file.name)


def parse_marks(text: str, *, file: str) -> list[dict[str, int]]:
    """Reads what the plugin wrote: `mark=0 instructions=12 ...`, one line per mark.

    Raises:
        DeviceError: marks are missing.
    """
    lines = [re.findall(r"(\w+)=(\d{1,18})(?!\S)", line) for line in text.splitlines()]
    marks = [{name: int(value) for name, value in line} for line in lines]
    if [one.pop("mark", None) for one in marks] != list(range(LAST_MARK + 1)):
        raise DeviceError(f"{file}: {len(marks)} of {LAST_MARK + 1} marks were counted; try again")
    return marks


def run_on_arm(file: Path, prepared: Prepared, data: bytes, *, timeout_s: float) -> bytes:
    """Runs a file on the bytes of its inputs and returns those of its outputs.

    Raises:
        ExportError: the file cannot be read or run, or the inputs do not fit it.
        DeviceError: qemu fails or takes too long.
        MissingPackage: there is no qemu.
    """
    options = [f"--graph={GRAPH}", "--num_runs=1", "--input=in", "--output=out"]
    with _folder(prepared, file) as folder:
        (folder / "in").write_bytes(data)
        done = _run(prepared, folder, options, plugin_options=[], timeout_s=timeout_s, name=file.name)
        if done.code != 0:
            raise _failure(done, file=file.name, cpu=prepared.cpu)
        return (folder / "out").read_bytes()


@contextlib.contextmanager
def _folder(prepared: Prepared, file: Path | None = None) -> Iterator[Path]:
    """Makes a folder of `FOLDER_LENGTH` characters with runner, library and network."""
    padding = FOLDER_LENGTH - len(str(Path(tempfile.gettempdir()) / "edgecompress-12345678"))
    with tempfile.TemporaryDirectory(prefix=f"edgecompress-{padding * '-'}") as name:
        folder = Path(name)
        for file_of_runner in (prepared.runner, prepared.runner.with_name(LIBRARY)):
            shutil.copy(file_of_runner, folder)
        if file is not None:
            (folder / GRAPH).symlink_to(file.resolve())
        yield folder


def _run(
    prepared: Prepared,
    folder: Path,
    options: Sequence[str],
    *,
    plugin_options: Sequence[str],
    timeout_s: float,
    name: str = RUNNER,
) -> Done:
    plugin = str(prepared.plugin.resolve()).replace(",", ",,")  # as qemu writes a comma
    words = [find_qemu(), "-cpu", prepared.cpu, "-L", str(prepared.root.resolve())]
    words += ["-plugin", ",".join([f"file={plugin}", *plugin_options])] if plugin_options else []
    return _call([*words, f"./{RUNNER}", *options], folder, timeout_s=timeout_s, name=name)


def _call(words: Sequence[str], folder: Path, *, timeout_s: float, name: str) -> Done:
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{name}: not done under {QEMU} after {timeout_s:g} s; give it more with --timeout"
        ) from None
    except FileNotFoundError:
        raise MissingPackage(NO_QEMU) from None
    except OSError as error:
        raise MissingPackage(f"{words[0]}: cannot be run: {error.strerror or error}") from None
    # a script in qemu's place may be removed after the system has found it and before its shell opens it
    if done.returncode != 0 and not Path(words[0]).exists():
        raise MissingPackage(NO_QEMU)
    return Done(done.returncode, done.stdout, done.stderr)


def _failure(done: Done, *, file: str, cpu: str) -> DeviceError | ExportError | MissingPackage:
    said = last_line(done.err)
    own = said.removeprefix(f"{RUNNER}: ")
    if done.code == -signal.SIGILL:
        return DeviceError(
            f"{file}: needs an instruction the emulated {cpu} lacks; "
            "in the device file the features must be those of the cpu"
        )
    if done.code == -signal.SIGKILL:
        return DeviceError(f"{file}: {QEMU} was killed with it; end other programs to free memory")
    if done.code < 0:
        return ExportError(f"{file}: the runner crashed with it on the emulated {cpu} (signal {-done.code})")
    if own != said and done.code == FAULT_OF_MODEL:
        return ExportError(f"{file}: cannot be run on the emulated {cpu}: {own}")
    if own == said and "plugin" in said:
        return MissingPackage(f"{QEMU}: {said}; {NEEDS_PLUGINS}")
    return DeviceError(f"{file}: {QEMU} failed with it: {own}")
