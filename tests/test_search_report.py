"""What a terminal shows of a search."""

import pytest
from test_report import SEARCH, text_of

from edgecompress.core.measurement import Comparison, Interval
from edgecompress.core.search_results import FrontPoint, Latency, LayerTime, Round, Slower

COMPARISON = Comparison(
    baseline="dense.tflite",
    other="compressed.tflite",
    speedup=1.222,
    interval=Interval(low=1.22, high=1.223, confidence=0.99),
    p_value=0.001,
    rounds=20,
    paired=True,
    verdict="faster",
    statement="1.222x faster (99 % interval 1.220 to 1.223)",
)


def turn(number, measured, *, predicted=29.0, file="spliced", met=True):
    return Round(number=number, limit_ms=30, predicted_ms=predicted, measured_ms=measured, file=file, met=met)


LATENCY = Latency(
    table="devices/tables/pixel4.json",
    device="pixel4",
    provenance="emulated",
    dense_predicted_ms=44.5,
    predicted_ms=29.0,
    dense_measured_ms=45.0,
    measured_ms=29.5,
    rounds=(turn(1, 34.8, met=False), turn(2, 29.4), turn(3, 29.5, file="exported")),
    layers=tuple(LayerTime(name=one.name, before_ms=2.0, after_ms=0.5) for one in SEARCH.layers),
    comparison=COMPARISON,
)


def point(share):
    return FrontPoint(
        cost=44.5 * share,
        share=share,
        predicted_loss=1 - share,
        divergence=0.1,
        agreement=0.5 + share / 2,
        choices=(),
    )


def slower(layer, family="S2", *, macs=0.5, time=1.5):
    return Slower(layer=layer, family=family, blocks=3, ranks=(2,), macs_share=macs, cost_share=time)


FOUND = SEARCH.model_copy(
    update={
        "metric": "ms",
        "target": 30.0,
        "dense_cost": 44.5,
        "cost": 29.0,
        "latency": LATENCY,
        "front": tuple(point(share) for share in (0.25, 0.5, 1.0)),
        "front_shown": True,
        "slower": tuple(slower(f"layer1.{n}.conv2") for n in range(5)),
    }
)


def changed(**update):
    return FOUND.model_copy(update=update)


@pytest.mark.parametrize("front", [True, False])
def test_a_search_fits_80_columns_and_cuts_nothing_off(front):
    text = text_of(changed(front_shown=front))
    assert max(map(len, text.splitlines())) <= 80
    assert "\u2026" not in text and ("The front" in text) == front


def test_figures_are_predicted_and_said_by_the_device():
    rows = [line.split() for line in text_of(FOUND).splitlines()]
    assert ["predicted", "ms", "44.5", "29", "-34.8", "%"] in rows
    assert ["emulated", "ms", "45", "29.5", "-34.4", "%"] in rows


def test_every_round_is_a_line_of_its_own():
    lines = [line for line in text_of(FOUND).splitlines() if line.startswith("round")]
    assert lines == [
        "round 1: plan takes 34.8 ms, too slow; predicted 29 (-16.7 %)",
        "round 2: plan takes 29.4 ms, on target; predicted 29 (-1.4 %)",
        "round 3: exported network takes 29.5 ms, on target; predicted 29 (-1.7 %)",
    ]


def test_what_is_not_valid_is_marked_where_it_is_said():
    busy = "other programs had the core 40 % of the time (at most 20 %)"
    first, *others = LATENCY.rounds
    rounds = (first.model_copy(update={"doubts": (busy,)}), *others)
    text = " ".join(text_of(changed(latency=LATENCY.model_copy(update={"rounds": rounds}))).split())
    assert "34.8 ms, too slow, not valid; predicted" in text and f"not valid: round 1: {busy}" in text
    assert text.count("not valid") == 2
    final = text_of(changed(latency=LATENCY.model_copy(update={"doubts": (busy,)})))
    assert f"not valid: pixel4: {busy}" in " ".join(final.split()) and final.count("not valid") == 1
    assert "not valid" not in text_of(FOUND)


def test_what_was_not_measured_says_why():
    latency = LATENCY.model_copy(
        update={"measured_ms": None, "rounds": (), "comparison": None, "not_measured": "no phone"}
    )
    text = text_of(changed(latency=latency))
    assert "not measured: no phone" in text and "emulated ms" not in text


def test_bars_of_the_front_begin_at_one_place_and_are_as_long_as_costs():
    bars = [line for line in text_of(FOUND).splitlines() if "##" in line]
    assert [line.count("#") for line in bars] == [6, 12, 24]
    assert len({line.index("#") for line in bars}) == 1
    assert [line.split()[0] for line in bars] == ["11.12", "22.25", "44.5"]


def test_equal_layers_share_a_line_and_few_are_shown():
    text = text_of(FOUND)
    assert "saves MACs, costs time: 15 blocks were excluded, such as" in text
    assert "  S2 rank 2, -50 % MACs, +50 % time: layer1.0.conv2 and 4 more\n" in text
    many = tuple(slower("a", f"S4({n})", macs=n / 100) for n in range(1, 30))
    shown = [line for line in text_of(changed(slower=many)).splitlines() if "rank 2," in line]
    assert len(shown) == 6 and "S4(1) rank 2, -99 % MACs" in shown[0]
    assert "costs time" not in text_of(changed(slower=()))


def test_blocks_that_really_take_longer_are_named_first():
    both = (slower("a", "S3", macs=0.1, time=0.99), slower("a", "S1", macs=0.9, time=1.2))
    lines = [line for line in text_of(changed(slower=both)).splitlines() if "rank 2," in line]
    assert [line.split()[0] for line in lines] == ["S1", "S3"]


def test_the_goal_is_named():
    assert "1.48 times as fast as dense: 30 ms" in " ".join(text_of(FOUND).split())
    assert "a loss of 1.5 percentage points" in " ".join(text_of(changed(max_drop=1.5)).split())
    assert "at most 160 M MACs" in " ".join(text_of(SEARCH).split())
