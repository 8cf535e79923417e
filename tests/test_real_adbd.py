"""The driver against Google's own adbd.

Debian 13 has it as the package `adbd`. Unpack that and the packages it depends on with `dpkg -x` into
one directory and name it in EDGECOMPRESS_ADBD_ROOT; nothing is installed, and root is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from phone.fixtures import needs_adb
from phone.phone import HERE, write_files

ADBD_ROOT = os.environ.get("EDGECOMPRESS_ADBD_ROOT")


@needs_adb
@pytest.mark.real_adbd
@pytest.mark.skipif(ADBD_ROOT is None, reason="EDGECOMPRESS_ADBD_ROOT does not name a directory with adbd")
@pytest.mark.skipif(not all(map(shutil.which, ("unshare", "ip"))), reason="needs unshare and ip")
def test_googles_adbd_is_measured_on_like_our_own(tmp_path):
    phone, home = tmp_path / "phone", tmp_path / "home"
    write_files(phone)
    home.mkdir()
    assert ADBD_ROOT is not None
    namespaces = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ]
    beside = [sys.executable, HERE / "on_real_adbd.py", phone, home]
    done = subprocess.run(
        [*namespaces, "sh", HERE / "real_adbd.sh", phone, Path(ADBD_ROOT).absolute(), *beside],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
