"""Device files: those we ship, a user's own, their faults, and the commands about them."""

import json
import platform

import pytest
from built_runner import built, built_cache
from typer.testing import CliRunner

from edgecompress import devices
from edgecompress.cli.device import app
from edgecompress.core.device import Device
from edgecompress.core.plugins import discover
from edgecompress.devices.contract import Driver
from edgecompress.devices.files import known_devices, load_device, shipped_directory
from edgecompress.devices.native.build import DevicePrepared, wanted_version
from edgecompress.errors import ConfigError
from edgecompress.report.devices import device_text, prepared_text

__all__ = ["built", "built_cache"]

SHIPPED = sorted(path.stem for path in shipped_directory().glob("*.toml"))
NAMED = [
    "pixel3",
    "pixel3a",
    "pixel4",
    "pixel4a",
    "pixel5",
    "pixel6",
    "pixel7",
    "pixel8",
    "pixel9",
    "rpi4",
    "rpi5",
    "local",
]
GOOD = 'title = "My board"\ndrivers = ["board"]\nhost = "pi@board"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_own(folder, text, name="mine"):
    (folder / "devices").mkdir(exist_ok=True)
    (folder / "devices" / f"{name}.toml").write_text(text)


def check_config_error(name, *parts):
    with pytest.raises(ConfigError) as caught:
        load_device(name)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# The shipped files


def test_every_device_that_was_promised_is_there():
    assert set(NAMED) <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_whole(name, folder):
    device = load_device(name)
    cores = [core for one in device.clusters for core in one.cores]
    assert device.name == name
    assert sorted(cores) == list(range(len(cores)))  # none is forgotten, none is listed twice
    assert all(fact.source for fact in device.facts)
    assert not device.clusters or any(fact.about == "clusters" for fact in device.facts)
    assert device.serial is device.host is device.benchmark_binary is None  # these are of one user's


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("pixel")])
def test_a_phone_is_told_by_its_codename_and_measured_on_its_fastest_cores(name):
    device = load_device(name)
    assert device.drivers == ("adb",)
    assert device.match
    kinds = {one.name: one.cores for one in device.clusters}
    assert device.cores == kinds.get("prime", kinds["big"])


def test_no_two_phones_have_one_codename():
    names = [codename for device in known_devices().values() for codename in device.match]
    assert len(set(names)) == len(names)


def test_drivers_of_shipped_files_exist():
    named = {driver for name in SHIPPED for driver in load_device(name).drivers}
    assert named <= set(discover(devices, Driver))


# Finding them


def test_any_phone_can_be_named_without_a_file(folder):
    assert load_device("adb").drivers == ("adb",)
    assert load_device("adb").clusters == ()
    assert set(known_devices()) == {"adb", *SHIPPED}


def test_a_file_of_ones_own_wins_over_a_shipped_one(folder):
    write_own(folder, GOOD, name="pixel4")
    assert load_device("pixel4").title == "My board"
    assert known_devices()["pixel4"].title == "My board"


def test_a_path_is_read_and_gives_the_name(folder):
    (folder / "garage pi.toml").write_text(GOOD)
    device = load_device(str(folder / "garage pi.toml"))
    assert (device.name, device.host) == ("garage pi", "pi@board")


def test_an_unknown_name_lists_the_known_ones(folder):
    write_own(folder, GOOD)
    check_config_error("pixel99", "'pixel99'", "adb, emulated-a76, local, mine, pixel3", ".toml")


def test_files_are_found_in_an_installed_package_and_in_a_checkout(tmp_path):
    package = tmp_path / "edgecompress"
    package.mkdir()
    with pytest.raises(ConfigError, match="install edgecompress again"):
        shipped_directory(package)
    (tmp_path / "devices").mkdir()
    assert shipped_directory(package) == tmp_path / "devices"
    (package / "device_files").mkdir()
    assert shipped_directory(package) == package / "device_files"


# Faults


