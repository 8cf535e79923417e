"""The page of a report: well formed, complete in itself, and deaf to what names say."""

import base64
import hashlib
import itertools
import math
import re
from html.parser import HTMLParser

import pytest
from chromium_page import CHROMIUM, browser
from made_reports import EMULATED, MEASURED, bare, full, layer, of
from test_report import text_of

from edgecompress.core.report_results import RecoveryStep
from edgecompress.report.axes import Scale, frame, spanning
from edgecompress.report.charts import compare_chart, front_chart
from edgecompress.report.doubts import reasons_words
from edgecompress.report.drawing import Words
from edgecompress.report.html import report_page
from edgecompress.report.html_parts import NARROW, WIDE
from edgecompress.report.hues import DARK, FAMILIES, LIGHT, hue_of
from edgecompress.report.markdown import report_markdown
from edgecompress.report.markup import el
from edgecompress.report.picture import report_picture

VOID = {"meta", "link", "br"}
BUSY = "other programs use 100 % of the cores"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e`|"


class Checked(HTMLParser):
    """Reads a page, and notes whether every element is closed where it should be."""

    def __init__(self, page):
        super().__init__()
        self.open, self.faults, self.tags, self.ids, self.links, self.words = [], [], [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.note(tag, attrs)

    def note(self, tag, attrs):
        names = [name for name, _ in attrs]
        self.faults += [f"{tag}: {name} twice" for name in names if names.count(name) > 1]
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name in ("href", "src", "action", "data", "srcset")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def checked(*runs):
    return Checked(report_page(of(*runs)))


@pytest.mark.parametrize("runs", [(full(),), (bare(),), (full("a"), bare("b"), full("c"))])
def test_a_page_is_well_formed(runs):
    page = checked(*runs)
    assert page.faults == [] and page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.named("html") == [{"lang": "en"}] and len(page.named("h1")) == 1


@pytest.mark.parametrize("runs", [(full(),), (full("a"), bare("b"))])
def test_nothing_is_asked_for_and_anchors_lead_somewhere(runs):
    page = checked(*runs)
    assert not {"iframe", "object", "embed", "form", "img", "base"} & {tag for tag, _ in page.tags}
    (icon,) = page.named("link")
    assert icon["href"] == "data:,"
    targets = [link for link in page.links if link != "data:,"]
    assert targets and all(link.startswith("#") and link[1:] in page.ids for link in targets)
    assert not re.search(r"url\(|@import|https?://|//[a-z]", report_page(of(*runs)))


def test_the_policy_allows_this_style_and_this_script_and_nothing_else():
    text = report_page(of(full()))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#x27;", "'").split("; "))
    assert rules.pop("default-src") == "'none'" and rules.pop("img-src") == "data:"
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}
    assert " style=" not in text and not re.search(r"<[^>]* on[a-z]+=", text)


def test_names_that_hold_markup_stay_names():
    run = full(
        HOSTILE,
        model=HOSTILE,
        how=HOSTILE,
        path=HOSTILE,
        layers=(layer(HOSTILE, HOSTILE), layer(f"{HOSTILE}.{HOSTILE}.conv")),
        recovery=(RecoveryStep(level=HOSTILE, outcome=HOSTILE),),
        left_alone=((HOSTILE, HOSTILE),),
        notes=(HOSTILE,),
        options={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        inputs={HOSTILE: HOSTILE},
        conditions={HOSTILE: HOSTILE},
        commands=(HOSTILE,),
    )
    for runs in ((run,), (run, full("b"))):
        page = checked(*runs)
        assert page.faults == [] and page.open == []
        assert len(page.named("script")) == 1 and not page.named("img")
        assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
        assert "</script><script>alert(1)</script>" in "".join(page.words)
        assert "\u202e" not in report_page(of(*runs))


def test_attributes_are_escaped_and_markup_is_not_escaped_twice():
    made = el("p", el("b", "a < b"), "&", title='"><x')
    assert made == '<p title="&quot;&gt;&lt;x"><b>a &lt; b</b>&amp;</p>'


SECTIONS = {
    "times": "times",
    "front": "front",
    "layers": "network",
    "groups": "groups",
    "cells": "cells",
    "slower": "refused",
    "spectra": "spectra",
    "rounds": "rounds",
    "recovery": "recovery",
    "training": "training",
    "elastic": "sizes",
    "files": "files",
}


@pytest.mark.parametrize("field", SECTIONS)
def test_a_section_is_there_with_its_data_and_left_out_without(field):
    assert SECTIONS[field] in checked(full()).ids
    empty = None if field in ("training", "elastic") else ()
    assert SECTIONS[field] not in checked(full(**{field: empty})).ids


def test_a_run_with_figures_only_says_them_and_how_to_do_it_again():
    page = checked(bare())
    sections = [attrs["id"] for attrs in page.named("section")]
    words = " ".join(page.words)
    assert sections == ["again"]
    assert "70.50" in words and "1.38 points" in words and "edgecompress compress --config runs/bare" in words


def test_accuracy_that_did_not_change_is_called_the_same():
    found = full()
    same = found.compressed.model_copy(update={"accuracy": found.dense.accuracy})
    words = " ".join(checked(full(compressed=same)).words)
    assert "the same accuracy" in words and "0.00 points" not in words


def test_the_card_tells_measured_from_emulated_and_shows_intervals():
    words = " ".join(" ".join(checked(full()).words).split())
    assert "1.52 times as fast as before on emulated-a76 (emulated)" in words
    assert "2.00 times as fast as before on local (measured, compressed.tflite)" in words
    assert "was 4.000 ms measured local 1.900 to 2.100 ms faster: 1.90 to 2.10 x compressed.tflite" in words
    assert "was 45.00 ms emulated emulated-a76 target 30.00 ms, met faster" in words
    assert "not a time of a real device" in words


def test_a_measurement_that_is_not_valid_is_never_shown_as_a_clean_one():
    run = full(times=(EMULATED, MEASURED.model_copy(update={"doubts": (BUSY,)})))
    told = f"not valid: local, compressed.tflite: {BUSY}"
    words = " ".join(" ".join(checked(run).words).split())
    assert "as before on local (measured, not valid, compressed.tflite)" in words
    assert words.lower().count(told) == 2  # at the top, and below the table
    assert words.count("measured not valid") == 2  # badges of the tile and of the table
    text = report_markdown(of(run))
    assert "| measured, not valid |" in text and f"- {told}" in text
    assert told in " ".join(text_of(of(run)).split())
    assert "not valid" not in report_page(of(full()))


def test_rounds_of_a_search_that_are_not_valid_are_marked_with_their_reasons():
    first, *others = full().rounds
    run = full(rounds=(first.model_copy(update={"doubts": (BUSY,)}), *others))
    told = f"not valid: round 1: {BUSY}"
    words = " ".join(" ".join(checked(run).words).split())
    assert words.lower().count(told) == 1 and words.count("34.80 not valid") == 1
    text = report_markdown(of(run))
    assert "| 34.80, not valid |" in text and f"- {told}" in text and text.count("not valid") == 2
    assert told in " ".join(text_of(of(run)).split())


def test_reasons_that_differ_in_figures_only_are_told_once_by_the_largest():
    busy = "other programs had the core {} % of the time (at most 20 %)"
    said = reasons_words([busy.format("30.5"), "too hot", busy.format("8"), busy.format("41")])
    assert said == f"{busy.format('41')}; too hot"


def test_recovery_says_what_it_began_with():
    begun = bare().compressed.model_copy(
        update={"accuracy": bare().dense.accuracy.model_copy(update={"top1": 61.25})}
    )
    run = bare(unrecovered=begun)
    told = "61.25 % before recovery"
    assert told in " ".join(checked(run).words)
    assert told in report_markdown(of(run)) and told in text_of(of(run))


def test_side_by_side_says_what_is_not_valid():
    doubted = full("first", times=(MEASURED.model_copy(update={"doubts": (BUSY,)}),))
    page = report_page(of(doubted, bare("second")))
    assert "not valid" in page[page.index('id="compare"') : page.index('id="r1"')]


def test_a_target_that_was_not_met_is_said_at_the_top():
    assert "Target not met: too slow" in " ".join(checked(full(met=False, reason="too slow")).words)


def test_layers_without_milliseconds_are_in_the_rest():
    page = report_page(of(full()))
    where = page[page.index('id="where"') : page.index('id="groups"')]
    assert "stage1.0.conv2" in where and ">head<" not in where and "everything else" in where
    assert "Where the MACs went" in report_page(of(full(layers=(layer("a", ms=False),))))


def test_several_runs_stand_side_by_side():
    page = checked(full("first"), bare("second"))
    assert {"r1", "r2", "r1-front", "compare"} <= set(page.ids) and "r2-front" not in page.ids
    first, second = (attrs for attrs in page.named("details") if attrs.get("class") == "run")
    assert "open" in first and "open" not in second


def test_a_page_of_a_deep_network_stays_small():
    many = tuple(layer(f"features.{n}.block.0.conv") for n in range(150))
    run = full(layers=many, slower=full().slower * 300)
    assert len(report_page(of(run)).encode()) < 3_000_000


def test_every_mark_of_a_figure_says_what_it_is():
    marks = [attrs for _, attrs in checked(full()).tags if attrs.get("class") == "mark"]
    assert marks and all(attrs["aria-label"] == attrs["data-tip"] != "" for attrs in marks)
    assert {attrs["tabindex"] for attrs in marks} == {"0", "-1"}


def test_all_layers_are_one_stop_of_the_tab_key():
    blocks = [attrs for _, attrs in checked(full()).tags if attrs.get("class") == "block"]
    assert [attrs["tabindex"] for attrs in blocks] == ["0", *["-1"] * (len(blocks) - 1)] and len(blocks) > 1


def test_runs_side_by_side_have_a_number_each_that_no_other_covers():
    runs = [full("a"), full("b"), bare("c", times=full().times), full("d")]
    for size in (NARROW, WIDE):
        words = [one for one in compare_chart(runs, *size).shapes if isinstance(one, Words)]
        places = {one.words: (one.x, one.y) for one in words if one.bold}
        assert set(places) == {"1", "2", "3", "4"} and "dense" in {one.words for one in words}
        assert all(math.dist(*pair) > 10 for pair in itertools.combinations(places.values(), 2))


def test_ticks_of_one_axis_have_equally_many_decimals():
    shapes = frame(Scale(0.9, 2.3, 0, 700), Scale(0, 100, 400, 0), "ms", "%")
    words = [one.words for one in shapes if isinstance(one, Words)]
    assert {"1.0", "1.2", "2.0", "100"} <= set(words) and "1" not in words


def test_the_chosen_point_lies_where_it_was_measured():
    drawing = front_chart(full(), 1000, 400)
    labels = [shape.label for shape in drawing.shapes if hasattr(shape, "label")]
    assert any(label.startswith("chosen, after repair: 29.5 ms") for label in labels)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [1.0, 1e9], [-3.0, 4.0]])
def test_scales_hold_all_values_and_have_ticks_within(values):
    scale = spanning(values, 0, 100)
    assert all(0 <= scale(value) <= 100 for value in values)
    assert all(scale.low - 1e-9 <= tick <= scale.high + 1e-9 for tick in scale.ticks())
    assert Scale(0, 10, 100, 0)(2.5) == 75


def test_every_family_has_a_colour_in_light_and_dark_and_others_share_one():
    hues = {hue_of(one) for one in ("dense", "S2", "S2T", "S4(1)", "S4(8)", "S5(1)", "S5(2)", "tucker2")}
    assert len(hues) == 8 and hues <= set(FAMILIES) <= set(LIGHT) and set(LIGHT) == set(DARK)
    assert hue_of("S2+S4(1)") == "branches" and hue_of('"><x') == "other"


def test_markdown_has_the_figures_and_no_live_markup():
    text = report_markdown(of(full(HOSTILE, notes=(HOSTILE,))))
    assert "| top-1 % | 71.88 | 70.50 | -1.38 pp |" in text and "| stage1.0.conv1 | S2 12 |" in text
    prose, fenced, rest = text.split("```")
    assert not re.search(r"(?<!\\)<(script|img)", prose) and "alert" in fenced and rest == "\n"


