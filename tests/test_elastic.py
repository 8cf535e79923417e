"""One network in many sizes: budgets, norms, the offered curve, artefacts and files, images of a training."""

import copy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_elastic import NAME, entry, save_divided, save_pool
from made_trainings import split_of
from safetensors.torch import load_file, save_file
from test_report import text_of
from tiny_zoo import in_zoo

import edgecompress
from edgecompress.core.elastic_results import ElasticResult, SizeFigures
from edgecompress.core.results import ExportResult
from edgecompress.core.store import read_record
from edgecompress.core.types import Budget
from edgecompress.errors import ArtefactError, BudgetError, ConfigError, DataError
from edgecompress.nets.artefact import read_plan
from edgecompress.nets.profile import profile, total_macs
from edgecompress.nets.sources import build_module, load_model
from edgecompress.nets.untrained import RANDOM_WEIGHTS
from edgecompress.pipeline.elastic_figures import offered_networks
from edgecompress.pipeline.elastic_sizes import WantedSize, parse_sizes
from edgecompress.pipeline.elastic_subject import ElasticImages, Model, find_elastic
from edgecompress.pipeline.train_images import TrainingCounts, training_splits
from edgecompress.train.recalibration import recalibrate_, tracking_norms

ONNX = {"formats": ["onnx"]}
SHAPE = (1, 8, 8)


# what is asked for


def test_sizes_are_shares_of_macs_or_milliseconds():
    found = parse_sizes("1, 0.75,.5 ,0.333,12ms,0.75ms")
    assert [one.name for one in found] == ["1.00", "0.75", "0.50", "0.333", "12ms", "0.75ms"]
    assert found[1].budget == Budget(metric="macs", value=0.75, relative=True)
    assert found[4].budget == Budget(metric="ms", value=12.0, relative=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names none"),
        (" , ", "names none"),
        ("0.5,half", "'half': not understood"),
        ("0", "'0': not understood"),
        ("-0.5", "not understood"),
        ("1.5", "not understood"),
        ("50%", "not understood"),
        ("0ms", "not understood"),
        ("0.5,0.50", "0.50 is there twice"),
        ("nan", "not understood"),
    ],
)
def test_what_is_no_size_is_refused_with_an_example(text, said):
    with pytest.raises(ConfigError, match="--sizes") as error:
        parse_sizes(text)
    assert said in str(error.value) and ("12ms" in str(error.value) or "once" in str(error.value))


@given(st.floats(1e-9, 0.99), st.floats(1e-9, 1e9))
def test_names_of_sizes_are_plain_numbers(share, ms):
    for one in parse_sizes(f"{share:.12f}1,{ms:.12f}1ms"):
        assert set(one.name.removesuffix("ms")) <= set("0123456789.")


# which network stands where

FIGURES = st.tuples(
    st.integers(1, 100), st.floats(1, 100), st.integers(0, 4)
)  # MACs, milliseconds, a score of few steps, so that some are equal


def sized(name, macs, ms):
    budget = Budget(metric="ms", value=ms, relative=False) if name.endswith("ms") else None
    return WantedSize(name, budget or Budget(metric="macs", value=macs / 100, relative=True))


@given(st.lists(st.tuples(FIGURES, st.booleans()), min_size=1, max_size=6))
def test_every_size_gets_the_best_network_that_fits_it_and_larger_is_never_worse(drawn):
    whole = SizeFigures(macs=100, params=1, predicted_ms=100.0, score=9.0)
    figures, wanted = {}, []
    for place, ((macs, ms, score), in_ms) in enumerate(drawn):
        name = f"{place}ms" if in_ms else str(place)
        figures[name] = SizeFigures(macs=macs, params=1, predicted_ms=ms, score=score)
        wanted.append(sized(name, macs, ms))
    stands = offered_networks(wanted, figures, whole)
    assert stands.keys() == figures.keys()
    for one in wanted:
        given_one, own = figures[stands[one.name]], figures[one.name]
        assert given_one.score >= own.score and (given_one.score > own.score or stands[one.name] == one.name)
        for other in wanted:
            if one.budget.metric != other.budget.metric or one.budget.value > other.budget.value:
                continue
            assert given_one.score <= figures[stands[other.name]].score
            taken = given_one.predicted_ms if one.budget.metric == "ms" else given_one.macs / 100
            assert taken <= one.budget.value


