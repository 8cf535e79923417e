"""What phones, boards and programs print: timings, properties, cores, temperatures, counted instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from phone.phone import BATTERY, CORES, PROPERTIES, SAMPLES, THERMALSERVICE
from test_board_facts import BARE, BIG_LITTLE, CPU, PI_5, Telling

from edgecompress.core.device import Device
from edgecompress.devices import android, board_facts
from edgecompress.devices.adb import _burst, read_report
from edgecompress.devices.adb_transport import Attached, choose, parse_attached
from edgecompress.devices.benchmark_model import delegate_notes, last_line, parse
from edgecompress.devices.board_runner import read_result
from edgecompress.devices.qemu import LAST_MARK, parse_marks
from edgecompress.devices.transport import Done
from fuzz.contract import Format
from fuzz.edits import damaged_bytes, damaged_text

PHONE = "".join(
    [
        *(f"[{name}]: [{value}]\n" for name, value in PROPERTIES.items()),
        *(f"{CPU}/cpu{core}/cpu_capacity:{one[0]}\n" for core, one in enumerate(CORES)),
        *(f"{CPU}/cpu{core}/cpufreq/cpuinfo_max_freq:{one[1]}\n" for core, one in enumerate(CORES)),
        f"{CPU}/online:0-3,5-7\n",
        "/proc/cpuinfo:processor\t: 0\n/proc/cpuinfo:CPU implementer\t: 0x51\n",
        "/proc/cpuinfo:CPU part\t: 0x805\n",
        THERMALSERVICE.format(skin_c=33.6, status=0),
        BATTERY.format(usb="true", tenths_c=285),
        "cpu-thermal 45000\nskin 31\n0.52 0.58 0.59 1/389 12345\n",
    ]
)
RUNNER = """Inference timings in us: Init: 1234.5, First inference: 99.5
sample_us=10.5
sample_us=11.25
cpu_us=20.0 wall_us=21.75
fully_delegated=1
"""
MARKS = "".join(
    f"mark={mark} instructions={mark * 12345} vector_loads=7 l1_misses=3\n" for mark in range(LAST_MARK + 1)
)
ATTACHED = """List of devices attached
9B071FFAZ000AA         device usb:1-2 product:flame model:Pixel_4 device:flame transport_id:1
emulator-5554          offline
0123456789ABCDEF       no permissions (user in plugdev group; are your udev rules wrong?)
192.168.1.5:5555       unauthorized transport_id:3
"""
DEVICE = Device(name="phone", title="A phone", drivers=("adb",))


def _texts(*texts: str) -> Callable[[], SearchStrategy[bytes]]:
    """Damages texts; what is no UTF-8 comes as adb and ssh give it to us, replaced."""

    def damaged() -> SearchStrategy[bytes]:
        one = st.sampled_from(texts)
        whole = one.flatmap(damaged_text).map(lambda text: text.encode("utf-8", errors="replace"))
        return st.one_of(whole, whole, one.flatmap(lambda text: damaged_bytes(text.encode())))

    return damaged


def _text(folder: Path) -> str:
    return (folder / "text").read_bytes().decode("utf-8", errors="replace")


def _read_benchmark(folder: Path) -> None:
    text = _text(folder)
    delegate_notes(parse(text))
    last_line(text)
    found = read_report(Done(0, text, ""), file="a.tflite", where="phone").inference
    assert found is not None
    _burst(found, started_s=0.0)


def _read_runner(folder: Path) -> None:
    text = _text(folder)
    found = read_result(Done(0, text, ""), file="a.tflite", where="board")
    assert all(ms >= 0 for ms in found.samples_ms)


def _read_phone(folder: Path) -> None:
    transport = Telling(_text(folder))
    phone = android.read_phone(transport)
    cores = android.pick_cores(phone, DEVICE, asked=None, threads=2)
    android.taskset_mask(cores)
    android.read_environment(transport, 0)
    android.read_thermal(transport)


def _read_board(folder: Path) -> None:
    transport = Telling(_text(folder))
    board = board_facts.read_board(transport)
    cores = board_facts.pick_cores(board, DEVICE, asked=None, threads=2)
    board_facts.describe(board, cores)
    board_facts.unrest(board_facts.read_environment(transport, cores), threads=1)


def _read_attached(folder: Path) -> None:
    found: tuple[Attached, ...] = parse_attached(_text(folder))
    choose(found)


FORMATS = (
    Format(
        "benchmark_model-output",
        "text",
        lambda: _texts(*(path.read_text() for path in sorted(SAMPLES.glob("*.txt"))))(),
        _read_benchmark,
        weight=2.5,
        quick=40,
    ),
    Format("board-runner-output", "text", _texts(RUNNER), _read_runner),
    Format("phone-facts", "text", _texts(PHONE), _read_phone),
    Format("board-facts", "text", _texts(PI_5, BIG_LITTLE, BARE), _read_board),
    Format("adb-devices", "text", _texts(ATTACHED), _read_attached, weight=0.5),
    Format("emulated-marks", "text", _texts(MARKS), lambda f: parse_marks(_text(f), file="a"), weight=0.5),
)
