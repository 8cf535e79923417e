"""The engine: one preparation, any number of budgets, and a plan that costs what was asked."""

import dataclasses

import pytest
import torch
from small_nets import INPUT_SHAPE, TARGETS, hooks_of, images, same_state, small_net, state_of

from edgecompress import methods
from edgecompress.core.plugins import discover
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import BudgetError, ConfigError, ModelError
from edgecompress.methods.contract import Method
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.pipeline.engine import compress_once, compress_to
from edgecompress.pipeline.evaluate import divergence, log_probabilities
from edgecompress.pipeline.preparation import Recipe, Setting, prepare
from edgecompress.search import ranks
from edgecompress.search.contract import Selection, shape_costs

PLAIN = Recipe(factors="plain", refit="none", local_search=False, batch_norm="keep")
QUICK = Recipe(local_search=False)
SELECTIONS = sorted(discover(ranks, Selection))


def costs_of(net):
    return {"macs": float(total_macs(profile(net, INPUT_SHAPE))), "params": float(total_params(net))}


def setting_of(net=None, *, calibration=24, selection=12):
    net = small_net() if net is None else net
    layers, _ = find_layers(net, TARGETS, INPUT_SHAPE)
    batches = [images(calibration // 2, seed=i) for i in range(2)] if calibration else []
    chosen = [images(selection, seed=3)] if selection else []
    return Setting(net, layers, shape_costs(costs_of(net)), batches, chosen)


def compressed(setting, recipe=QUICK, *, metric="macs", share=0.6):
    prepared = prepare(setting, recipe, NO_PROGRESS)
    return compress_to(prepared, metric, share * setting.costs[metric].dense, NO_PROGRESS)


def harm_of(setting, net, seed=0):
    batches = [images(24, seed=seed)]
    return divergence(net, batches, log_probabilities(setting.model, batches))


@pytest.mark.parametrize("metric", ["macs", "params"])
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_the_built_network_costs_what_was_chosen_and_at_most_the_limit(metric, share):
    setting = setting_of()
    prepared = prepare(setting, QUICK, NO_PROGRESS)
    limit = share * setting.costs[metric].dense
    result = compress_to(prepared, metric, limit, NO_PROGRESS)
    measured = costs_of(result.module)[metric]
    assert measured == prepared.problem(metric, limit).total(result.choices)
    assert 0.8 * limit < measured <= limit


def test_the_dense_model_is_left_as_it_was():
    setting = setting_of()
    state = state_of(setting.model)
    compressed(setting, Recipe())
    assert same_state(setting.model, state)
    assert hooks_of(setting.model) == 0
    assert all(p.requires_grad for p in setting.model.parameters())
    assert all(p.grad is None for p in setting.model.parameters())


def test_one_preparation_serves_many_budgets_as_a_fresh_one_would():
    setting = setting_of()
    shared = prepare(setting, QUICK, NO_PROGRESS)
    for share in (0.7, 0.4):
        limit = share * setting.costs["macs"].dense
        again = compress_to(shared, "macs", limit, NO_PROGRESS)
        fresh = compress_to(prepare(setting, QUICK, NO_PROGRESS), "macs", limit, NO_PROGRESS)
        assert again.choices == fresh.choices
        assert same_state(again.module, state_of(fresh.module))


def test_the_only_budget_is_met_by_the_same_network():
    setting, recipe = setting_of(), Recipe()
    one = compressed(setting, recipe)
    limit = 0.6 * setting.costs["macs"].dense
    other, skipped = compress_once(setting, recipe, "macs", limit, NO_PROGRESS)
    assert (other.choices, other.steps, other.seconds.keys()) == (one.choices, one.steps, one.seconds.keys())
    assert same_state(other.module, state_of(one.module))
    assert [name for name, _ in skipped] == ["depthwise"]


def test_repair_needs_neither_kernels_nor_what_layers_read():
    prepared = prepare(setting_of(), QUICK, NO_PROGRESS)
    left = prepared.for_repair()
    assert not left.kernels and not left.options
    assert all(one.input is None and one.output is not None for one in left.metrics.values())


def test_the_same_seed_gives_the_same_network_and_another_one_another():
    first, again, other = (
        compressed(setting_of(), dataclasses.replace(Recipe(), seed=seed)) for seed in (0, 0, 1)
    )
    assert first.choices == again.choices
    assert first.steps == again.steps
    assert same_state(first.module, state_of(again.module))
    assert not (first.choices == other.choices and same_state(first.module, state_of(other.module)))


def test_a_budget_the_dense_model_meets_changes_nothing():
    setting = setting_of()
    result = compressed(setting, Recipe(), share=1.0)
    assert result.choices == {}
    assert result.steps == []
    assert same_state(result.module, state_of(setting.model))
    assert result.module is not setting.model


def test_a_budget_below_the_smallest_network_names_the_smallest():
    setting = setting_of()
    prepared = prepare(setting, QUICK, NO_PROGRESS)
    with pytest.raises(BudgetError, match=r"nearest reachable is macs=(\d+)") as error:
        compress_to(prepared, "macs", 10, NO_PROGRESS)
    nearest = float(str(error.value).rpartition("=")[2])
    result = compress_to(prepared, "macs", nearest, NO_PROGRESS)
    assert costs_of(result.module)["macs"] == nearest
    with pytest.raises(BudgetError):
        compress_to(prepared, "macs", nearest - 1, NO_PROGRESS)


def test_aware_factors_and_refit_do_less_harm():
    """Each on images that neither saw."""
    setting = setting_of()
    recipes = {
        "plain": PLAIN,
        "aware": dataclasses.replace(PLAIN, factors="aware"),
        "refit": dataclasses.replace(PLAIN, factors="aware", refit="both"),
    }
    harm = {name: harm_of(setting, compressed(setting, r).module, seed=40) for name, r in recipes.items()}
    assert harm["refit"] < harm["aware"] < harm["plain"]


def test_local_search_keeps_the_limit_and_lowers_the_loss_it_looks_at():
    setting = setting_of()
    recipe = dataclasses.replace(PLAIN, factors="aware")
    without = compressed(setting, recipe)
    with_search = compressed(setting, dataclasses.replace(recipe, local_search=True))
    assert [step for step, _ in with_search.steps] == ["local search"]
    assert costs_of(with_search.module)["macs"] <= 0.6 * setting.costs["macs"].dense
    reference = log_probabilities(setting.model, setting.calibration)
    harm = [divergence(r.module, setting.calibration, reference) for r in (without, with_search)]
    assert harm[1] <= harm[0]
    for name, choice in with_search.choices.items():  # what stands in the network is what was chosen
        assert sum(p.numel() for p in with_search.module.get_submodule(name).parameters()) == choice.params


def test_the_steps_say_what_was_done():
    setting = setting_of()
    assert compressed(setting, PLAIN).steps == []
    everything = compressed(setting, Recipe())
    assert [step for step, _ in everything.steps] == ["local search", "refit", "batch norm"]
    assert {"statistics", "sensitivities", "allocation", "factors", "repair"} <= set(everything.seconds)
    assert all(seconds >= 0 for seconds in everything.seconds.values())


@pytest.mark.parametrize("batch_norm", ["auto", "keep", "correct"])
def test_batch_norm_statistics_follow_the_recipe(batch_norm):
    setting = setting_of()
    recipe = dataclasses.replace(PLAIN, batch_norm=batch_norm)
    result, kept = compressed(setting, recipe), compressed(setting, PLAIN)
    changed = not torch.equal(result.module.norm2.running_mean, kept.module.norm2.running_mean)
    told = dict(result.steps).get("batch norm", "")
    assert changed == {"auto": told.startswith("kept"), "keep": False, "correct": True}[batch_norm]
    if batch_norm == "auto":
        reference = log_probabilities(setting.model, setting.selection)
        harm = [divergence(r.module, setting.selection, reference) for r in (result, kept)]
        assert harm[0] <= harm[1]


def test_without_selection_images_calibration_images_choose():
    result = compressed(setting_of(selection=0), QUICK)
    assert [step for step, _ in result.steps] == ["refit", "batch norm"]


def test_plain_factors_need_no_images_at_all():
    assert not PLAIN.needs_images
    assert QUICK.needs_images
    setting = setting_of(calibration=0, selection=0)
    assert costs_of(compressed(setting, PLAIN).module)["macs"] <= 0.6 * setting.costs["macs"].dense


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("metric", ["macs", "params"])
def test_every_rank_selection_meets_the_budget(name, metric):
    setting = setting_of()
    recipe = dataclasses.replace(PLAIN, rank_selection=name, methods=("lowrank", "tucker2"))
    result = compressed(setting, recipe, metric=metric, share=0.7)
    assert result.choices
    assert costs_of(result.module)[metric] <= 0.7 * setting.costs[metric].dense
    assert bool(log_probabilities(result.module, [images(4)]).isfinite().all())


@pytest.mark.parametrize("name", sorted(discover(methods, Method)))
def test_every_method_can_be_the_only_one(name):
    setting = setting_of()
    recipe = dataclasses.replace(Recipe(), methods=(name,))
    result = compressed(setting, recipe, share=0.8)
    assert {choice.method for choice in result.choices.values()} == {name}
    assert costs_of(result.module)["macs"] <= 0.8 * setting.costs["macs"].dense
    assert harm_of(setting, result.module, seed=40) < harm_of(setting, small_net(seed=1), seed=40)


def test_families_can_be_limited():
    result = compressed(setting_of(), dataclasses.replace(PLAIN, families=("S2", "S5")), share=0.8)
    assert {choice.family.partition("(")[0] for choice in result.choices.values()} <= {"S2", "S5"}
    with pytest.raises(ConfigError, match="'S9': fit no layer; there are: S4, S2, S2T, S5"):
        compressed(setting_of(), dataclasses.replace(PLAIN, families=("S9",)))


def test_layers_no_method_takes_are_skipped_with_the_reason():
    prepared = prepare(setting_of(), QUICK, NO_PROGRESS)
    assert [name for name, _ in prepared.skipped] == ["depthwise"]
    assert "groups=16" in prepared.skipped[0][1]
    assert [options.layer.name for options in prepared.options] == [n for n in TARGETS if n != "depthwise"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": ("magic",)}, "method 'magic' is not known; known are: .*lowrank"),
        ({"rank_selection": "luck"}, "rank selection 'luck' is not known; known are: .*exact"),
        ({"factors": "guess"}, "factors 'guess' is not known; known are: aware, plain"),
        ({"batch_norm": "maybe"}, "batch norm 'maybe' is not known; known are: auto, keep, correct"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(change, says):
    with pytest.raises(ConfigError, match=says):
        dataclasses.replace(QUICK, **change).check()


@pytest.mark.parametrize("recipe", [PLAIN, QUICK], ids=["plain", "aware"])
def test_weights_that_are_not_numbers_are_refused(recipe):
    net = small_net()
    net.wide.weight.data[0, 0, 0, 0] = float("inf")
    with pytest.raises(ModelError, match="wide: its weights are not finite"):
        compressed(setting_of(net), recipe)


@pytest.mark.parametrize("recipe", [PLAIN, Recipe()], ids=["plain", "aware"])
def test_dead_layers_do_not_stop_the_rest(recipe):
    net = small_net()
    with torch.no_grad():
        net.biased.weight.zero_()  # everything behind sees constants
        net.norm1.weight[:6] = 0
    setting = setting_of(net)
    result = compressed(setting, recipe)
    assert costs_of(result.module)["macs"] <= 0.6 * setting.costs["macs"].dense
    assert harm_of(setting, result.module) < 1e-6