# a training and its sizes


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("elastic")
    data = save_divided(place / "images.npz")
    with in_zoo(entry(data)), pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield place


def trained_as(name, **options):
    told = {"method": "decomposable", "epochs": 4, "batch_images": 16, "lr": 0.05, "least_rank": 2}
    return edgecompress.train_model(f"zoo:{NAME}", name=name, seed=3, **{**told, **options})


@pytest.fixture(scope="module")
def training(home):
    return trained_as("spatial", mode="spatial", smallest=0.2, largest=0.8)


@pytest.fixture(scope="module")
def made(training):
    return edgecompress.export_sizes(training.run, "0.5,1,0.75", **ONNX)


def sizes_of(result):
    return {one.name: one for one in result.sizes}


def directory_of(result, name):
    return Path(result.directory) / name


def test_every_size_is_within_its_budget_and_costs_what_is_said(made):
    assert [one.name for one in made.sizes] == ["0.50", "1.00", "0.75"]
    for one in made.sizes:
        network = edgecompress.load(directory_of(made, one.name))
        macs = total_macs(profile(network, SHAPE))
        assert macs == one.offered.macs <= one.budget.value * made.full.macs
        assert sum(p.numel() for p in network.parameters()) == one.offered.params
        assert one.offered.accuracy.images == 60


def test_a_size_of_one_is_the_network_as_it_is(training, made):
    whole = sizes_of(made)["1.00"]
    assert whole.found == made.full and whole.layers == 0
    before, after = (
        load_file(Path(one) / "weights.safetensors") for one in (training.run, directory_of(made, "1.00"))
    )
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


def test_a_training_brings_its_mode_its_least_rank_its_layers_and_its_images_along(training, made):
    assert (made.trained, made.mode, made.rank_selection) == ("decomposable", "spatial", "global-values")
    assert made.split == training.split and made.norm_images == training.split.calibration
    choices = {one.layers[0]: one for one in read_plan(directory_of(made, "0.50")).choices}
    assert (
        choices.keys() <= {"stem", "down", "same", "head"} and "head" in choices
    )  # the papers leave it alone
    families = {name: one.family for name, one in choices.items()}
    assert families.pop("head") == "S4(1)" and set(families.values()) == {"S2"}
    assert min(one.ranks[0] for one in choices.values()) < 5


def training_images(training, *, seed=3):
    loaded = load_model(f"zoo:{NAME}")
    return training_splits(loaded, TrainingCounts(None, seed=seed)).calibration


def statistics(network):
    return {name: (one.running_mean, one.running_var) for name, one in tracking_norms(network).items()}


def test_batch_norms_are_renewed_from_the_training_images_and_from_no_others(training, made):
    network = edgecompress.load(directory_of(made, "0.50"))
    renewed, elsewhere = copy.deepcopy(network), copy.deepcopy(network)
    for one, seed in ((renewed, 3), (elsewhere, 4)):
        for norm in tracking_norms(one).values():
            norm.reset_running_stats()
        recalibrate_(one, [training_images(training, seed=seed).tensors()[0]])
    for name, (mean, variance) in statistics(network).items():
        torch.testing.assert_close((mean, variance), statistics(renewed)[name], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(mean, statistics(elsewhere)[name][0], rtol=1e-3, atol=1e-4)
    assert made.norms == "in sequence"


def test_every_file_computes_what_its_network_computes(made):
    images = split_of(9, seed=11).tensors()[0]
    for one in made.sizes:
        place = directory_of(made, one.name)
        told = read_record(place / "exports" / "export.json", ExportResult)
        assert told.directory == str(place / "exports") and told.files == one.files
        session = onnxruntime.InferenceSession(place / "exports" / one.files[0].file)
        found = [session.run(None, {session.get_inputs()[0].name: x[None].numpy()})[0] for x in images]
        with torch.no_grad():
            wanted = edgecompress.load(place)(images).numpy()
        np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-3, atol=1e-4 * abs(wanted).max())


