"""What test_real_adbd.py runs beside Google's adbd; fails by an assertion.

python on_real_adbd.py PHONE HOME
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgecompress.core.device import Device
from edgecompress.devices.adb import DRIVER, clean
from edgecompress.devices.adb_transport import AdbTransport
from edgecompress.devices.contract import BurstSize, Options
from phone.phone import BENCHMARK_MODEL, AdbServer, private_environment

SERIAL = "127.0.0.1:5555"
NASTY = ["two words", "it's", "$(touch gone)", "a;touch gone"]


def main(phone: Path, home: Path) -> None:
    server = AdbServer(private_environment(home))
    os.environ.update(server.environment)
    connect(server)
    transport = AdbTransport("adb", SERIAL)
    check_commands(transport)
    check_measuring(phone, home)
    clean(transport, runner=True)
    assert not list((phone / "data/local/tmp").iterdir())
    server.call("kill-server")


def connect(server: AdbServer) -> None:
    until_s = time.monotonic() + 10
    while "connected to" not in (answer := server.call("connect", SERIAL)):
        assert time.monotonic() < until_s, answer
        time.sleep(0.1)


def check_commands(transport: AdbTransport) -> None:
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n"), done
    assert transport.run(["printf", "%s\n", *NASTY], timeout_s=10).out.splitlines() == NASTY
    assert transport.run(["cat"], timeout_s=10).out == ""


def check_measuring(phone: Path, home: Path) -> None:
    model = home / "$(touch gone) net.tflite"
    model.write_bytes(b"TFL3" * 500_000)
    device = Device(name="any", title="Any phone", drivers=("adb",), serial=SERIAL)
    with DRIVER.open(device, Options(benchmark_binary=BENCHMARK_MODEL, timeout_s=20)) as session:
        assert session.conditions.device == "Pixel 4 (flame)", session.conditions
        assert session.conditions.cores == (7,), session.conditions
        assert session.load(model).load_ms == 9.412
        assert session.burst(model, BurstSize(10, 0.1, 0.0)).median_ms == 12.205
        assert session.settle() == ()
    (pushed,) = (phone / "data/local/tmp/edgecompress").glob("*.tflite")
    assert pushed.read_bytes() == model.read_bytes()
    assert not list(phone.glob("**/gone"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
