"""Makes an emulated ARM core ready: the plugin that counts, and the files its programs see.

qemu shows a program the files below a root in place of this machine's. Ours holds the C and C++
libraries of Debian's cross packages and says which processor this is, since kernels are picked by
that. There is one core: on a phone's list of cores qemu would seem to run on any of them, and kernels
for the little ones would be counted.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgecompress.core.device import Emulation
from edgecompress.core.store import new_directory, sha256_of
from edgecompress.devices.native import build
from edgecompress.errors import MissingPackage

PLUGIN = "count_plugin.so"
PLUGIN_SOURCE = Path(__file__).with_name("count_plugin.c")
_HEADERS = ("a64_decode.h", "a76_operations.h", "a76_pipeline.h", "a76_caches.h")
PLUGIN_HEADERS = tuple(PLUGIN_SOURCE.with_name(name) for name in _HEADERS)
PLUGIN_FLAGS = (*build.FLAGS, "-shared", "-fPIC", "-fvisibility=hidden")
COMPILER = "cc"
HOW_TO_GET_COMPILER = "on Debian: apt-get install gcc libc6-dev"

CROSS_LIBRARIES = Path("/usr/aarch64-linux-gnu/lib")
LOADER = "ld-linux-aarch64.so.1"
LIBRARIES = {
    LOADER: "libc6-arm64-cross",
    "libc.so.6": "libc6-arm64-cross",
    "libm.so.6": "libc6-arm64-cross",
    "libgcc_s.so.1": "libgcc-s1-arm64-cross",
    "libstdc++.so.6": "libstdc++6-arm64-cross",
}
"""What the runner and LiteRT need, each with the Debian package that brings it."""

CPU_FOLDER = "sys/devices/system/cpu"
CPUINFO = """\
processor\t: 0
Features\t: {features}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: {variant}
CPU part\t: {part}
CPU revision\t: {revision}

Hardware\t: {hardware}
"""


@dataclass(frozen=True)
class Prepared:
    """An emulated core with everything it needs but qemu."""

    runner: Path
    plugin: Path
    root: Path
    """The files its programs see in place of this machine's."""
    cpu: str
    litert_version: str

    @functools.cached_property
    def identity(self) -> str:
        """A hash of all that decides what is executed, so of all that decides a count."""
        files = [self.runner, self.runner.with_name(build.LIBRARY), self.plugin]
        files += sorted(path for path in self.root.rglob("*") if path.is_file())
        digest = hashlib.sha256(self.cpu.encode())
        for file in files:
            digest.update(sha256_of(file).encode())
        return digest.hexdigest()


def find_emulation(directory: Path, emulation: Emulation) -> Prepared | None:
    """Returns what was prepared for an emulated core; builds nothing."""
    built = build.find_built(directory)
    folder = _place(directory, emulation)
    return None if built is None or not folder.is_dir() else _prepared(built, folder, emulation)


def prepare_emulation(
    directory: Path,
    emulation: Emulation,
    *,
    compiler: str | None = None,
    litert_wheel: Path | None = None,
) -> Prepared:
    """Builds the runner for ARM, the plugin and the root, unless they were built before.

    Raises:
        ConfigError: the wheel is for another machine or release, or is no wheel.
        MissingPackage: a compiler, ARM's libraries or the wheel are missing.
        ArtefactError: the directory cannot be written.
    """
    built = build.prepare(directory, compiler=compiler, litert_wheel=litert_wheel)
    folder = _place(directory, emulation)
    if not folder.is_dir():
        with new_directory(folder) as temporary:
            compile_plugin(temporary / PLUGIN)
            _copy_libraries(temporary / "root")
            _describe_processor(temporary / "root", emulation)
    return _prepared(built, folder, emulation)


def _place(directory: Path, emulation: Emulation) -> Path:
    digest = hashlib.sha256(" ".join(PLUGIN_FLAGS).encode())
    for source in (PLUGIN_SOURCE, *PLUGIN_HEADERS, Path(__file__)):
        digest.update(source.read_bytes())
    digest.update(emulation.model_dump_json().encode())
    return directory / f"emulated-{emulation.cpu}-{digest.hexdigest()[:12]}"


def _prepared(built: build.Built, folder: Path, emulation: Emulation) -> Prepared:
    return Prepared(
        runner=built.runner,
        plugin=folder / PLUGIN,
        root=folder / "root",
        cpu=emulation.cpu,
        litert_version=built.litert_version,
    )


def compile_plugin(plugin: Path) -> None:
    """Builds the plugin that counts, for this machine's qemu.

    Raises:
        MissingPackage: there is no compiler, or it fails.
    """
    if shutil.which(COMPILER) is None:
        raise MissingPackage(f"{COMPILER}: no compiler for this {platform.machine()}; {HOW_TO_GET_COMPILER}")
    words = [*PLUGIN_FLAGS, str(PLUGIN_SOURCE), "-o", str(plugin)]
    build.compile_c(COMPILER, words, what="the plugin for qemu", advice=HOW_TO_GET_COMPILER)


def _copy_libraries(root: Path) -> None:
    """Puts ARM's libraries where its loader looks first, so that others on this machine do not matter."""
    missing = [package for name, package in LIBRARIES.items() if not (CROSS_LIBRARIES / name).is_file()]
    if missing:
        packages = " ".join(dict.fromkeys(missing))
        raise MissingPackage(
            f"{CROSS_LIBRARIES}: lacks ARM's libraries; on Debian: apt-get install {packages}"
        )
    folder = root / "lib" / "aarch64-linux-gnu"
    folder.mkdir(parents=True)
    for name in LIBRARIES:
        shutil.copyfile(CROSS_LIBRARIES / name, folder / name)
    (root / "lib" / LOADER).symlink_to(f"aarch64-linux-gnu/{LOADER}")
    _write(root, "etc/ld.so.cache", "")


def _describe_processor(root: Path, emulation: Emulation) -> None:
    """Writes what LiteRT's kernels read to find out where they run, and hides this machine's own."""
    cache = "cpu0/cache/index2"
    told = {
        "kernel_max": "0",
        "possible": "0",
        "present": "0",
        "online": "0",
        "cpu0/cpufreq/cpuinfo_min_freq": str(emulation.max_khz),
        "cpu0/cpufreq/cpuinfo_max_freq": str(emulation.max_khz),
        "cpu0/topology/physical_package_id": "0",
        "cpu0/topology/cluster_cpus_list": "0",
        f"{cache}/level": "2",
        f"{cache}/size": f"{emulation.l2_kb}K",
        f"{cache}/shared_cpu_list": "0",
    }
    for name, text in told.items():
        _write(root, f"{CPU_FOLDER}/{name}", f"{text}\n")
    values = emulation.model_dump() | {"features": " ".join(emulation.features)}
    _write(root, "proc/cpuinfo", CPUINFO.format(**values))


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