def test_what_is_written_says_what_was_returned(made):
    assert read_record(directory_of(made, "elastic.json"), ElasticResult) == made
    there = {path.name for path in Path(made.directory).iterdir()}
    assert there == {"0.50", "0.75", "1.00", "elastic.json"}


def everything_in(directory):
    return {path: path.stat().st_mtime_ns for path in Path(directory).rglob("*")}


def test_nothing_is_written_when_one_size_cannot_be_reached(training, made, home):
    before = everything_in(home)
    with pytest.raises(
        BudgetError, match=r"--sizes 0.01: cannot be reached; the smallest possible is 0\.\d+$"
    ) as error:
        edgecompress.export_sizes(training.run, "0.9,0.01", **ONNX)
    with pytest.raises(BudgetError):
        edgecompress.export_sizes(training.run, "0.01", output=home / "new" / "place", **ONNX)
    assert everything_in(home) == before
    smallest = str(error.value).rpartition(" ")[2]
    found = edgecompress.export_sizes(
        training.run, smallest, output=home / "least", **ONNX
    )  # it can be typed
    assert found.sizes[0].offered.macs <= float(smallest) * made.full.macs


def test_only_sizes_are_replaced_by_sizes(training, home):
    place = home / "mine"
    place.mkdir()
    (place / "letter.txt").write_text("dear")
    for taken in (place, Path(training.run)):
        with pytest.raises(ArtefactError, match="holds something else"):
            edgecompress.export_sizes(training.run, "0.5", output=taken, **ONNX)
    assert (place / "letter.txt").read_text() == "dear"
    (place / "elastic.json").touch()  # now it is a place of sizes
    edgecompress.export_sizes(training.run, "0.9", output=place, images=4, **ONNX)
    assert {path.name for path in place.iterdir()} == {"0.90", "elastic.json"}


def test_modes_and_layers_can_be_chosen(training, home):
    found = edgecompress.export_sizes(
        training.run, "0.9", mode="channel", layers="same,down", output=home / "other", images=4, **ONNX
    )
    choices = read_plan(directory_of(found, "0.90")).choices
    assert found.mode == "channel" and {one.family for one in choices} == {"S4(1)"}
    assert {one.layers[0] for one in choices} <= {"same", "down"}
    with pytest.raises(ConfigError, match="--mode 'sideways': not understood"):
        edgecompress.export_sizes(training.run, "0.9", mode="sideways")


# images


def drawn(training, **asked):
    return find_elastic(Model(training.run, Path("runs")), ElasticImages(**asked)).splits


def same_use(a, b):
    return (a.calibration.indices, a.selection.indices) == (b.calibration.indices, b.selection.indices)


def test_fewer_report_images_leave_those_of_the_training_where_they_were(home):
    """Of a set in one piece, images for the report are set aside before the others are drawn."""
    training = trained_as("pooled", data=str(save_pool(home / "pool.npz")), method="plain", epochs=1)
    whole = drawn(training)
    assert whole.summary == training.split and whole.summary.report == 40
    for count in (10, 0):
        fewer = drawn(training, report=count)
        assert same_use(fewer, whole) and fewer.summary.report == count
        assert (() if fewer.report is None else fewer.report.indices) == whole.report.indices[:count]
        assert fewer.summary.sha256 != whole.summary.sha256
    with pytest.raises(DataError, match="40 images are set aside for the report, 41 asked for"):
        drawn(training, report=41)
    with pytest.raises(ConfigError, match=r"--report-data .*parts of one set"):
        drawn(training, report_data=str(home / "images.npz"))


def test_test_images_apart_from_the_others_can_be_as_many_as_asked_for(training, home):
    whole = drawn(training)
    for asked in ({"report": 7}, {"report": 7, "report_data": str(save_pool(home / "more.npz", seed=6))}):
        other = drawn(training, **asked)
        assert same_use(other, whole) and other.summary.report == len(other.report) == 7
    assert len(drawn(training, norms=20).calibration) == whole.summary.calibration


