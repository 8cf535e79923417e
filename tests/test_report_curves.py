"""What reports show of trainings, of recoveries and of one network in several sizes."""

import shlex

import pytest
from made_curves import ELASTIC, RECOVER, TIMED, TRAIN, figures
from made_reports import bare, of, written_run
from test_report import text_of
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.core.store import write_record
from edgecompress.pipeline.report import report
from edgecompress.pipeline.run_list import list_runs
from edgecompress.report.curves import epochs_chart, sizes_chart
from edgecompress.report.drawing import Mark, Words
from edgecompress.report.html import report_page
from edgecompress.report.html_curves import training_words
from edgecompress.report.markdown import report_markdown
from edgecompress.report.picture import report_picture


def labels(drawing, hue=None):
    return [one.label for one in drawing.shapes if isinstance(one, Mark) and hue in (None, one.hue)]


@pytest.fixture
def taught(tmp_path):
    """A training with sizes, on disk, and what a report reads of it."""
    path = written_run(tmp_path, "train", TRAIN, file="result.json", name="taught")
    (path / "sizes").mkdir()
    write_record(path / "sizes" / "elastic.json", ELASTIC)
    (found,) = report(["taught"], runs_dir=tmp_path, networks=False).runs
    return found


def test_a_training_is_read_with_its_epochs_and_its_sizes(taught, tmp_path):
    assert taught.elastic == ELASTIC and taught.training.epochs == TRAIN.epochs
    assert (taught.training.values_used, taught.training.values) == (13, 24)
    assert taught.how == "train by decomposable with sgd" and taught.recovery == ()
    assert taught.notes == ("stopped: the loss was not finite in epoch 5",)
    (line,) = list_runs(runs_dir=tmp_path).runs
    assert line.top1 == 73.5 and line.problem is None


def test_the_page_has_the_curve_and_a_row_per_size(taught):
    page = report_page(of(taught))
    part = page[page.index('id="sizes"') : page.index('id="training"')]
    for text in ("whole", "10 M", "-75.0 %", "88.00 %", "its own", "2,048 training images"):
        assert text in part, text
    assert "Accuracy against cost of every size" in part and "0.75/exports/compressed.tflite" in part
    training = page[page.index('id="training"') :]
    assert "epoch 3: kept" in training and "13 of 24" in training and "It ended early" in training
    assert "73.50" in page and "fewer" not in page[: page.index('id="sizes"')]  # nothing was made smaller


def test_a_training_is_told_from_a_compression(taught):
    same = taught.model_copy(update={"compressed": taught.dense})
    assert ">The same accuracy<" in report_page(of(same))
    text = text_of(of(taught))
    assert "trained" in text and "dense" not in text and "compressed" not in text


def test_sections_are_left_out_without_data():
    page = report_page(of(bare()))
    assert 'id="sizes"' not in page and 'id="training"' not in page


def test_the_curve_has_every_network_once_and_says_which_was_not_offered():
    drawing = sizes_chart(ELASTIC, 1000, 400)
    assert len(labels(drawing, "accent")) == 2 and len(labels(drawing, "dense")) == 1
    assert any(label.startswith("0.50, 0.25: 2.5 M MACs, 88.00 top-1 %") for label in labels(drawing))
    (refused,) = labels(drawing, "bad")
    assert refused.startswith("0.50: 4.9 M MACs, 87.00") and refused.endswith("not offered")
    words = [getattr(one, "words", "") for one in drawing.shapes]
    assert "MACs" in words and not any("ms" in one for one in words)


def test_sizes_in_milliseconds_are_drawn_over_milliseconds():
    words = [getattr(one, "words", "") for one in sizes_chart(TIMED, 340, 300).shapes]
    assert "ms, predicted for emulated-a76" in words
    told = report_page(of(bare(elastic=TIMED)))
    assert "Milliseconds are predicted for emulated-a76 (emulated)." in told


