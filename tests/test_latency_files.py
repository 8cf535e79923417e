"""Table files without a device: merged, compared, shown in short."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import run
from test_latency_keys import HEADING, entry, pair, table

from edgecompress.core.latency_table import Calibration, LatencyTable, make_table
from edgecompress.core.store import write_record
from edgecompress.latency.calibration import BlockSum, fit_calibration
from edgecompress.pipeline.latency_files import diff, merge, read_table, show


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(name: str, made: LatencyTable) -> str:
    write_record(Path(name), made, indent=None)
    return name


def calibration(network: str, slower: float = 1.0) -> Calibration:
    """Of a network on a device on which everything takes so much longer."""
    rows = [
        (f"{n}", BlockSum(slower * n, 0.5 * n), slower * (1.2 * n + 0.3 * 0.5 * n + 1)) for n in (1, 2, 4, 5)
    ]
    return fit_calibration(network, (3, 8, 8), ["layer"], rows)


def on_a_day(*entries, slower: float, network: str) -> LatencyTable:
    return make_table(
        HEADING.model_copy(update={"reference_ms": slower}),
        soc=None,
        created=table().created,
        entries=[one.model_copy(update={"median_ms": slower * one.median_ms}) for one in entries],
        calibrations=[calibration(network, slower)],
    )


def test_tables_of_a_fast_and_a_slow_day_are_merged_on_one_scale():
    monday = save("mon.json", on_a_day(entry(pair(4), 1.0), slower=1.0, network="zoo:a"))
    tuesday = save("tue.json", on_a_day(entry(pair(8), 2.0), slower=1.5, network="zoo:b"))
    assert merge([monday, tuesday], Path("both.json")).added == 1
    both = read_table("both.json")
    assert {one.key: one.median_ms for one in both.entries} == {
        entry(pair(4), 1.0).key: pytest.approx(1.0),
        entry(pair(8), 2.0).key: pytest.approx(2.0),
    }
    first, second = both.calibrations
    assert second.predict_ms(3.0, 1.5) == pytest.approx(first.predict_ms(3.0, 1.5))
    for one, other in zip(first.timings, second.timings, strict=True):
        assert one.measured_ms == pytest.approx(other.measured_ms)
        assert one.error == pytest.approx(other.error)


def test_of_a_block_in_both_the_later_table_wins():
    names = [save(f"{ms}.json", table(entry(pair(4), ms))) for ms in (1.0, 3.0)]
    merge(names, Path("both.json"))
    assert [one.median_ms for one in read_table("both.json").entries] == [3.0]


def test_blocks_that_stray_from_the_median_ratio_come_first():
    one = save("one.json", table(*(entry(pair(width), float(width)) for width in range(1, 31))))
    two = save(
        "two.json", table(*(entry(pair(width), width * (9 if width == 7 else 2)) for width in range(1, 31)))
    )
    found = diff(one, two)
    assert (found.common, found.only_first, found.only_second) == (30, 0, 0)
    assert found.median_ratio == pytest.approx(2.0)
    assert found.largest[0].key == entry(pair(7), 1.0).key and found.largest[0].ratio == pytest.approx(9.0)
    assert found.unlike == ()


def test_a_large_table_is_shown_in_few_lines():
    entries = [entry(pair(width, channels), 1.0) for width in range(1, 101) for channels in range(1, 101)]
    name = save("large.json", make_table(HEADING, soc=None, created=table().created, entries=entries))
    assert show(name).by_kind == {"pair": 10_000}
    text = run("latency", "show", name).stdout
    assert "10,000 blocks: 10,000 pairs" in text and "not calibrated" in text
    assert text.count("\n") < 10
