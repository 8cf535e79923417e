"""What a board says of itself, as boards say it, and what follows from that."""

from dataclasses import dataclass

import pytest

from edgecompress.core.device import Cluster, Device
from edgecompress.core.measurement import Environment
from edgecompress.devices.board_facts import (
    LIMIT_C,
    describe,
    pick_cores,
    read_board,
    read_environment,
    unrest,
)
from edgecompress.devices.board_runner import NEEDS, pinnable, prepared_runner, read_result
from edgecompress.devices.transport import Done
from edgecompress.errors import DeviceError, ExportError

CPU = "/sys/devices/system/cpu"
PI_5 = "\n".join(
    [
        "Linux 6.6.31+rpt-rpi-2712",
        "aarch64",
        "Raspberry Pi 5 Model B Rev 1.0",
        f"{CPU}/online:0-3",
        *(f"{CPU}/cpu{core}/cpufreq/cpuinfo_max_freq:2400000" for core in range(4)),
        *(f"{CPU}/cpu{core}/cpufreq/scaling_governor:ondemand" for core in range(4)),
        *(
            f"/proc/cpuinfo:{line}"
            for core in range(4)
            for line in (f"processor\t: {core}", "CPU implementer\t: 0x41", "CPU part\t: 0xd0b")
        ),
        "",
    ]
)
BIG_LITTLE = "Linux 5.10\naarch64\nSome board\n" + "".join(
    f"{CPU}/cpu{core}/cpu_capacity:{capacity}\n" for core, capacity in enumerate([400, 400, 1024, 1024])
)
BARE = "Linux 4.4.0\naarch64\n\n/proc/cpuinfo:Hardware\t: Some SoC\n"
BOARD = Device(name="mine", title="A board", drivers=("board",))


@dataclass(frozen=True)
class Telling:
    """A board that says the same to every question."""

    out: str
    code: int = 0
    err: str = ""
    where: str = "pi@board"

    def run(self, command, *, timeout_s):
        return Done(self.code, self.out, self.err)


def test_a_board_tells_its_name_system_and_cores():
    board = read_board(Telling(PI_5))
    assert board.title == "Raspberry Pi 5 Model B Rev 1.0"
    assert (board.kernel, board.machine) == ("Linux 6.6.31+rpt-rpi-2712", "aarch64")
    assert [core.number for core in board.cores] == [0, 1, 2, 3]
    assert board.governors == dict.fromkeys(range(4), "ondemand")
    assert describe(board, (3,)) == "Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)"


def test_a_board_that_tells_little_is_named_by_its_processor():
    board = read_board(Telling(BARE))
    assert (board.title, describe(board, ())) == ("Some SoC", "Some SoC")
    assert pick_cores(board, BOARD, asked=None, threads=1) == ()


@pytest.mark.parametrize("out", ["", "Darwin 23.1\narm64\n\n", "command not found"])
def test_what_is_no_linux_board_is_told(out):
    with pytest.raises(DeviceError, match="pi@board: does not answer as a Linux board"):
        read_board(Telling(out))


@pytest.mark.parametrize(
    ("told", "threads", "cores"),
    [(PI_5, 1, (3,)), (PI_5, 4, (0, 1, 2, 3)), (BIG_LITTLE, 1, (3,)), (BIG_LITTLE, 3, (1, 2, 3))],
)
def test_the_fastest_cores_are_taken_and_the_last_among_equals(told, threads, cores):
    assert pick_cores(read_board(Telling(told)), BOARD, asked=None, threads=threads) == cores


def test_a_cluster_of_the_device_file_wins_over_the_fastest_and_flags_over_both():
    little = Cluster(name="little", core="slow", cores=(0, 1))
    device = BOARD.model_copy(update={"clusters": (little,), "cluster": "little"})
    board = read_board(Telling(BIG_LITTLE))
    assert pick_cores(board, device, asked=None, threads=1) == (1,)
    assert pick_cores(board, device, asked=(2,), threads=1) == (2,)
    assert pick_cores(board, device, asked=(), threads=1) == ()


def test_the_state_is_read_in_its_units():
    told = (
        "cpu-thermal 48250\n/proc/loadavg:0.42 0.30 0.20 1/234 999\n"
        f"{CPU}/cpu3/cpufreq/scaling_cur_freq:1500000\n"
    )
    state = read_environment(Telling(told), (3,))
    assert state.temperatures_c == {"cpu-thermal": 48.25}
    assert (state.clock_mhz, state.load) == (1500.0, 0.42)
    assert read_environment(Telling(" \n"), ()) == Environment()


def test_a_board_rests_while_it_is_hot_or_busy_with_other_programs():
    cool = Environment(temperatures_c={"cpu": LIMIT_C}, load=1.5)
    assert unrest(cool, threads=1) is None
    assert unrest(Environment(), threads=1) is None
    hot = cool.model_copy(update={"temperatures_c": {"cpu": LIMIT_C + 0.1, "gpu": 50.0}})
    assert unrest(hot, threads=1) == f"at {LIMIT_C + 0.1:.1f} °C (cpu)"
    busy = cool.model_copy(update={"load": 1.6})
    assert "load 1.6" in unrest(busy, threads=1)
    assert unrest(busy, threads=2) is None


@pytest.mark.parametrize(
    ("code", "err", "kind", "said"),
    [
        (1, "litert_runner: reading the file failed with LiteRT status 500", ExportError, "status 500"),
        (1, "/x/litert_runner: /lib/libc.so.6: version `GLIBC_2.34' not found", DeviceError, NEEDS),
        (127, "taskset: failed to execute /x/litert_runner: No such file", DeviceError, NEEDS),
        (126, "sh: /x/litert_runner: Exec format error", DeviceError, "Exec format error"),
        (2, "litert_runner: --speed: unknown option", DeviceError, "unknown option"),
        (3, "litert_runner: out of memory", DeviceError, "out of memory"),
        (4, "litert_runner: took longer than --max_secs", DeviceError, "fewer runs"),
        (132, "", DeviceError, "instructions"),
        (137, "", DeviceError, "memory"),
        (139, "", ExportError, "signal 11"),
    ],
)
def test_a_failure_of_the_runner_is_told_by_whose_fault_it_is(code, err, kind, said):
    with pytest.raises(kind) as caught:
        read_result(Done(code, "", err), file="net.tflite", where="pi@board")
    assert said in str(caught.value)
    assert "pi@board" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_board_that_cannot_pin_is_measured_all_the_same_unless_cores_were_asked_for():
    refusing = Telling("", code=127, err="sh: taskset: not found")
    assert pinnable(refusing, (3,), asked=False) == ((), ("not pinned to cores: sh: taskset: not found",))
    with pytest.raises(DeviceError, match="omit --cores"):
        pinnable(refusing, (3,), asked=True)
    assert pinnable(refusing, (), asked=True) == ((), ())


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("aarch64", "`edgecompress device prepare mine`"),
        ("x86_64", "`edgecompress device prepare mine --machine x86_64`"),
        ("armv7l", "32-bit"),
    ],
)
def test_a_machine_nothing_was_prepared_for_is_told(tmp_path, monkeypatch, machine, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DeviceError) as caught:
        prepared_runner(machine, name="mine", where="pi@board")
    assert said in str(caught.value)
