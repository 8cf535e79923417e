"""`edgecompress latency build` on phones, through the real adb."""

from __future__ import annotations

import json
import threading
import time

import pytest
from cli_calls import check_one_line_error, run
from phone.fixtures import adb, adb_server, needs_adb, phone, second_phone
from phone.phone import BENCHMARK_MODEL

from edgecompress.core.latency_results import BuildResult
from edgecompress.core.latency_table import LatencyTable

__all__ = ["adb", "adb_server", "phone", "second_phone"]
pytestmark = needs_adb

MODEL = """
from torch import nn


def small():
    first, second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "small.py").write_text(MODEL)
    return folder


def build(*args):
    what = ("-m", "small.py:small", "--input-size", "4x4", "--parts", "lowrank", "--plans", "3")
    where = ("--device", "adb", "--benchmark-binary", BENCHMARK_MODEL, "-o", "t.json")
    return run("latency", "build", *what, *where, *args, "--json")


def test_several_phones_have_a_table_each(phone, second_phone, in_a_folder):
    result = build("--serial", "all")
    assert result.exit_code == 0, result.stderr
    made = BuildResult.model_validate_json(result.stdout).tables
    assert len(made) == 2 and all(one.provenance == "measured" and one.entries > 1 for one in made)
    for one in made:
        table = LatencyTable.model_validate_json((in_a_folder / one.table).read_text())
        assert table.conditions.runtime == "benchmark_model" and table.conditions.device.startswith("Pixel 4")
        # the stand-in takes equally long for everything, so everything takes as long as the reference
        assert {round(entry.median_ms / table.reference_ms, 9) for entry in table.entries} == {1.0}
    for each in (phone, second_phone):
        (left,) = each.pushed()
        assert "/benchmark_model-" in left, "it is pushed once; what was measured does not stay"


def test_a_phone_that_disappears_leaves_what_was_measured(adb, phone, in_a_folder):
    journal = in_a_folder / ".t.json.journal"

    def unplug():
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            time.sleep(0.02)
        adb.call("disconnect", phone.serial)

    thread = threading.Thread(target=unplug)
    thread.start()
    result = build()
    thread.join(timeout=60)
    check_one_line_error(result, "what was measured is kept, run the same command to go on")
    kept = journal.read_bytes()
    adb.call("connect", phone.serial)
    again = build()
    assert again.exit_code == 0, again.stderr
    table = LatencyTable.model_validate_json((in_a_folder / "t.json").read_text())
    first = [json.loads(line) for line in kept.splitlines()[1:]]
    assert {one["key"] for one in first if "key" in one} <= {entry.key for entry in table.entries}
