"""Tables found by name: the user's own files first, then those that come with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from test_latency_keys import entry, pair, table

from edgecompress.core.latency_results import TableSummary
from edgecompress.core.store import write_record
from edgecompress.devices.emulated import build_of
from edgecompress.devices.files import load_device, shipped_directory
from edgecompress.latency.calibration import agreement
from edgecompress.latency.keys import block_key
from edgecompress.latency.lookup import make_lookup
from edgecompress.latency.parsing import parse_block
from edgecompress.pipeline import latency_files
from edgecompress.pipeline.latency_files import TABLES, find_table, read_table

REPOSITORY = Path(__file__).parents[1]
SHIPPED = sorted((shipped_directory() / TABLES).glob("*.json"))
EVERY_TABLE = pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package with one table, seen from an empty folder."""
    folder = tmp_path / "device_files"
    write_record(folder / TABLES / "made.json", table(entry(pair(4), 1.0)), indent=None)
    monkeypatch.setattr(latency_files, "shipped_directory", lambda: folder)
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    return folder / TABLES / "made.json"


@pytest.mark.parametrize("name", ["made", "made.json"])
def test_a_shipped_table_is_found_by_name_from_anywhere(shipped, name):
    assert find_table(name) == shipped
    shown = run("latency", "show", name, "--json")
    assert TableSummary.model_validate_json(shown.stdout).entries == 1


@pytest.mark.parametrize("name", ["made", "made.json"])
def test_a_file_of_the_user_wins_over_a_shipped_one(shipped, name):
    Path("made.json").write_text("{}")
    assert find_table(name) == Path("made.json")


@pytest.mark.parametrize("name", ["other", "./made.json", "tables/made.json", "../tables/made"])
def test_a_name_that_is_neither_lists_what_is_shipped(shipped, name):
    check_one_line_error(run("latency", "show", name), f"{name!r}", "shipped are: made.json", "latency build")


# Those that are shipped


@EVERY_TABLE
def test_a_shipped_table_is_whole_emulated_and_of_the_device_file_beside_it(path):
    found = read_table(path.stem)
    assert find_table(path.name) == path
    assert found.provenance == "emulated" and found.reference_ms is None
    assert found.conditions.build == build_of(load_device(found.device)), "run `make pixel4-table`"
    assert all(one.interval_ms is None for one in found.entries)
    assert "EMULATED" in run("latency", "show", path.name).stdout


@EVERY_TABLE
def test_every_entry_of_a_shipped_table_can_be_asked_for(path):
    found = read_table(path.stem)
    lookup = make_lookup(found)
    for one in found.entries:
        block, size = parse_block(one.key)
        assert block_key(block, size) == one.key
        assert lookup.ms(block, size) > 0


@EVERY_TABLE
def test_a_shipped_table_is_calibrated_for_networks_anyone_has(path):
    found = read_table(path.stem)
    named = re.search(r"^PIXEL4_MODELS := (.*)$", (REPOSITORY / "Makefile").read_text(), re.M)
    known = {f"zoo:{name}" for name in named[1].split()}
    assert {"zoo:fashion_resnet", "zoo:fashion_vit"} <= {one.network for one in found.calibrations} <= known
    for one in found.calibrations:
        assert agreement(one.timings).mean_error < 0.03
    assert str(Path.home()) not in json.dumps(found.model_dump(mode="json"))
