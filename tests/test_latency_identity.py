"""A calibration is of the network it was fitted for, wherever its file lies, and of no other of its name."""

from pathlib import Path

import pytest
import torch
from cli_calls import check_one_line_error, run
from made_tables import MODEL, SIZE, write_table
from torch import nn

from edgecompress.core.latency_table import Calibration, LatencyTable, make_table
from edgecompress.core.store import write_record
from edgecompress.errors import ConfigError
from edgecompress.nets.fingerprint import fingerprint
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.latency_build import Request, forecast
from edgecompress.pipeline.latency_costs import read_clock
from edgecompress.pipeline.latency_files import read_table, table_heading

SHAPE = (3, *SIZE)
OTHERS = {
    "other widths": ("12", "14"),
    "another stride": ("stride=2, padding=1", "stride=1, padding=1"),
    "another activation": ("nn.ReLU()", "nn.Hardswish()"),
    "another head": ("self.head = nn.Linear(16, 4)", "self.head = nn.Linear(16, 4); self.more = nn.ReLU()"),
    "another stem": ("nn.Conv2d(3, 8, 3, padding=1", "nn.Conv2d(3, 8, 5, padding=2"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(MODEL)
    write_table(tmp_path / "old.json")
    _with_fingerprint("old.json", "new.json")
    return tmp_path


def _with_fingerprint(old, new):
    table, module = read_table(old), load_model("small.py:Small", input_size=SIZE).module
    update = {"fingerprint": fingerprint(module, SHAPE)}
    said = [one.model_copy(update=update) for one in table.calibrations]
    made = make_table(
        table_heading(table), soc=None, created=table.created, entries=table.entries, calibrations=said
    )
    write_record(Path(new), made)


def _moved(content):
    Path("small.py").unlink()
    Path("elsewhere").mkdir()
    Path("elsewhere/small.py").write_text(content)
    return load_model("elsewhere/small.py:Small", input_size=SIZE)


@pytest.mark.parametrize("table", ["old.json", "new.json"])
def test_the_same_network_elsewhere_has_its_calibration(table):
    here = read_clock(table, load_model("small.py:Small", input_size=SIZE), ())
    assert read_clock(table, _moved(MODEL), ()).dense_ms == here.dense_ms


def test_weights_make_no_other_network():
    trained = _moved(MODEL.replace("mul_(60)", "mul_(7)"))
    assert read_clock("new.json", trained, ()).dense_ms > 0


@pytest.mark.parametrize("name", OTHERS)
def test_another_network_of_that_name_is_refused(name):
    other = _moved(MODEL.replace(*OTHERS[name]))
    with pytest.raises(ConfigError, match=r"for another network than .*elsewhere/small\.py:Small"):
        read_clock("new.json", other, ())


@pytest.mark.parametrize("change", [("12", "14"), ("self.body", "self.trunk")])
def test_tables_without_fingerprints_compare_the_layers_they_sum(change):
    with pytest.raises(ConfigError, match="calibrated for another network"):
        read_clock("old.json", _moved(MODEL.replace(*change)), ())


def test_a_file_that_was_edited_is_refused_in_one_line_and_measured_again():
    command = ("latency", "check", "new.json", "-m", "small.py:Small", "--input-size", "10x10")
    request = Request(("small.py:Small",), Path("new.json"), input_size=SIZE)
    assert forecast(request).networks == 0
    Path("small.py").write_text(MODEL.replace("nn.ReLU()", "nn.Hardswish()"))
    check_one_line_error(run(*command), "calibrated for another network", "latency build")
    assert forecast(request).networks == 1 + request.plans


def test_a_calibration_says_nothing_of_a_fingerprint_it_does_not_have():
    old, new = (Path(name).read_text() for name in ("old.json", "new.json"))
    assert "fingerprint" not in old and '"fingerprint": "' in new
    for text in (old, new):
        table = LatencyTable.model_validate_json(text)
        assert LatencyTable.model_validate_json(table.model_dump_json()) == table
    assert isinstance(read_table("pixel4").calibrations[0], Calibration)


def test_a_fingerprint_follows_from_shapes_alone():
    def net(width, *, seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))

    nets = [net(4), net(4, seed=1), net(5)]
    for one in nets:
        one(torch.zeros(1, 3, 8, 8))
    first, second, wider = (fingerprint(one, (3, 8, 8)) for one in nets)
    assert first == second != wider
    larger = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    assert fingerprint(larger, (3, 8, 8)) != fingerprint(larger, (3, 9, 9))