def test_all_faults_are_told_at_once(folder):
    write_own(folder, 'title = 7\nspeed = 9\ncolour = "red"\nthreads = "2"\n')
    wanted = ("devices/mine.toml", "speed, colour", "known are: title", "title = 7", 'threads = "2"')
    check_config_error("mine", *wanted, "drivers is missing")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "not valid toml"),
        ('name = "x"\n' + GOOD, "the key 'name'"),
        (GOOD + "drivers = []", "not valid toml"),
        ('title = "x"\ndrivers = []', "drivers = []"),
        (GOOD + 'cluster = "big"', "not among clusters: none"),
        (GOOD + '[[clusters]]\nname = "big"\ncore = "x"\ncores = []', "clusters[0].cores = []"),
        (GOOD + '[[clusters]]\nname = "big"\ncore = "x"\ncores = [1, 1]', "listed twice"),
        (GOOD + '[[clusters]]\nname = "big"\ncore = "x"\ncores = [-1]', "negative"),
        (GOOD + '[[clusters]]\nname = "big"\ncores = [1]\nspeed = 2', "clusters[0].speed"),
        (GOOD + 'transport = "telnet"', 'transport = "telnet"'),
        (GOOD + "port = 2024-01-01", "port = "),
    ],
)
def test_a_fault_is_told_with_its_place(folder, text, said):
    write_own(folder, text)
    check_config_error("mine", "devices/mine.toml: ", said)


def test_a_file_that_cannot_be_read_is_named(folder):
    check_config_error("gone.toml", "gone.toml: cannot be read")
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    check_config_error("binary.toml", "binary.toml: not a text file")


# As text


@pytest.mark.parametrize("name", ["adb", *SHIPPED])
def test_a_device_is_shown_whole_within_80_columns(name):
    device = load_device(name)
    text = device_text(device)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"{name}: {device.title}\n")
    words = " ".join(text.split())
    for part in (*device.drivers, *device.notes, *(fact.source for fact in device.facts)):
        assert part in words
    assert text.count("not verified") == sum(not fact.verified for fact in device.facts)


def test_how_a_device_is_reached_is_shown():
    board = Device(name="mine", title="A board", drivers=("board",), host="pi@board", port=2222)
    assert "ssh, pi@board port 2222" in device_text(board)
    phone = Device(name="mine", title="A phone", drivers=("adb",), serial="0A1B")
    assert "adb, serial 0A1B" in device_text(phone)


def test_the_cluster_that_is_measured_on_carries_a_star():
    starred = [line for line in device_text(load_device("pixel4")).splitlines() if line.startswith("* ")]
    assert "cores 7 " in starred[0]
    assert len(starred) == 2  # and the line that explains it


# The commands


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_show_prints_the_device_as_json():
    result = run("show", "pixel4", "--json")
    assert result.exit_code == 0
    assert Device.model_validate(json.loads(result.stdout)) == load_device("pixel4")


def test_prepare_says_where_the_runner_is(folder, built, built_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(built_cache))
    result = run("prepare", "rpi5", "--machine", platform.machine(), "--json")
    assert result.exit_code == 0, result.stderr
    prepared = DevicePrepared.model_validate(json.loads(result.stdout))
    assert (prepared.device, prepared.litert_version) == ("rpi5", wanted_version())
    assert prepared.runner == str(built.runner)
    text = prepared_text(prepared)
    assert prepared.runner in text
    assert prepared.library in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "pixel99"], "known are"),
        (["prepare", "pixel4"], "needs no runner"),
        (["prepare", "rpi5", "--machine", "z80"], "known are: aarch64"),
        (["prepare", "rpi5", "--litert-wheel", "x.whl", "--compiler", "true"], "not the wheel"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, monkeypatch, words, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("edgecompress: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


@pytest.mark.parametrize("words", [["--help"], ["show", "--help"], ["prepare", "--help"]])
def test_help_fits_a_terminal(words):
    result = run(*words)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_says_that_preparing_may_use_the_network():
    assert "uses the network" in " ".join(run("prepare", "--help").stdout.split())
