"""The ladder of recovery: levels, what is kept, which images are used, and what cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_recoveries import MODEL, SIDE, damage, write_home
from safetensors.torch import load_file, save_file

from edgecompress.core.memo import NO_MEMO
from edgecompress.core.types import Group, Plan
from edgecompress.data.image_sets import ArraySet
from edgecompress.errors import ArtefactError, ConfigError, DataError, ModelError
from edgecompress.nets.artefact import load, read_plan
from edgecompress.nets.narrowing import narrow_
from edgecompress.nets.sources import load_model
from edgecompress.nets.width_groups import find_width_groups
from edgecompress.pipeline import recover as recover_module
from edgecompress.pipeline.prune import prune
from edgecompress.pipeline.recover import recover
from edgecompress.pipeline.recover_images import images_of_run, recovery_splits
from edgecompress.pipeline.recover_judge import Seen, is_better
from edgecompress.pipeline.recover_ladder import deal_out
from edgecompress.pipeline.recover_levels import LEVELS
from edgecompress.pipeline.recover_recipes import PRESETS, pick_recipe
from edgecompress.pipeline.recover_rows import ascending_match, staying_rows
from edgecompress.pipeline.synthesize import synthesize
from edgecompress.pipeline.train_images import TrainingCounts
from edgecompress.train.loop import TrainSettings

STEPS = 40
FEW = {"steps": 2, "selection_images": 40, "report_images": 20}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
        damage()
    return folder


@pytest.fixture(autouse=True)
def home(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


@pytest.fixture(scope="module")
def climbed(made):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        return recover("damaged", steps=STEPS, name="climbed", overwrite=True)


def weights(name):
    return load_file(f"runs/{name}/weights.safetensors")


def same(one, other):
    return all(torch.equal(one[key], other[key]) for key in one)


# What is kept


def test_levels_come_in_order_and_none_that_is_kept_is_worse(climbed):
    assert [rung.level for rung in climbed.ladder] == list(LEVELS)
    standing = climbed.ladder[0].before
    for rung in climbed.ladder:
        assert rung.before == standing  # each starts from the best so far
        if rung.kept:
            assert rung.after.right > standing.right or rung.after.top1 > standing.top1
            standing = rung.after
    assert standing.divergence < 0.7 * climbed.ladder[0].before.divergence


def test_what_is_won_on_selection_images_shows_on_those_of_the_report(climbed):
    assert climbed.compressed.accuracy.top1 > climbed.before.accuracy.top1
    assert climbed.compressed.macs == climbed.before.macs < climbed.dense.macs
    assert climbed.parent == "damaged" and climbed.plan == read_plan(Path("runs/damaged"))


def test_gains_and_minutes_are_told(climbed):
    for rung in climbed.ladder:
        if rung.after is not None:
            assert rung.gain == pytest.approx(rung.after.top1 - rung.before.top1)
            assert 0 <= rung.minutes < 5
    trained = {rung.level: rung.steps for rung in climbed.ladder if rung.steps}
    assert trained.keys() == {"mimic", "distill", "full"} and abs(sum(trained.values()) - STEPS) <= 2


def test_synthetic_images_are_passed_by_where_there_are_real_ones(climbed):
    rung = climbed.ladder[4]
    assert (rung.level, rung.kept, rung.after) == ("synthetic", False, None)
    assert "real images" in rung.outcome


def test_level_none_changes_nothing():
    found = recover("damaged", level="none", name="none", overwrite=True, **FEW)
    assert same(weights("none"), weights("damaged"))
    assert [rung.level for rung in found.ladder] == ["none"] and found.compressed == found.before


@pytest.mark.parametrize("level", ["stats", "refit"])
def test_levels_that_train_nothing_bring_the_network_nearer_to_the_dense_one(level):
    found = recover("damaged", level=level, only=True, name=level, overwrite=True, selection_images=150)
    (rung,) = found.ladder
    assert rung.kept and rung.steps == 0
    assert rung.after.divergence < rung.before.divergence


def test_a_level_that_does_harm_is_dropped():
    found = recover(
        "damaged", level="distill", only=True, steps=3, lr=3.0, augment="none", name="harm", overwrite=True
    )
    (rung,) = found.ladder
    assert not rung.kept and same(weights("harm"), weights("damaged"))
    assert found.compressed == found.before


def test_training_that_diverges_is_stopped_and_told():
    found = recover("damaged", level="full", only=True, steps=30, lr=1e9, name="wild", overwrite=True)
    (rung,) = found.ladder
    assert "diverged" in rung.outcome and rung.steps < 30 and not rung.kept
    assert same(weights("wild"), weights("damaged"))


def seen(hits, right, divergences=None):
    values = [
        torch.tensor(one, dtype=torch.float64) for one in (divergences or [0.0] * len(hits), hits, right)
    ]
    return Seen(*values)


def test_clear_differences_in_top_1_decide_and_probabilities_otherwise():
    few, many = [1.0] * 50 + [0.0] * 50, [1.0] * 70 + [0.0] * 30
    assert is_better(seen(many, [0.1] * 100), seen(few, [0.9] * 100))
    assert not is_better(seen(few, [0.9] * 100), seen(many, [0.1] * 100))
    nearly = [1.0] * 51 + [0.0] * 49
    assert not is_better(seen(nearly, [0.4] * 100), seen(few, [0.5] * 100))
    assert is_better(seen(few, [0.5] * 100), seen(nearly, [0.4] * 100))
    apart = [Seen(torch.tensor([one]), None, None) for one in (0.1, 0.2)]
    assert is_better(*apart) and not is_better(*apart[::-1])


# Images


def test_report_images_are_not_looked_at_before_all_is_decided(monkeypatch):
    read, deciding = [], [False]
    original, climb = ArraySet.images, recover_module.climb

    def images(self, indices):
        if "train" not in self.name:
            read.append(deciding[0])
        return original(self, indices)

    def climbing(*args):
        deciding[0] = True
        found = climb(*args)
        deciding[0] = False
        return found

    monkeypatch.setattr(ArraySet, "images", images)
    monkeypatch.setattr(recover_module, "climb", climbing)
    recover("damaged", level="full", steps=4, selection_images=40, name="watched", overwrite=True)
    assert read and not any(read)


def test_of_a_pool_the_run_s_report_stays_aside():
    damage("pooled", data="pool.npz", calibration_images=50, selection_images=20, report_images=90)
    plan, parent = read_plan(Path("runs/pooled")), images_of_run(Path("runs/pooled"))
    assert (parent.data, parent.reported) == ("pool.npz", 90)
    first = recovery_splits(plan.model, None, TrainingCounts(None, seed=0), parent)
    other = recovery_splits(plan.model, None, TrainingCounts(None, seed=5), parent)
    parts = [set(one.indices) for one in (first.calibration, first.selection, first.report)]
    assert [len(part) for part in parts] == [369, 41, 90]
    assert len(set.union(*parts)) == 500
    assert first.report.indices == other.report.indices and first.calibration != other.calibration
    with pytest.raises(ConfigError, match="set 90 images aside"):
        recovery_splits(plan.model, None, TrainingCounts(None, report=91), parent)


def test_test_images_choose_where_asked_and_the_others_are_reported_on():
    plan, parent = read_plan(Path("runs/damaged")), images_of_run(Path("runs/damaged"))
    usual = recovery_splits(plan.model, None, TrainingCounts(None, seed=0), parent)
    found = recovery_splits(plan.model, None, TrainingCounts(None, seed=0, select_on_test=True), parent)
    assert found.selection.images is found.report.images is not found.calibration.images
    assert not {*found.selection.indices} & {*found.report.indices}
    assert len(found.calibration) == len(usual.calibration) + len(usual.selection)
    assert len(found.selection) == 16 and len(found.report) <= 160 - 16


def test_a_recovered_run_knows_the_images_of_the_run_it_began_with():
    recover("damaged", level="stats", name="once", overwrite=True)
    assert images_of_run(Path("runs/once")).data == images_of_run(Path("runs/damaged")).data is not None
    again = recover("once", level="none", select_on_test=True, name="twice", overwrite=True)
    assert again.split.selection == 16


def test_a_run_that_says_it_began_with_itself_is_read_once():
    recover("damaged", level="none", name="circle", overwrite=True)
    file = Path("runs/circle/run.json")
    file.write_text(file.read_text().replace(str(Path("runs/damaged")), str(Path("runs/circle"))))
    assert images_of_run(Path("runs/circle")).data is None


def test_other_images_are_learnt_from_and_the_run_s_test_images_reported_on():
    plan, parent = read_plan(Path("runs/damaged")), images_of_run(Path("runs/damaged"))
    found = recovery_splits(plan.model, None, TrainingCounts("bare.npz"), replace(parent, reported=None))
    assert "bare" in found.calibration.images.name and "images.npz" in found.report.images.name
    assert len(found.report) == 160


def test_without_labels_the_divergence_decides():
    found = recover("damaged", data="bare.npz", steps=12, name="bare", overwrite=True)
    assert found.level == "distill"
    assert all(rung.gain is None and "top-1" not in rung.outcome for rung in found.ladder)
    assert found.ladder[2].kept
    assert found.compressed.accuracy.top1 > found.before.accuracy.top1


# Settings


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_every_level(preset):
    for level in ("mimic", "distill", "full"):
        found = recover(
            "damaged", level=level, only=True, preset=preset, name="preset", overwrite=True, **FEW
        )
        assert found.preset == preset and found.ladder[0].steps == 2


def test_svd_nas_trains_weights_of_blocks_and_nothing_else(monkeypatch):
    monkeypatch.setattr(recover_module, "climb", _kept_anyway(recover_module.climb))
    recover("damaged", level="mimic", only=True, preset="svd-nas", name="blocks", overwrite=True, **FEW)
    before, after = weights("damaged"), weights("blocks")
    plan = read_plan(Path("runs/damaged"))
    blocks = tuple(name for choice in plan.choices for name in choice.layers)
    assert blocks
    for key, value in before.items():
        if not key.startswith(blocks):
            assert torch.equal(value, after[key]), key


def _kept_anyway(climb):
    """The last level's network is the result, whatever images say: two steps seldom help."""

    def climbing(scene, levels, passed):
        found = climb(scene, levels, passed)
        module = levels[-1].run(replace(scene, memo=NO_MEMO), load("runs/damaged")).module
        return replace(found, module=module)

    return climbing


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "pugd", "sam"])
def test_every_optimiser_can_be_asked_for(optimizer):
    found = recover(
        "damaged", level="distill", only=True, optimizer=optimizer, name="by", overwrite=True, **FEW
    )
    assert found.ladder[0].steps == 2