def random_weights(home):
    torch.manual_seed(5)
    file = home / "random.safetensors"
    save_file(build_module(load_model(f"zoo:{NAME}").ref, seed=5).state_dict(), file)
    return str(file)


def test_a_larger_size_that_is_worse_gets_the_smaller_network(home):
    """Of a network that guesses, sizes are better and worse by chance."""
    asked = {"weights": random_weights(home), "data": str(save_pool(home / "guesses.npz", guesses=True))}
    found = edgecompress.export_sizes(
        f"zoo:{NAME}",
        "1,0.95,0.9,0.85,0.8",
        output=home / "guessed",
        images=4,
        report_images=10,
        **asked,
        **ONNX,
    )
    rows = sorted(found.sizes, key=lambda one: one.budget.value)
    scores = [one.offered.score for one in rows]
    assert scores == sorted(scores)
    swapped = [one for one in rows if one.network != one.name]
    assert swapped, "chance has to make one larger size worse; take other images"
    for one in swapped:
        assert one.offered.score > one.found.score and one.offered.macs < one.found.macs
        own, other = (directory_of(found, name) / "weights.safetensors" for name in (one.name, one.network))
        assert own.read_bytes() == other.read_bytes()
        told = read_record(directory_of(found, one.name) / "exports" / "export.json", ExportResult)
        assert told.directory == str(directory_of(found, one.name) / "exports")
        assert one.offered == sizes_of(found)[one.network].found


def test_without_labels_sizes_are_compared_by_the_answers_of_the_whole_network(home):
    data = str(save_pool(home / "bare.npz", labels=False))
    found = edgecompress.export_sizes(
        f"zoo:{NAME}",
        "1,0.9",
        weights=random_weights(home),
        data=data,
        output=home / "bare",
        images=4,
        **ONNX,
    )
    assert found.score == "agreement" and found.full.score == 100.0
    assert found.full.accuracy is None and 0 < sizes_of(found)["0.90"].found.score <= 100.0


def test_random_weights_are_said_and_those_of_a_checkpoint_are_not(home):
    asked = {"data": str(save_pool(home / "pool.npz")), "output": home / "said", "images": 4, **ONNX}
    with in_zoo(entry()):
        found = edgecompress.export_sizes(f"zoo:{NAME}", "0.9", **asked)
        loaded = edgecompress.export_sizes(f"zoo:{NAME}", "0.9", weights=random_weights(home), **asked)
    assert found.warnings == (f"weights: {RANDOM_WEIGHTS}",)
    assert "weights: random" in text_of(found)
    assert loaded.warnings == () and "weights: random" not in text_of(loaded)


def test_without_images_there_are_no_sizes(home):
    with in_zoo(entry()), pytest.raises(ConfigError, match="sizes need images"):
        edgecompress.export_sizes(f"zoo:{NAME}", "0.9", weights=random_weights(home), **ONNX)


def test_a_pruned_network_is_cut_and_stays_pruned(training, home):
    weights = f"{training.run}/weights.safetensors"
    pruned = edgecompress.prune(f"zoo:{NAME}", weights=weights, widths="20%", multiple=1, name="pruned")
    found = edgecompress.export_sizes(pruned.run, "0.9", images=4, **ONNX)
    plan = read_plan(directory_of(found, "0.90"))
    assert plan.narrowings == read_plan(Path(pruned.run)).narrowings and plan.choices
    assert total_macs(profile(edgecompress.load(directory_of(found, "0.90")), SHAPE)) <= 0.9 * found.full.macs
    with pytest.raises(ConfigError, match="before it was pruned"):
        edgecompress.export_sizes(pruned.run, "0.9", latency_table="pixel4", **ONNX)


def test_a_run_that_is_made_of_blocks_is_refused(home):
    options = {"factors": "plain", "refit": False, "local_search": False, "batch_norm": "keep"}
    cut = edgecompress.compress(
        f"zoo:{NAME}", weights=random_weights(home), budget="macs=85%", name="cut", **options
    )
    with pytest.raises(
        ConfigError, match="are blocks already; sizes are made of a run of `edgecompress train`"
    ):
        edgecompress.export_sizes(cut.run, "0.5", **ONNX)
