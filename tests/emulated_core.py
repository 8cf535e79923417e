"""What tests of the emulated core need; import the fixtures where they are used."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgecompress.devices.files import load_device
from edgecompress.devices.native.emulation import CROSS_LIBRARIES, LIBRARIES, prepare_emulation

WHEEL = os.environ.get("EDGECOMPRESS_TEST_WHEEL")
"""Path of the wheel of ai-edge-litert for aarch64."""
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
EMULATION = load_device("emulated-a76").emulation


def lacking():
    """Returns what counting ARM instructions needs and this machine lacks; empty: nothing."""
    found = [name for name in ("qemu-aarch64", CROSS_COMPILER, "cc") if shutil.which(name) is None]
    if "qemu-aarch64" not in found:
        told = subprocess.run(["qemu-aarch64", "-help"], capture_output=True, text=True).stdout
        found += [] if re.search(r"^-plugin", told, re.M) else ["a qemu that takes plugins"]
    return found


def lacking_for_networks():
    """Returns what running networks needs besides."""
    found = lacking()
    found += [name for name in LIBRARIES if not (CROSS_LIBRARIES / name).is_file()]
    return found + ([] if WHEEL else ["EDGECOMPRESS_TEST_WHEEL"])


@pytest.fixture(scope="session")
def arm_cache(tmp_path_factory):
    """A cache directory, as $XDG_CACHE_HOME, in which the emulated core was prepared."""
    if missing := lacking_for_networks():
        pytest.skip(f"not here: {', '.join(missing)}")
    cache = tmp_path_factory.mktemp("arm")
    prepare_emulation(cache / "edgecompress", EMULATION, litert_wheel=Path(WHEEL))
    return cache


@pytest.fixture(scope="session")
def prepared(arm_cache):
    """The emulated core."""
    return prepare_emulation(arm_cache / "edgecompress", EMULATION)