def test_minutes_become_steps():
    found = recover(
        "damaged", level="mimic", only=True, minutes=0.02, name="short", overwrite=True, selection_images=40
    )
    assert found.ladder[0].steps >= 1 and found.ladder[0].minutes < 3


def test_papers_have_their_own_settings():
    paper = PRESETS["svd-nas"].mimic.settings(10)
    assert isinstance(paper, TrainSettings) and paper.norms == "frozen"
    told = paper.optimiser_settings
    assert (told.lr, told.momentum, told.weight_decay) == (1e-3, 0.9, 1e-4)
    assert (paper.schedule.plateau.patience, paper.schedule.plateau.least) == (10, 0.1)
    thesis = PRESETS["thesis"].full.mix
    assert (thesis.temperature, thesis.answers, thesis.labels) == (4.0, 0.9, 0.1)
    few = PRESETS["few-sample"].full.mix
    assert (few.features, few.answers, few.labels, few.temperature) == (1.0, 0.95, 0.05, 6.0)


def test_an_optimiser_that_is_asked_for_gets_a_rate_that_suits_it():
    ours, plain = pick_recipe("ours").full, pick_recipe("ours", optimizer="sgd").full
    assert ours.optimiser == "adamw" and plain.lr > ours.lr
    paper = pick_recipe("svd-nas", optimizer="adamw").full
    assert (
        paper.lr
        == ours.lr
        < pick_recipe("svd-nas").full.lr
        == pick_recipe("svd-nas", optimizer="pugd").full.lr
    )
    assert pick_recipe("ours", optimizer="sgd", lr=0.7).full.lr == 0.7


