"""The scoreboard: knobs that meet a time, rows that are not made twice, tables that say who is first."""

import argparse
import copy
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgecompress.errors import ConfigError
from edgecompress.nets.modules import Sum

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def found_by_name():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def knob(found_by_name):
    return importlib.import_module("scoreboard_knob")


@pytest.fixture(scope="module")
def journal(found_by_name):
    return importlib.import_module("scoreboard_journal")


@pytest.fixture(scope="module")
def page(found_by_name):
    return importlib.import_module("scoreboard_page")


# Knobs


TIMES = {
    "a line": lambda at: 0.2 + 0.8 * at,
    "a curve": lambda at: 0.1 + 0.9 * at**2,
    "stairs": lambda at: round((0.2 + 0.8 * at) * 40) / 40,
    "slower than dense at first": lambda at: 0.45 + 0.9 * at if at < 0.8 else 1.2,
    "out of reach below": lambda at: None if at < 0.3 else 0.1 + 0.9 * at,
}


@pytest.mark.parametrize("point", [0.75, 0.6])
@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_a_knob_meets_its_point_and_not_more(knob, time, point):
    best = knob.fitting(knob.turn(time, point, tries=8), point)
    assert time(best.knob) == best.share
    assert 0.96 * point <= best.share <= point


def test_trials_for_one_point_save_some_for_the_next(knob):
    asked = []

    def time(at):
        asked.append(at)
        return 0.2 + 0.8 * at

    known = knob.turn(time, 0.75)
    before = len(asked)
    assert knob.fitting(knob.turn(time, 0.74, known), 0.74).share <= 0.74
    assert len(asked) == before  # the network for 0.75 happens to be good for 0.74
    found = knob.turn(time, 0.6, known)
    assert len(asked) == before + 1
    assert found[: len(known)] == known


def test_a_point_that_nothing_reaches_has_no_network(knob):
    assert knob.fitting(knob.turn(lambda at: 0.8 + 0.2 * at, 0.6), 0.6) is None
    assert knob.fitting(knob.turn(lambda at: None, 0.6), 0.6) is None


def test_a_knob_is_not_turned_more_often_than_allowed(knob):
    for tries in (1, 3):
        assert len(knob.turn(lambda at: 0.9, 0.5, tries=tries)) <= tries


def test_a_knob_begins_where_a_table_says(knob):
    def predicted(at):
        return None if at < 0.1 else at**3

    start = knob.foretold(predicted, 0.6)
    assert 0.95 * 0.6 <= predicted(start) <= 0.6
    (only,) = knob.turn(predicted, 0.6, start=start)
    assert only.knob == start


# Rows


def row(method, point, **more):
    about = {"kind": "network", "model": "net", "runtime": "here", "method": method, "point": point}
    return about | more


def test_rows_of_an_earlier_process_are_found_again(journal, tmp_path):
    file = tmp_path / "deep" / "rows.jsonl"
    journal.Journal(file).add(row("ours", 0.75, top1=90.0))
    with file.open("a") as stream:
        stream.write('\n{"kind": "network", "mod')  # killed here
    again = journal.Journal(file)
    assert again.find(**row("ours", 0.75))["top1"] == 90.0
    assert again.find(**row("ours", 0.6)) is None
    assert again.find(**row("ours", 0.75, kind="measured")) is None
    assert [one["top1"] for one in again.every(method="ours", kind="network")] == [90.0]


