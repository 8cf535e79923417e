"""A made-up Pixel 4: the files and programs of a phone below a directory, served to the real `adb`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from phone.adbd import Daemon

HERE = Path(__file__).parent
BENCHMARK_MODEL = HERE / "bin" / "benchmark_model"
PROGRAMS = ("getprop", "dumpsys", "taskset")
SAMPLES = HERE / "samples"

PROPERTIES = {
    "ro.build.fingerprint": "google/flame/flame:13/TP1A.221005.002/9012097:user/release-keys",
    "ro.product.device": "flame",
    "ro.product.model": "Pixel 4",
    "ro.product.name": "flame",
    "ro.board.platform": "msmnile",
}
SILVER, GOLD, PRIME = (261, 1785600, 0x805), (871, 2419200, 0x804), (1024, 2841600, 0x804)
CORES = (SILVER,) * 4 + (GOLD,) * 3 + (PRIME,)
"""Capacity, highest clock in kHz and part of each core."""

THERMALSERVICE = """\
IsStatusOverride: false
ThermalEventListeners:
	callbacks: 2
Thermal Status: {status}
Cached temperatures:
	Temperature{{mValue=71.0, mType=3, mName=VIRTUAL-SKIN, mStatus=3}}
HAL Ready: true
HAL connection:
	ThermalHAL 2.0 connected: yes
Current temperatures from HAL:
	Temperature{{mValue={skin_c}, mType=3, mName=VIRTUAL-SKIN, mStatus=0}}
	Temperature{{mValue=38.2, mType=0, mName=CPU7, mStatus=0}}
	Temperature{{mValue=28.5, mType=2, mName=battery, mStatus=0}}
	Temperature{{mValue=0.0, mType=9, mName=NPU, mStatus=0}}
	Temperature{{mValue=4200.0, mType=6, mName=vbat, mStatus=0}}
Current cooling devices from HAL:
	CoolingDevice{{mValue=0, mType=2, mName=thermal-cpufreq-4}}
"""
COOL_C = 33.6
BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: {usb}
  Wireless powered: false
  Max charging current: 500000
  status: 2
  present: true
  level: 87
  scale: 100
  voltage: 4344
  temperature: {tenths_c}
  technology: Li-ion
"""


@dataclass(frozen=True)
class AdbServer:
    """A server of the real adb that shares nothing with the user's own."""

    environment: dict[str, str]

    def call(self, *words: str, timeout_s: float = 20.0) -> str:
        done = subprocess.run(
            ["adb", *words],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.stdout


class Phone:
    """One phone: its directory and its daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        write_files(root)
        self.daemon = Daemon(
            root, {name: PROPERTIES[name] for name in PROPERTIES if name.startswith("ro.product")}
        )

    @property
    def serial(self) -> str:
        return self.daemon.serial

    @property
    def tmp(self) -> Path:
        """The folder a driver may write to."""
        return self.root / "data/local/tmp"

    def play(self, scenario: str) -> None:
        """Says what its benchmark_model does from now on: the name of a sample or a behaviour."""
        (self.root / "etc/scenario").write_text(scenario)

    def warm(self, *, skin_c: float = COOL_C, status: int = 0) -> None:
        new = self.root / "etc/warmer"
        new.write_text(THERMALSERVICE.format(skin_c=skin_c, status=status))
        new.replace(self.root / "etc/dumpsys-thermalservice")  # never seen half written

    def noted(self, what: str) -> list[str]:
        """Returns the lines its programs noted: `runs` of benchmark_model, `masks` of taskset."""
        file = self.root / "etc" / what
        return file.read_text().splitlines() if file.exists() else []

    def pushed(self) -> set[str]:
        """Returns the names below its temporary folder, without what a run notes there."""
        found = (path.relative_to(self.tmp) for path in self.tmp.rglob("*") if path.is_file())
        return {str(path) for path in found if path.name != "process"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def private_environment(home: Path) -> dict[str, str]:
    """Returns what keeps an adb server to itself: its port, its keys, no emulators, no USB where it can."""
    return {
        "HOME": str(home),
        "TMPDIR": str(home),  # of its log
        "ANDROID_ADB_SERVER_PORT": str(free_port()),
        "ADB_LOCAL_TRANSPORT_MAX_PORT": "5553",
        "ADB_USB": "0",
        "ADB_MDNS_AUTO_CONNECT": "0",
    }


def write_files(root: Path) -> None:
    """Makes the directory of a phone."""
    for folder in ("data/local/tmp", "system/bin", "etc", "proc"):
        (root / folder).mkdir(parents=True)
    for program in PROGRAMS:
        (root / "system/bin" / program).write_bytes((HERE / "bin" / program).read_bytes())
        (root / "system/bin" / program).chmod(0o755)
    shutil.copytree(SAMPLES, root / "etc/samples")
    told = "".join(f"[{name}]: [{value}]\n" for name, value in PROPERTIES.items())
    (root / "etc/properties").write_text(told)
    (root / "etc/scenario").write_text("percentiles")
    (root / "etc/dumpsys-thermalservice").write_text(THERMALSERVICE.format(skin_c=COOL_C, status=0))
    (root / "etc/dumpsys-battery").write_text(BATTERY.format(usb="true", tenths_c=285))
    (root / "proc/loadavg").write_text("1.25 1.10 0.98 2/3011 20123\n")
    _write_cores(root)


def _write_cores(root: Path) -> None:
    told = ""
    for number, (capacity, khz, part) in enumerate(CORES):
        clock = root / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        clock.mkdir(parents=True)
        (clock.parent / "cpu_capacity").write_text(f"{capacity}\n")
        (clock / "cpuinfo_max_freq").write_text(f"{khz}\n")
        (clock / "scaling_cur_freq").write_text(f"{khz}\n")
        (clock / "scaling_governor").write_text("schedutil\n")
        told += f"processor\t: {number}\nCPU implementer\t: 0x51\nCPU part\t: {part:#x}\n\n"
    (root / "sys/devices/system/cpu/online").write_text("0-7\n")
    (root / "proc/cpuinfo").write_text(told)
