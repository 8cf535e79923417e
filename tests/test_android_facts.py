"""What a phone says of its cores and its heat, without a phone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phone.phone import THERMALSERVICE

from edgecompress.core.device import Cluster, Device
from edgecompress.devices.android import Core, Phone, fastest, parse_cores, pick_cores, taskset_mask
from edgecompress.devices.thermal import Thermal, parse_thermalservice, parse_zones, too_warm, with_battery
from edgecompress.errors import DeviceError

SILVER, GOLD = (0x51, 0x805), (0x51, 0x804)
PIXEL_4 = Device(
    name="pixel-4",
    title="Pixel 4",
    drivers=("adb",),
    match=("flame",),
    clusters=(
        Cluster(name="gold", core="Cortex-A76", cores=(4, 5, 6), max_ghz=2.42),
        Cluster(name="prime", core="Cortex-A76", cores=(7,), max_ghz=2.84),
    ),
)


def phone_with(*cores: Core, codename: str = "flame") -> Phone:
    return Phone(f"Pixel 4 ({codename})", codename, "build", None, cores)


def silent_phone(codename: str = "flame") -> Phone:
    return phone_with(*(Core(number) for number in range(8)), codename=codename)


@given(st.sets(st.integers(0, 15)))
def test_a_mask_has_one_bit_per_core(cores):
    mask = taskset_mask(sorted(cores))
    assert not mask.startswith("0x")
    assert {bit for bit in range(16) if int(mask, 16) >> bit & 1} == cores


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=9), st.integers(1, 9))
def test_no_core_left_out_is_faster_than_one_taken(capacities, count):
    cores = [Core(number, capacity=capacity) for number, capacity in enumerate(capacities)]
    taken = fastest(cores, count)
    assert len(taken) == min(count, len(cores)) and list(taken) == sorted(taken)
    others = [capacity for number, capacity in enumerate(capacities) if number not in taken]
    assert not others or max(others) <= min(capacities[number] for number in taken)


def test_capacity_counts_more_than_clock_and_clock_more_than_part():
    assert fastest([Core(0, 400, 2_000_000), Core(1, 1024, 1_900_000)], 1) == (1,)
    assert fastest([Core(0, None, 2_000_000, SILVER), Core(1, None, 1_900_000, GOLD)], 1) == (0,)
    assert fastest([Core(0, part=GOLD), Core(1, part=SILVER)], 1) == (0,)


def test_cores_that_nothing_tells_apart_are_not_guessed():
    assert fastest([Core(0, capacity=10), Core(1)], 1) == ()
    assert fastest([], 1) == ()


def test_cores_that_are_switched_off_are_left_out():
    cpu = "/sys/devices/system/cpu"
    told = f"{cpu}/cpu0/cpu_capacity:261\n{cpu}/cpu7/cpu_capacity:1024\n{cpu}/online:0-3,5\n"
    assert [core.number for core in parse_cores(told)] == [0, 1, 2, 3, 5]
    assert parse_cores(told)[0].capacity == 261


def test_parts_are_read_per_core():
    told = "".join(
        f"/proc/cpuinfo:processor\t: {number}\n"
        f"/proc/cpuinfo:CPU implementer\t: 0x51\n"
        f"/proc/cpuinfo:CPU part\t: {part}\n"
        for number, part in enumerate(["0x805", "0x804"])
    )
    assert [core.part for core in parse_cores(told)] == [SILVER, GOLD]


def test_what_was_asked_for_comes_first_then_the_phone_then_its_file():
    knowing = phone_with(Core(0, 261), Core(4, 871), Core(5, 871), Core(6, 871), Core(7, 1024))
    gold = PIXEL_4.model_copy(update={"cluster": "gold"})
    assert pick_cores(knowing, PIXEL_4, asked=(0, 4), threads=1) == (0, 4)
    assert pick_cores(knowing, PIXEL_4, asked=(), threads=1) == ()
    assert pick_cores(knowing, gold, asked=None, threads=1) == (4, 5, 6)
    assert pick_cores(knowing, PIXEL_4, asked=None, threads=2) == (6, 7)
    assert pick_cores(silent_phone(), PIXEL_4, asked=None, threads=1) == (7,)


def test_the_file_of_another_phone_says_nothing():
    gold = PIXEL_4.model_copy(update={"cluster": "gold"})
    assert pick_cores(silent_phone("oriole"), PIXEL_4, asked=None, threads=1) == ()
    assert pick_cores(silent_phone("oriole"), gold, asked=None, threads=1) == ()


def test_a_core_the_phone_does_not_have_is_refused():
    with pytest.raises(DeviceError, match=r"no cores \[9\].*it has: \[0, 1"):
        pick_cores(silent_phone(), PIXEL_4, asked=(1, 9), threads=1)


def test_only_current_plausible_temperatures_are_taken():
    thermal = parse_thermalservice(THERMALSERVICE.format(skin_c=33.6, status=2))
    assert thermal.status == 2
    assert thermal.temperatures_c == {"VIRTUAL-SKIN": 33.6, "CPU7": 38.2, "battery": 28.5}
    assert thermal.outside_c == {"VIRTUAL-SKIN": 33.6, "battery": 28.5}


@pytest.mark.parametrize("text", ["", "Can't find service: thermalservice", "Thermal Status: \n"])
def test_a_phone_without_the_service_tells_nothing(text):
    assert parse_thermalservice(text) == Thermal()


def test_zones_may_be_in_degrees_or_thousandths():
    thermal = parse_zones(
        "cpu-0 45200\nskin-therm 36\nquiet -273000\nbattery 29800\nunused 0\nodd\n", status=0
    )
    assert thermal.temperatures_c == {"cpu-0": 45.2, "skin-therm": 36.0, "battery": 29.8}
    assert thermal.outside_c.keys() == {"skin-therm", "battery"}


def test_the_battery_is_added_where_no_sensor_has_its_name():
    assert with_battery(Thermal(), 28.5).outside_c == {"battery": 28.5}
    assert with_battery(parse_zones("battery 31000"), 28.5).outside_c == {"battery": 31.0}
    assert with_battery(Thermal(), 0.0) == Thermal()


def test_throttling_or_a_warm_outside_is_too_warm_but_a_hot_core_is_not():
    assert too_warm(parse_thermalservice(THERMALSERVICE.format(skin_c=40.0, status=0))) is None
    assert (
        too_warm(parse_thermalservice(THERMALSERVICE.format(skin_c=40.1, status=0)))
        == "at 40.1 °C (VIRTUAL-SKIN)"
    )
    assert (
        too_warm(parse_thermalservice(THERMALSERVICE.format(skin_c=30.0, status=1))) == "at thermal status 1"
    )
    assert too_warm(parse_zones("cpu-0 95000")) is None