def test_a_line_after_one_that_was_cut_off_counts(journal, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"kind": "net')
    journal.Journal(file).add(row("ours", 0.75))
    assert journal.Journal(file).find(**row("ours", 0.75)) is not None


def test_later_rows_replace_earlier_ones(journal, tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(json.dumps(row("ours", 0.75, top1=1.0)) + "\n" + json.dumps(row("ours", 0.6, top1=2.0)))
    second.write_text(json.dumps(row("ours", 0.75, top1=3.0)))
    found = journal.read_rows([first, second, tmp_path / "none.jsonl"])
    assert {one["point"]: one["top1"] for one in found} == {0.75: 3.0, 0.6: 2.0}


def test_training_for_other_minutes_is_another_row(journal):
    keys = {journal.key_of(row("ours", 0.75, kind="recovered", minutes=minutes)) for minutes in (1, 3)}
    assert len(keys) == 2


# Tables


def lines(scores, *, how="measured", trained=None):
    """Returns rows of networks by method and point, each with its share of the time and its top-1."""
    found = []
    for (method, point), (share, top1) in scores.items():
        told = {"machine": "2-core test", "date": "2026-01-01", "load": 1.0}
        found.append(row(method, point, top1=top1, images=10_000, macs=share, variant="plain") | told)
        times = {"ms": 10 * share, "ms_interval": [9.9 * share, 10.1 * share], "share": share}
        times |= {
            "share_interval": [0.99 * share, 1.01 * share],
            "how_known": how,
            "runtime_version": "test 1",
        }
        found.append(row(method, point, kind="measured") | times | told)
        if trained and (method, point) in trained:
            more = {"kind": "recovered", "minutes": 3, "top1": trained[method, point], "images": 10_000}
            found.append(row(method, point) | more | told)
    return found


DENSE = {("dense", None): (1.0, 92.0)}
GOOD = {("ours", 0.75): (0.74, 91.0), ("LR-S2", 0.75): (0.73, 70.0), ("ALDS", 0.75): (0.75, 20.0)}


def said(page, *args, **more):
    (board,) = page.boards(lines(*args, **more))
    return page.statements(board)


def test_the_first_is_named_with_its_lead(page):
    (told,) = said(page, DENSE | GOOD)
    assert "ours is first" in told and "21.00 ± 1.06 points before LR-S2" in told and "chance" not in told


def test_it_is_said_where_ours_is_not_first(page):
    (told,) = said(page, DENSE | GOOD | {("torch-pruning", 0.75): (0.74, 91.2)})
    assert "ours is not first" in told and "torch-pruning is 0.20 ± 0.79 points better" in told
    assert "may be chance" in told


def test_training_has_an_order_of_its_own(page):
    trained = {("ours", 0.75): 91.5, ("LR-S2", 0.75): 91.9}
    before, after = said(page, DENSE | GOOD, trained=trained)
    assert "ours is first" in before
    assert "trained **ours is not first**: LR-S2 is 0.40 ± 0.77 points" in after.replace(",", "")


def test_a_way_that_is_best_only_with_training_is_named(page):
    rows = lines(DENSE | GOOD, trained={("ours", 0.75): 91.5, ("LR-S2", 0.75): 91.4})
    for one in rows:
        if one["method"] == "ours" and one["kind"] != "measured":
            one["variant"] = "low rank" if one["kind"] == "network" else "widths"
    ours, other = (line for line in page.markdown(rows).splitlines() if "| **91" in line or "LR-S2 |" in line)
    assert ours.endswith("| **91.50 ± 0.55** (widths) |") and "(" not in other.rpartition("91.40")[2]


def test_what_int8_alone_does_is_said(page):
    more = {("int8 alone", None): (0.5, 91.9), ("ours + int8", 0.75): (0.4, 90.9)}
    told = "\n".join(said(page, DENSE | GOOD | more))
    assert "int8 alone beats ours in float32" in told
    assert "1.25 times as fast as int8 alone, -1.00 points" in told
    slow = {("int8 alone", None): (0.9, 91.9)}
    assert "beats" not in "\n".join(said(page, DENSE | GOOD | slow))


def test_a_network_above_its_point_is_marked(page):
    rows = lines(DENSE | GOOD | {("torch-pruning", 0.75): (0.78, 60.0)})
    text = page.markdown(rows)
    assert "torch-pruning by 4.0 %" in text and "0.780 (0.772 to 0.788) ! |" in text
    assert text.count("!") == 2  # the cell, and what the mark means


def test_a_table_has_every_row_once_and_the_first_in_bold(page):
    rows = [*lines(DENSE | GOOD), row("SVD-NAS, as published", 0.75, trials={})]
    text = page.markdown(rows)
    table = [line for line in text.splitlines() if line.startswith("| 0.75")]
    assert [line.split(" | ")[1] for line in table] == ["ours", "ALDS", "LR-S2", "SVD-NAS, as published"]
    assert [line for line in table if "**" in line] == [table[0]]
    assert "out of reach" in table[-1]
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {8}


def test_emulated_milliseconds_have_no_interval(page):
    assert " to " not in page.markdown(lines(DENSE | GOOD, how="emulated"))


def test_the_interval_of_a_percentage_is_that_of_its_images(page):
    assert page.half_width(50.0, 10_000) == pytest.approx(0.98, abs=0.01)
    assert page.half_width(90.0, 500) == pytest.approx(2.63, abs=0.1)
    assert page.half_width(100.0, 500) > 0


def test_the_summary_has_a_line_for_every_point(found_by_name):
    short = importlib.import_module("scoreboard_summary")
    more = {
        ("ours", 0.6): (0.59, 88.0),
        ("int8 alone", None): (0.5, 91.9),
        ("ours + int8", 0.75): (0.4, 90.9),
    }
    rows = lines(DENSE | GOOD | more, trained={("ours", 0.75): 91.5, ("LR-S2", 0.75): 91.7})
    rows = [one | {"model": "resnet20", "runtime": "litert"} for one in rows]
    _, _, first, second = short.summary(rows).splitlines()
    assert first.startswith("| ResNet-20, LiteRT here | 0.75 | **91.00** → 91.50 |")
    assert "| 70.00 → **91.70** |" in first and second.startswith("|  | 0.60 | **88.00** | - |")
    assert "91.90 in 0.50 of the time | 90.90 in 0.40" in short.int8_summary(rows)


# Two networks on the same images


@pytest.fixture(scope="module")
def answers(found_by_name):
    return importlib.import_module("scoreboard_answers")


def answered(answers, right):
    return {"top1": 100 * right.mean(), "images": len(right), "right": answers.packed(right)}


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_which_images_were_right_is_read_back(answers, right):
    packed = answers.packed(np.array(right))
    assert answers.unpacked(packed, len(right)).tolist() == right


def test_networks_that_differ_on_few_images_are_told_apart(answers):
    worse = np.arange(10_000) < 9_000
    better = np.arange(10_000) < 9_030
    found = answers.difference(answered(answers, better), answered(answers, worse))
    assert found.points == pytest.approx(0.3) and not found.may_be_chance
    unpaired = answers.difference({"top1": 90.3, "images": 10_000}, answered(answers, worse))
    assert unpaired.may_be_chance and unpaired.half_width == pytest.approx(0.83, abs=0.02)


def test_the_interval_of_a_difference_holds_as_often_as_it_says(answers):
    draw, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        one = draw.random(800) < 0.9
        other = np.where(draw.random(800) < 0.1, draw.random(800) < 0.7, one)  # of one in ten it thinks anew
        found = answers.difference(answered(answers, one), answered(answers, other))
        hits += abs(found.points - 100 * 0.1 * (0.9 - 0.7)) <= found.half_width
    assert 925 <= hits <= 975


def test_equal_networks_differ_by_chance(answers):
    same = np.arange(300) % 3 > 0
    found = answers.difference(answered(answers, same), answered(answers, same))
    assert found.points == 0 and found.may_be_chance and found.half_width > 0


def test_a_lead_is_judged_image_by_image(answers, page):
    rows = lines(DENSE | GOOD | {("torch-pruning", 0.75): (0.74, 90.8)})
    assert "may be chance" in page.statements(page.boards(rows)[0])[0]
    right = {"ours": np.arange(10_000) < 9_100, "torch-pruning": np.arange(10_000) < 9_080}
    for one in rows:
        if one["kind"] == "network" and one["method"] in right:
            one["right"] = answers.packed(right[one["method"]])
    (told,) = page.statements(page.boards(rows)[0])
    assert "by 0.20 ± 0.09 points" in told and "may be chance" not in told


def test_the_picture_shows_every_network(found_by_name, page, tmp_path):
    plot = importlib.import_module("scoreboard_plot")
    rows = lines(DENSE | GOOD, trained={("ours", 0.75): 91.5})
    plot.write_plot(rows, tmp_path / "all.html")
    text = (tmp_path / "all.html").read_text()
    for label in ("dense: 92.00 %", "ours: 91.00 % at 0.740", "ours, trained: 91.50 %", "ALDS: 20.00 %"):
        assert text.count(label) >= 1
    plot.write_plot(rows, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_every_method_has_a_colour(found_by_name):
    names, plot = (importlib.import_module(f"scoreboard_{name}") for name in ("names", "plot"))
    assert set(plot.HUES) == set(names.METHODS)
    assert len(set(plot.HUES.values())) == len(plot.HUES)


# Options


def test_a_runtime_reads_its_own_table(found_by_name):
    scene = importlib.import_module("scoreboard_scene")
    options = argparse.Namespace(table=["onnxruntime=a=b.json"])
    assert scene.table_for("onnxruntime", options) == "a=b.json"
    assert scene.table_for("litert", options) == "pixel4.json"
    with pytest.raises(ConfigError, match="nowhere"):
        scene.table_for("litert", argparse.Namespace(table=["nowhere=x.json"]))


def test_a_network_without_its_files_says_which_option_names_them(found_by_name):
    script = importlib.import_module("scoreboard")
    options = script.parser().parse_args(["--models", "resnet20", "--cifar", "x"])
    with pytest.raises(ConfigError, match="--resnet20-weights"):
        script.open_scene("resnet20", options)


def test_steps_fill_the_minutes(found_by_name):
    recovery = importlib.import_module("scoreboard_recovery")
    assert recovery.steps_within(2, 0.1) == 1200
    assert recovery.steps_within(0, 5.0) == 1


@pytest.fixture(scope="module")
def transformer(found_by_name):
    script = importlib.import_module("scoreboard")
    options = script.parser().parse_args(["--models", "fashion_vit", "--report-images", "200"])
    return script.open_scene("fashion_vit", options)


def test_images_that_choose_a_training_are_not_reported_on(transformer):
    choosing, report = transformer.choosing.indices, transformer.report.indices
    assert (len(choosing), len(report)) == (20, 180)
    assert not set(choosing) & set(report)
    assert (*choosing, *report) == transformer.material.splits.report.indices


def test_no_training_makes_a_network_worse_on_what_chooses(transformer):
    recovery = importlib.import_module("scoreboard_recovery")
    judge = recovery._judge(transformer)
    spoilt = copy.deepcopy(transformer.loaded.module)
    with torch.no_grad():
        for parameter in spoilt.parameters():
            parameter.mul_(0.97)
    found = recovery.recovered({"spoilt": spoilt}, transformer, 0.02)
    assert judge(found.module) >= judge(spoilt)
    assert found.way == "spoilt" and found.steps >= 1
    assert found.training in {recovery.AS_IT_WAS, *transformer.model.trainings}


def test_the_best_way_without_training_stays_where_training_is_too_short(transformer):
    recovery = importlib.import_module("scoreboard_recovery")
    right = transformer.loaded.module
    wrong = copy.deepcopy(right)
    with torch.no_grad():
        wrong.get_submodule("head").weight.neg_()
    found = recovery.recovered({"wrong": wrong, "right": right}, transformer, 0.001)
    assert found.way == "right"
    judge = recovery._judge(transformer)
    assert judge(found.module) >= judge(right) > judge(wrong)


def test_blocks_inside_of_blocks_are_not_named(found_by_name):
    recovery = importlib.import_module("scoreboard_recovery")
    pair = nn.Sequential(nn.Conv2d(4, 2, (3, 1), groups=2), nn.Conv2d(2, 4, (1, 3)))
    network = nn.Sequential(
        nn.Sequential(pair, nn.ReLU()), nn.Conv2d(4, 4, 1), Sum([copy.deepcopy(pair), copy.deepcopy(pair)])
    )
    assert recovery._blocks(network) == ["0.0", "2"]


def test_every_method_with_a_knob_can_be_made(found_by_name):
    methods, names = (importlib.import_module(f"scoreboard_{name}") for name in ("methods", "names"))
    options = argparse.Namespace(variants=None, paper_steps=7, seed=0, work="unused")
    board = importlib.import_module("scoreboard_scene")
    scene = board.Scene("fashion_vit", board.MODELS["fashion_vit"], options, None, None)
    for method in names.COMPRESSED:
        ways = [one.name for one in methods.variants(method, scene, "pixel4.json")]
        assert ways and len(set(ways)) == len(ways)
    options.variants = 1
    assert len(methods.variants("torch-pruning", scene, "pixel4.json")) == 1
