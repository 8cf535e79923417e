"""The runner, built once for this machine; import the fixture where it is used."""

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from edgecompress.devices.native.build import prepare

FILES = Path(__file__).parent / "files"
SMALL, SMALL_INT8 = FILES / "small.tflite", FILES / "small_int8.tflite"
PARTLY, FREE_SIZE = FILES / "partly.tflite", FILES / "free_size.tflite"
MACHINE = platform.machine()


@pytest.fixture(scope="session")
def built_cache(tmp_path_factory):
    """A cache directory, as $XDG_CACHE_HOME, that holds the runner of this machine."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("ai-edge-litert is not installed")
    cache = tmp_path_factory.mktemp("cache")
    prepare(cache / "edgecompress", machine=MACHINE)
    return cache


@pytest.fixture(scope="session")
def built(built_cache):
    """The runner of this machine and its library."""
    return prepare(built_cache / "edgecompress", machine=MACHINE)


def call(*words, **more):
    """Runs a program to its end."""
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, **more)
