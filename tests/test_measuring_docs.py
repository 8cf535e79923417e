"""docs/measuring.md says what the code does."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.core import statistics
from edgecompress.core.device import Device
from edgecompress.core.measurement import Conditions
from edgecompress.core.presets import PRESETS
from edgecompress.devices import board_facts, phone_files, protocol, thermal, validity

TEXT = (Path(__file__).parents[1] / "docs" / "measuring.md").read_text(encoding="utf-8")
ONE_LINE = " ".join(TEXT.split())


def test_the_presets_are_those_of_the_code():
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in TEXT.splitlines()
        if line.startswith("| `")
    ]
    assert rows == [
        [
            one.name,
            str(one.min_runs),
            f"{one.min_seconds:g}",
            str(one.rounds),
            str(one.process_rounds),
            f"{one.warmup_seconds:g}",
            one.score,
        ]
        for one in PRESETS.values()
    ]


@pytest.mark.parametrize(
    "said",
    [
        f"bursts to the last | {100 * validity.MAX_DRIFT:g} %",
        f"bursts scatter | {100 * validity.MAX_SPREAD:g} %",
        f"boards, one thread) | {100 * validity.MAX_INTERFERENCE:g} %",
        f"before to after | {100 * validity.MAX_CLOCK_FALL:g} %",
        f"**{100 * statistics.CONFIDENCE:g} % interval**",
        f"at least {100 * statistics.RESOLUTION:g} %",
        f"runs {1e3 * protocol.RELOAD_WARMUP_S:g} ms uncounted",
        f"battery at most {thermal.LIMIT_C:g} °C",
        f"board may be at most {board_facts.LIMIT_C:g} °C",
        f"`{phone_files.FOLDER}`",
    ],
)
def test_every_limit_is_that_of_the_code(said):
    assert said in ONE_LINE


def test_a_fifth_is_trimmed():
    assert (statistics.TRIMMED, "a fifth of the rounds trimmed" in ONE_LINE) == (0.2, True)


def test_every_condition_that_must_be_alike_is_named():
    told = re.search(r"drift between them is part of the difference\. (.*?) must be the same", ONE_LINE)[
        1
    ].lower()
    words = {"build": "system build", "runtime_version": "its version"}
    for name in Conditions.model_fields:
        assert words.get(name, name) in told


def test_the_device_files_shown_are_device_files():
    shown = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        assert Device.model_validate({"name": "mine", **tomllib.loads(text)}).drivers


def test_every_flag_exists():
    group = get_command(app)
    commands = [group.commands["bench"], *group.commands["device"].commands.values()]
    known = {flag for command in commands for param in command.params for flag in param.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) <= known