@pytest.mark.parametrize("highest", ["mimic", "distill", "full"])
def test_the_highest_level_gets_most_of_the_minutes_and_all_are_dealt_out(highest):
    names = [*LEVELS][: [*LEVELS].index(highest) + 1]
    dealt = deal_out(60.0, [LEVELS[name] for name in names if name != "synthetic"])
    assert sum(dealt.values()) == pytest.approx(60) and min(dealt.values()) > 0
    assert dealt[highest] > 40


def test_levels_that_train_nothing_get_no_minutes():
    assert deal_out(60.0, [LEVELS["none"], LEVELS["stats"]]) == {}


# Narrowed networks and synthetic images


@pytest.mark.parametrize("seed", range(3))
def test_an_ascending_match_is_the_best_there_is(seed):
    from itertools import combinations

    likeness = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted = max(combinations(range(7), 3), key=lambda one: sum(likeness[i, j] for i, j in enumerate(one)))
    assert tuple(ascending_match(likeness)) == wanted


def test_units_that_stayed_are_found_by_what_they_put_out():
    loaded = load_model(**{"source" if k == "model" else k: v for k, v in MODEL.items()})
    dense, network = (
        loaded.module,
        load_model("net.py:build", weights="net.safetensors", input_size=(SIDE, SIDE)),
    )
    found = find_width_groups(dense, loaded.ref.input_shape, residual=False)
    group = next(one for one in found.groups if one.width == 16)
    assert isinstance(group, Group)
    kept = [0, 1, 4, 5, 9, 10, 15]
    narrowings = narrow_(network.module, [group], {group.name: kept})
    plan = Plan(model=loaded.ref, narrowings=narrowings)
    rows = staying_rows(network.module, dense, plan, [torch.randn(24, 3, SIDE, SIDE)])
    assert rows[group.name] == kept
    readers = [cut.module for cut in group.cuts if cut.axis == "inputs"]
    assert readers and all(
        rows[name] == list(range(len(dense.get_submodule(name).weight))) for name in readers
    )


