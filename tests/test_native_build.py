"""Building the runner: for this machine, for ARM, and the faults on the way."""

import os
import platform
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from built_runner import SMALL, SMALL_INT8, built, built_cache, call

from edgecompress.core.caches import cache_directory
from edgecompress.devices.native import build
from edgecompress.devices.native.build import find_built, prepare, wanted_version
from edgecompress.errors import ArtefactError, ConfigError, EdgeCompressError, MissingPackage

__all__ = ["built", "built_cache"]

MACHINE = platform.machine()
OTHER = "aarch64" if MACHINE != "aarch64" else "x86_64"
WHEEL = os.environ.get("EDGECOMPRESS_TEST_WHEEL")
"""Path of the wheel of ai-edge-litert for aarch64."""

needs_arm = pytest.mark.skipif(
    not (WHEEL and shutil.which("aarch64-linux-gnu-gcc")),
    reason="EDGECOMPRESS_TEST_WHEEL is not set or there is no aarch64-linux-gnu-gcc",
)
needs_qemu = pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="no qemu-aarch64")


def compiler(tmp_path, script="exit 0"):
    """A compiler that does as the script says."""
    program = tmp_path / "compiler"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def wheel_of(tmp_path, *, version=None, machine=OTHER, member="ai_edge_litert/libLiteRt.so"):
    path = tmp_path / f"ai_edge_litert-{version or wanted_version()}-cp311-cp311-manylinux_2_27_{machine}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"a library")
    return path


def check_one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# Keeping


def test_what_was_built_is_found_and_not_built_again(built, built_cache):
    written = built.runner.stat().st_mtime_ns
    again = prepare(built_cache / "edgecompress", machine=MACHINE, compiler="no-such-compiler")
    assert again == built == find_built(built_cache / "edgecompress", machine=MACHINE)
    assert again.runner.stat().st_mtime_ns == written


def test_nothing_is_found_before_it_is_built(tmp_path):
    assert find_built(tmp_path) is None


def test_other_source_is_another_runner(built, built_cache, tmp_path, monkeypatch):
    changed = [shutil.copy(source, tmp_path) for source in build.SOURCES]
    with Path(changed[0]).open("a") as stream:
        stream.write("/* changed */")
    monkeypatch.setattr(build, "SOURCES", tuple(map(Path, changed)))
    assert find_built(built_cache / "edgecompress", machine=MACHINE) is None


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "edgecompress"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "edgecompress"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    cache = tmp_path / "cache"
    failing = compiler(tmp_path, "echo 'x.c:1: error: no such header' >&2; echo more >&2; exit 1")
    with pytest.raises(MissingPackage) as caught:
        prepare(cache, compiler=failing, litert_wheel=wheel_of(tmp_path), machine=OTHER)
    check_one_line(caught, failing, "error: no such header", "apt-get install")
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="file"):
        prepare(
            tmp_path / "file", compiler=compiler(tmp_path), litert_wheel=wheel_of(tmp_path), machine=OTHER
        )


def test_the_source_compiles_without_a_warning(built):
    sources = [source for source in build.SOURCES if source.suffix == ".c"]
    flags = ("-Werror", "-Wshadow", "-Wstrict-prototypes", "-pedantic", "-fsyntax-only")
    done = call("cc", *build.FLAGS, *flags, *sources)
    assert (done.returncode, done.stderr) == (0, "")


# What is missing


def test_a_missing_compiler_comes_with_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage) as caught:
        prepare(tmp_path, machine=OTHER)
    check_one_line(caught, "no such compiler", "apt-get install", "--compiler")


def test_a_machine_without_a_wheel_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path, machine="riscv64")
    check_one_line(caught, "riscv64", "aarch64, x86_64")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"version": "1.0.1"}, "not the wheel"),
        ({"machine": MACHINE}, "not the wheel"),
        ({"member": "ai_edge_litert/other.so"}, "cannot be unpacked"),
        ({}, "cannot build"),  # the right one gets as far as the compiler
    ],
)
def test_only_the_right_wheel_is_taken(tmp_path, more, said):
    failing = compiler(tmp_path, "exit 1")
    with pytest.raises(EdgeCompressError) as caught:
        prepare(tmp_path / "cache", compiler=failing, litert_wheel=wheel_of(tmp_path, **more), machine=OTHER)
    check_one_line(caught, said)


def test_a_wheel_that_is_no_archive_is_refused(tmp_path):
    path = wheel_of(tmp_path)
    path.write_bytes(b"cut off")
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path / "cache", compiler=compiler(tmp_path), litert_wheel=path, machine=OTHER)
    check_one_line(caught, str(path), "cannot be unpacked", "download it again")


def test_a_wheel_that_cannot_be_fetched_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # so that pip has nowhere to look
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(MissingPackage) as caught:
        prepare(tmp_path / "cache", compiler=compiler(tmp_path), machine=OTHER)
    check_one_line(caught, wanted_version(), OTHER, "--litert-wheel")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_release_whose_functions_differ_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "wanted_version", lambda: "2.1.3")
    with pytest.raises(MissingPackage) as caught:
        prepare(tmp_path, machine=MACHINE)
    check_one_line(caught, "2.1.3", ">=2.2")


# ARM


@pytest.fixture(scope="module")
def arm_built(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("arm"), machine="aarch64", litert_wheel=Path(WHEEL))


CORE = """\
processor\t: {number}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""


@pytest.fixture(scope="module")
def arm_root(tmp_path_factory):
    """The libraries of the cross compiler, and a /proc/cpuinfo of a Cortex-A76.

    Without it old qemu shows this machine's own, from which the runtime would pick kernels.
    """
    root = tmp_path_factory.mktemp("root")
    (root / "lib").symlink_to("/usr/aarch64-linux-gnu/lib")
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text("".join(CORE.format(number=number) for number in range(4)))
    return root


@needs_arm
@needs_qemu
@pytest.mark.parametrize("graph", [SMALL, SMALL_INT8], ids=lambda path: path.stem)
def test_a_cortex_a76_computes_what_this_machine_computes(arm_built, arm_root, built, tmp_path, graph):
    options = [f"--graph={graph}", "--num_runs=3", "--raw"]
    qemu = ["qemu-aarch64", "-cpu", "cortex-a76", "-L", arm_root]
    here = call(built.runner, *options, f"--output={tmp_path / 'here'}")
    there = call(*qemu, arm_built.runner, *options, f"--output={tmp_path / 'there'}")
    assert (here.returncode, there.returncode, there.stderr) == (0, 0, "")
    assert there.stdout.count("sample_us=") == 3
    kind = np.int8 if graph == SMALL_INT8 else np.float32
    outputs = [np.frombuffer((tmp_path / name).read_bytes(), kind) for name in ("here", "there")]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0 if graph == SMALL_INT8 else 1e-5)


@needs_arm
def test_pip_fetches_the_wheel_of_the_board(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(Path(WHEEL).resolve().parent))
    fetched = prepare(tmp_path, machine="aarch64")
    header = fetched.runner.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert header[18:20] == (183).to_bytes(2, "little")  # EM_AARCH64
    assert fetched.library.stat().st_size > 1_000_000
