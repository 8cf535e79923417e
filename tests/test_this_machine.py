"""What the kernel's files say of a machine, from files as boards and desktops have them."""

import os

import pytest

from edgecompress.devices import this_machine


@pytest.fixture
def root(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 1000.5\n\nprocessor\t: 1\ncpu MHz\t\t: 2000.5\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1800000\n")
    for number, (kind, value) in enumerate(
        [("cpu-thermal", "45100"), ("cpu-thermal", "47200"), ("off", "0")]
    ):
        write(f"sys/class/thermal/thermal_zone{number}/type", f"{kind}\n")
        write(f"sys/class/thermal/thermal_zone{number}/temp", f"{value}\n")
    write("proc/stat", "cpu  9 9 9 9\ncpu0 10 0 10 70 10 0 0 0 5 5\ncpu1 0 0 0 100 0 0 0 0 0 0\nintr 1\n")
    return tmp_path


def test_governor_and_clock_come_from_cpufreq(root):
    assert this_machine.governor(0, root) == "schedutil"
    assert this_machine.clock_mhz(0, root) == 1800


def test_without_cpufreq_the_clock_comes_from_cpuinfo(root):
    assert this_machine.governor(1, root) is None
    assert this_machine.clock_mhz(1, root) == 2000.5
    assert this_machine.clock_mhz(9, root) is None


def test_zones_of_one_name_are_kept_apart_and_sleeping_ones_left_out(root):
    assert this_machine.temperatures_c(root) == {"cpu-thermal": 45.1, "cpu-thermal (thermal_zone1)": 47.2}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model name\t: AMD EPYC\nmodel\t\t: 1\n", "AMD EPYC"),
        ("Hardware\t: BCM2835\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
    ],
)
def test_the_processor_is_named(root, text, name):
    (root / "proc/cpuinfo").write_text(text)
    assert this_machine.processor(root) == name


def test_a_machine_that_tells_nothing_still_has_a_name(tmp_path):
    assert this_machine.processor(tmp_path)
    assert this_machine.temperatures_c(tmp_path) == {}
    assert this_machine.clock_mhz(0, tmp_path) is None


def test_ticks_are_counted_per_core(root):
    assert this_machine._ticks(root) == {0: (80, 100), 1: (100, 100)}


def test_pins_nest_and_come_off_in_turn():
    before = os.sched_getaffinity(0)
    core = max(before)
    with this_machine.pinned((core,)):
        with this_machine.pinned((core,)):
            assert os.sched_getaffinity(0) == {core}
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def test_without_cores_nothing_is_pinned():
    before = os.sched_getaffinity(0)
    with this_machine.pinned(()):
        assert os.sched_getaffinity(0) == before


def test_as_many_cores_are_chosen_as_threads():
    allowed = os.sched_getaffinity(0)
    assert set(this_machine.choose_cores(len(allowed))) == allowed
    assert len(this_machine.choose_cores(1)) == 1


def test_conditions_and_environment_are_complete_records():
    found = this_machine.conditions(runtime="litert", version="2", threads=1, cores=(0,))
    assert (found.cores, found.threads, found.provenance) == ((0,), 1, "measured")
    assert this_machine.environment((0,)).load >= 0
