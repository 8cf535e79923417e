"""Builds the runner: our C, compiled against the LiteRT library of the wheel for the board's machine.

A board gets the same LiteRT release as is installed here, so that figures of both can be compared.
What was built is kept by release, machine and hash of the source, and never built twice.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from edgecompress.core.store import new_directory, replacing
from edgecompress.core.types import Record
from edgecompress.errors import ConfigError, MissingPackage

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("litert.h", "litert_runner.c", "network.c", "network.h")
)
RUNNER = "litert_runner"
LIBRARY = "libLiteRt.so"
PACKAGE = "ai-edge-litert"
BOARD_MACHINE = "aarch64"
CROSS_PACKAGES = {
    "aarch64": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "x86_64": "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
}
"""Debian packages of a compiler for each machine LiteRT has wheels for."""
DEFAULT_VERSION = "2.3.0"
"""Where the package is not installed here."""
OLDEST_VERSION = (2, 2)
"""Functions the runner calls have other arguments in older ones."""
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")
LINK_FLAGS = (
    "-lm",
    "-Wl,--allow-shlib-undefined",  # the library's own needs are met on the board
    "-Wl,-rpath,$ORIGIN",  # found beside the runner, wherever that is put
)
PLATFORMS = ("manylinux_2_27", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
COMPILE_TIMEOUT_S = 120.0
DOWNLOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Built:
    """A runner and the library it needs beside it."""

    runner: Path
    library: Path
    machine: str
    litert_version: str


class DevicePrepared(Record):
    """What `edgecompress device prepare` made, or found made already."""

    device: str
    """The name that was asked for."""
    machine: str
    """As `aarch64`."""
    litert_version: str
    runner: str
    library: str
    """LiteRT's library, which the runner needs beside it."""
    plugin: str | None = None
    """For an emulated device: what counts its instructions, loaded into qemu."""
    root: str | None = None
    """For an emulated device: the files its programs see in place of this machine's."""


def wanted_version() -> str:
    """Returns the LiteRT release that is installed here, or the one the runner was written for."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return DEFAULT_VERSION


def find_built(directory: Path, *, machine: str = BOARD_MACHINE) -> Built | None:
    """Returns the runner for a machine if it was prepared; builds nothing."""
    built = _place(directory, machine)
    return built if built.runner.is_file() and built.library.is_file() else None


def prepare(
    directory: Path,
    *,
    machine: str = BOARD_MACHINE,
    compiler: str | None = None,
    litert_wheel: Path | None = None,
) -> Built:
    """Builds the runner for a machine unless it was built before.

    Without `litert_wheel` the library is taken from the package installed here where this is such a
    machine, and else fetched with pip, which needs the network.

    Raises:
        ConfigError: the wheel is for another machine or release, or is no wheel; or LiteRT has none.
        MissingPackage: there is no compiler or no wheel, or the compiler fails.
        ArtefactError: the directory cannot be written.
    """
    if machine not in CROSS_PACKAGES:
        raise ConfigError(f"machine {machine!r}: LiteRT has no wheel; known are: {', '.join(CROSS_PACKAGES)}")
    found = find_built(directory, machine=machine)
    if found is not None and litert_wheel is None:
        return found
    _check_version()
    program = _find_compiler(machine, compiler)
    goal = _place(directory, machine)
    with new_directory(goal.runner.parent, replace=True) as folder:
        _place_library(folder, machine, litert_wheel)
        _compile(program, folder, machine)
    return goal


def _place(directory: Path, machine: str) -> Built:
    version = wanted_version()
    folder = directory / f"runner-{version}-{machine}-{_source_hash()[:12]}"
    return Built(folder / RUNNER, folder / LIBRARY, machine, version)


def _source_hash() -> str:
    digest = hashlib.sha256(" ".join(FLAGS + LINK_FLAGS).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _check_version() -> None:
    version = wanted_version()
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise MissingPackage(
            f"{PACKAGE} {version} is too old for the runner; pip install '{PACKAGE}>={oldest}'"
        )


def _is_this_machine(machine: str) -> bool:
    return sys.platform == "linux" and machine == platform.machine()


def _how_to_get_compiler(machine: str) -> str:
    packages = "gcc libc6-dev" if _is_this_machine(machine) else CROSS_PACKAGES[machine]
    return f"on Debian: apt-get install {packages}; or name another compiler with --compiler"


def _find_compiler(machine: str, compiler: str | None) -> str:
    program = compiler or ("cc" if _is_this_machine(machine) else f"{machine}-linux-gnu-gcc")
    if shutil.which(program) is None:
        raise MissingPackage(f"{program}: no such compiler; {_how_to_get_compiler(machine)}")
    return program


def _compile(program: str, folder: Path, machine: str) -> None:
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    runner = folder / RUNNER
    words = [*FLAGS, *sources, "-o", str(runner), f"-L{folder}", f"-l:{LIBRARY}", *LINK_FLAGS]
    compile_c(program, words, what="the runner", advice=_how_to_get_compiler(machine))
    runner.chmod(0o755)


def compile_c(program: str, words: Sequence[str], *, what: str, advice: str) -> None:
    """Runs a compiler; `what` it builds and how to get a better one are for the message.

    Raises:
        MissingPackage: it fails or cannot be run.
    """
    done = _call([program, *words], timeout_s=COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        reason = _telling_line(done.stderr)
        raise MissingPackage(f"{program}: cannot build {what}: {reason}; {advice}")


def _place_library(folder: Path, machine: str, wheel: Path | None) -> None:
    if wheel is not None:
        content = _library_in(wheel, machine)
    elif _is_this_machine(machine):
        content = _installed_library().read_bytes()
    else:
        with tempfile.TemporaryDirectory() as downloads:
            content = _library_in(_download(machine, Path(downloads)), machine)
    with replacing(folder / LIBRARY) as temporary:
        temporary.write_bytes(content)


def _installed_library() -> Path:
    spec = util.find_spec(PACKAGE.replace("-", "_"))
    library = Path(spec.origin).parent / LIBRARY if spec and spec.origin else None
    if library is None or not library.is_file():
        raise MissingPackage(f"{PACKAGE} is not installed; pip install '{PACKAGE}=={wanted_version()}'")
    return library


def _download(machine: str, folder: Path) -> Path:
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    wanted = f"{PACKAGE}=={wanted_version()}"
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = _call(
        [*words, *platforms, "--python-version", python, "--dest", str(folder), wanted],
        timeout_s=DOWNLOAD_TIMEOUT_S,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = _telling_line(done.stderr)
        raise MissingPackage(
            f"{wanted} for {machine}: could not be fetched: {reason}; "
            "download the wheel elsewhere and pass it with --litert-wheel"
        )
    return wheels[0]


def _library_in(wheel: Path, machine: str) -> bytes:
    """Returns the library in a wheel whose name says that it is the right one."""
    match = re.fullmatch(r"ai_edge_litert-([^-]+)-.+_(x86_64|aarch64)\.whl", wheel.name)
    wanted = wanted_version()
    if match is None or (match[1], match[2]) != (wanted, machine):
        raise ConfigError(f"{wheel}: not the wheel of {PACKAGE} {wanted} for {machine}; pass that one")
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"ai_edge_litert/{LIBRARY}")
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{wheel}: cannot be unpacked: {reason}; download it again") from None


def _call(words: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingPackage(f"{words[0]}: took over {timeout_s:g} s; try again") from None
    except OSError as error:
        raise MissingPackage(f"{words[0]}: cannot be run: {error.strerror or error}") from None


def _telling_line(text: str) -> str:
    """Returns the first line with an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines[-1:] or ["it printed nothing"])[0][:200]