def test_a_pruned_network_is_recovered_too():
    prune(**MODEL, widths="50%", multiple=4, floor=4, refit=False, batch_norm="keep", data="images.npz",
          name="pruned", overwrite=True)  # fmt: skip
    found = recover("pruned", steps=STEPS, name="grown", overwrite=True)
    levels = {rung.level: rung for rung in found.ladder}
    assert levels["refit"].kept and levels["refit"].after.divergence < levels["refit"].before.divergence
    assert "layers fitted" in levels["refit"].outcome
    assert found.compressed.accuracy.top1 > found.before.accuracy.top1
    assert found.compressed.params == found.before.params < found.dense.params
    assert load("runs/grown")(torch.zeros(1, 3, SIDE, SIDE)).shape == (1, 4)


def test_synthetic_images_are_enough_to_learn_from():
    synthesize(**MODEL, images=64, iterations=15, name="made", overwrite=True)
    found = recover(
        "damaged", level="synthetic", synthetic="runs/made", data="synthetic:runs/made", steps=STEPS,
        selection_images=16, name="dreamt", overwrite=True,
    )  # fmt: skip
    levels = {rung.level: rung for rung in found.ladder}
    assert levels["synthetic"].steps == STEPS * 2 / 3 or levels["synthetic"].steps > 0
    assert levels["mimic"].after is None  # the same images
    assert all(rung.gain is None for rung in found.ladder)  # labels of synthetic images are no labels
    assert found.compressed.accuracy.top1 > found.before.accuracy.top1  # on photographs, so to speak


# What cannot be


def test_labels_that_are_missing_are_told_with_levels_that_need_none():
    with pytest.raises(DataError, match=r"no labels.*none, stats, refit, mimic, synthetic, distill"):
        recover("damaged", data="bare.npz", level="full", name="x")
    assert not Path("runs/x").exists()


def test_networks_without_batch_norms_cannot_dream():
    damage("plain", model="net.py:plain", weights=None)
    with pytest.raises(ModelError, match=r"no batch norms.*refit, mimic, distill and full"):
        recover("plain", level="synthetic", name="x")
    found = recover("plain", level="stats", name="biases", overwrite=True, **FEW)
    assert "means set right" in found.ladder[1].outcome


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    other = {
        key: value + 1 for key, value in load_file("net.safetensors").items() if value.is_floating_point()
    }
    save_file({**load_file("net.safetensors"), **other}, tmp_path / "other.safetensors")
    with pytest.raises(ArtefactError, match=r"is not the checkpoint runs/damaged was made from"):
        recover("damaged", weights=str(tmp_path / "other.safetensors"), name="x")

    damage("foreign")
    save_file({"a": torch.zeros(2)}, "runs/foreign/weights.safetensors")
    with pytest.raises(ArtefactError, match=r"does not fit plan.json"):
        recover("foreign", name="x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "magic"}, "level 'magic' is not known"),
        ({"minutes": 0}, "--minutes 0"),
        ({"preset": "magic"}, "preset 'magic' is not known"),
        ({"optimizer": "magic"}, "optimizer 'magic' is not known"),
        ({"lr": 0.0}, "--lr 0"),
        ({"augment": "spin", "steps": 2}, "--augment 'spin'"),
        ({"synthetic": "runs/damaged"}, "holds no images"),
        ({"training_images": 9000}, "ask for fewer"),
        ({"run": "nothing"}, "run 'nothing': not found"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(options, said):
    from edgecompress.errors import EdgeCompressError

    with pytest.raises(EdgeCompressError, match=said):
        recover(**({"run": "damaged", "name": "x", "level": "distill"} | options))
    assert not Path("runs/x").exists() and not Path("runs/.x.work").exists()