def test_without_report_images_the_scores_are_drawn():
    bare_sizes = tuple(
        one.model_copy(
            update={
                "found": figures(one.found.macs, 50.0, None),
                "offered": figures(one.found.macs, 50.0, None),
            }
        )
        for one in ELASTIC.sizes
    )
    agreed = ELASTIC.model_copy(
        update={"full": figures(10_000_000, 100.0, None), "sizes": bare_sizes, "score": "agreement"}
    )
    words = [getattr(one, "words", "") for one in sizes_chart(agreed, 1000, 400).shapes]
    assert "% answered as the whole network" in words and "102" not in words


def test_epochs_are_marked_and_one_alone_is_no_curve(taught):
    drawing = epochs_chart(taught.training, 1000, 400)
    assert labels(drawing, "bad") == ["epoch 3: kept"]
    assert [label.partition(":")[0] for label in labels(drawing, "accent")] == [
        f"epoch {n}" for n in range(1, 5)
    ]
    short = taught.training.model_copy(update={"epochs": taught.training.epochs[:1]})
    assert epochs_chart(short, 1000, 400) is None
    unjudged = tuple(one.model_copy(update={"score": None}) for one in taught.training.epochs)
    drawing = epochs_chart(taught.training.model_copy(update={"epochs": unjudged}), 1000, 400)
    words = [one for one in drawing.shapes if isinstance(one, Words)]
    assert "loss" in {one.words for one in words}
    below = [one.words for one in words if one.anchor == "middle" and one.words not in ("epoch", "kept")]
    assert below == ["1", "2", "3", "4"]  # never half an epoch


def test_markdown_and_picture_show_the_sizes_and_the_training(taught):
    text = report_markdown(of(taught))
    assert "| 0.50 | 0.25 | 2.5 M |" in text and "| 0.75 |  | 7.4 M |" in text
    assert "of 4 epochs number 3 was kept" in text
    short = taught.training.model_copy(update={"epochs": taught.training.epochs[:1], "best_epoch": None})
    assert "of 1 epoch the last one was kept" in training_words(short)
    picture = report_picture(of(taught))
    assert len(picture) > len(report_picture(of(taught.model_copy(update={"elastic": None}))))


def test_the_commands_that_made_the_sizes_are_understood(taught):
    (line,) = [one for one in taught.commands if "--sizes" in one]
    words = shlex.split(line)
    assert words[:2] == ["edgecompress", "export"]
    with get_command(app).commands["export"].make_context("export", words[2:]) as context:
        given = context.params
    assert given["sizes"] == "0.25,0.75,0.50" and given["mode"] == "spatial" and given["tflite"]
    assert given["layers"] is None and given["norm_images"] == 2048


def test_the_ladder_of_a_recovery_has_gains_minutes_and_what_was_kept(tmp_path):
    written_run(tmp_path, "recover", RECOVER, file="result.json", name="won")
    (found,) = report(["won"], runs_dir=tmp_path, networks=False).runs
    assert [(one.level, one.gain, one.minutes, one.kept) for one in found.recovery] == [
        ("none", None, 0.1, None),
        ("stats", 0.75, 0.5, True),
        ("synthetic", None, 0.0, None),
        ("distill", -0.25, 12.0, False),
    ]
    page = report_page(of(found))
    assert "+0.75 pp, 30.0 s<" in page and "-0.25 pp, 12.0 min, not kept" in page and "images: few" in page
    assert "| distill | -0.25 pp | 12.00 | no | 40 steps |" in report_markdown(of(found))


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ELASTIC, ("0.50*", "* 0.50 is the network of 0.25", "left whole: stem: grouped convolution")),
        (TIMED, ("6ms", "3.5", "ms predicted for emulated-a76 (emulated)")),
    ],
    ids=["MACs", "ms"],
)
def test_the_terminal_shows_every_size_in_80_columns(result, said):
    text = text_of(result)
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in said:
        assert part in " ".join(text.split())