def test_the_picture_is_a_png_of_one_or_several_runs():
    one, two = (report_picture(of(*runs)) for runs in ((full(),), (full("a"), bare("b"))))
    assert one.startswith(b"\x89PNG") and two.startswith(b"\x89PNG") and 20_000 < len(one) < 400_000


@pytest.mark.filterwarnings("ignore:os.fork")  # by jax, which other tests of the process have loaded
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_it_without_a_word_and_keys_reach_the_marks(tmp_path):
    file = tmp_path / "page.html"
    long = {"/home/someone/a/long/directory/without/a/single/blank/in/it.safetensors": "ab" * 32}
    file.write_text(report_page(of(full(inputs=long))), encoding="utf-8")
    with browser() as page:
        for width in (360, 1600):
            page.open(file, width=width, dark=width == 360)
            assert page.value("document.documentElement.scrollWidth") == width
            hidden = "[...document.querySelectorAll('table.stacked, table.bars')].filter(one => "
            hidden += "one.parentElement.scrollWidth > one.parentElement.clientWidth).length"
            assert page.value(hidden) == 0
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 249)"
        focused = "document.activeElement.getAttribute('data-tip')"
        page.value("document.querySelector('.wide .mark[tabindex=\"0\"]').focus()")
        first = page.value(focused)
        page.press("ArrowRight")
        second = page.value(focused)
        assert first and second and first != second
        assert page.value("document.getElementById('tip').textContent") == second
        page.press("Escape")
        assert page.value("document.getElementById('tip').hidden") is True
        assert page.messages == []
        assert {request for request in page.requests if not request.startswith("data:")} == {file.as_uri()}
