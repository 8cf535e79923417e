"""The published search: two candidates per layer and step, and nothing else moves."""

import dataclasses

import pytest
import torch
from gradient_problems import filling, gradient_problem, labelled, unlabelled
from small_nets import INPUT_SHAPE, images, small_net

from edgecompress.errors import BudgetError
from edgecompress.search import svd_nas_paper, theta_training
from edgecompress.search.image_pool import make_pool
from edgecompress.search.mixed_layers import make_supernet
from edgecompress.search.supernet import pruned_space
from edgecompress.search.svd_nas_paper import PUBLISHED, sampled_net, sampling_step_, search_by_sampling
from edgecompress.search.theta import Space
from edgecompress.search.theta_training import fresh_adam

MODEL = small_net()
PROBLEM = gradient_problem(MODEL)
FILL = filling(PROBLEM)
QUICK = dataclasses.replace(PUBLISHED, steps=10, batch_images=8, gamma=(0.3, 0.9, 0.05))


def run(*, problem=PROBLEM, settings=QUICK, batches=None, **options):
    return search_by_sampling(MODEL, problem, FILL, batches or unlabelled(), settings, **options)


def test_every_family_is_on_a_grid_of_five_per_cent():
    space = pruned_space(PROBLEM, PUBLISHED, None)
    for before, after in zip(PROBLEM.options, space.problem.options, strict=True):
        assert {c.family for c in after.candidates} == {
            c.family for c in before.candidates if PROBLEM.cost(c) <= 0.9 * PROBLEM.dense_cost(before.layer)
        }
        by_family = [c.family for c in after.candidates]
        assert max(map(by_family.count, by_family)) <= 9


def test_masks_mix_the_outputs_image_by_image():
    space = pruned_space(PROBLEM, QUICK, None)
    net = sampled_net(MODEL, space, FILL, INPUT_SHAPE)
    whole = make_supernet(MODEL, space.problem, FILL, INPUT_SHAPE)
    x = images(2)
    places = [[1, 2]] * len(net.layers)
    for layer, drawn in zip(net.layers, places, strict=True):
        layer.drawn, layer.masks = torch.tensor(drawn), torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    found = net.module(x)
    for image, masks in enumerate(([1.0, 0.0], [0.25, 0.75])):
        weights = [torch.zeros(size) for size in space.sizes]
        for own, drawn in zip(weights, places, strict=True):
            own[drawn] = torch.tensor(masks)
        torch.testing.assert_close(found[image], whole.run(x, weights)[image], rtol=1e-4, atol=1e-4)


def test_only_two_scores_per_layer_move_and_their_mass_stays():
    settings = dataclasses.replace(QUICK, weight_decay=0.0)
    space, pool = pruned_space(PROBLEM, settings, None), make_pool(MODEL, unlabelled())
    standing = fresh_adam(torch.ones(sum(space.sizes), dtype=torch.float64))
    net = sampled_net(MODEL, space, FILL, INPUT_SHAPE)
    before = standing.scores.clone()
    sampling_step_(standing, net, space, pool, settings, 3.0, seed=0)
    for layer, old, new in zip(net.layers, space.split(before), space.split(standing.scores), strict=True):
        moved = (old != new).nonzero().flatten().tolist()
        assert sorted(layer.drawn.tolist()) == moved
        assert len(moved) == 2
        mass = [float((part[moved] / 3.0).exp().sum()) for part in (old, new)]
        assert mass[0] == pytest.approx(mass[1])


def test_draws_follow_the_scores():
    space = Space(PROBLEM)
    scores = torch.zeros(sum(space.sizes), dtype=torch.float64)
    for own in space.split(scores):
        own[3] = 9.0
    hits = 0
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        draws = svd_nas_paper._draws(space, scores, 4, 1.0, generator)
        hits += sum(3 in drawn.tolist() for drawn, _ in draws)
        for drawn, masks in draws:
            assert len(set(drawn.tolist())) == 2
            torch.testing.assert_close(masks.sum(1), torch.ones(4, dtype=torch.float64))
    assert hits > 0.9 * 50 * len(space.sizes)


@pytest.mark.parametrize("metric", ["macs", "ms"])
@pytest.mark.parametrize("labels", [True, False])
def test_the_plan_is_within_the_limit(metric, labels):
    problem = gradient_problem(MODEL, metric=metric, fixed=0.01)
    found = run(problem=problem, batches=labelled(MODEL) if labels else unlabelled())
    assert found.cost == pytest.approx(problem.total(found.choices))
    assert found.cost <= problem.limit


def test_a_layer_without_candidates_stays_dense():
    (first, *rest) = PROBLEM.options
    problem = dataclasses.replace(
        PROBLEM, options=(dataclasses.replace(first, candidates=(), errors=()), *rest)
    )
    assert first.layer.name not in run(problem=problem).choices


def test_a_grid_that_cannot_meet_the_limit_is_an_error():
    with pytest.raises(BudgetError, match="nearest reachable"):
        run(settings=dataclasses.replace(QUICK, gamma=(0.9, 0.95, 0.05)))


def test_a_search_that_was_stopped_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(theta_training, "CHECKPOINT_S", 0.0)
    expected = run()

    class Stop:
        def track(self, items, description, total=None):
            for item in items:
                if item == 4:
                    raise KeyboardInterrupt
                yield item

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "theta", progress=Stop())
    assert run(checkpoint=tmp_path / "theta") == expected
