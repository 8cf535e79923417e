"""RARTS on the supernet: two copies on split images, shared scores."""

import dataclasses

import pytest
import torch
from gradient_problems import filling, gradient_problem, labelled, unlabelled
from small_nets import INPUT_SHAPE, same_state, small_net, state_of

from edgecompress.search import supernet_rarts, theta_training
from edgecompress.search.image_pool import make_pool
from edgecompress.search.mixed_layers import make_supernet
from edgecompress.search.supernet import GradientSettings, gradient_step_, search_by_gradient
from edgecompress.search.supernet_rarts import rarts_step_
from edgecompress.search.theta import Space
from edgecompress.search.theta_training import fresh_adam

MODEL = small_net()
PROBLEM = gradient_problem(MODEL)
SPACE = Space(PROBLEM)
FILL = filling(PROBLEM)
SETTINGS = GradientSettings(steps=8, batch_images=8, optimiser="rarts")


def run(**options):
    return search_by_gradient(MODEL, PROBLEM, FILL, unlabelled(), SETTINGS, **options)


def one_step(settings, step_, pool, *, fold):
    net = make_supernet(MODEL, PROBLEM, FILL, INPUT_SHAPE, fold=fold)
    standing = fresh_adam(torch.zeros(sum(SPACE.sizes), dtype=torch.float64))
    standing.elasticity = 1.0
    return standing, step_(standing, net, SPACE, pool, settings, 2.0, seed=0)


def test_the_plan_is_within_the_limit_and_the_model_left_alone():
    before = state_of(MODEL)
    found = run()
    assert found.cost == pytest.approx(PROBLEM.total(found.choices))
    assert found.cost <= PROBLEM.limit
    assert same_state(MODEL, before)


def test_norms_and_biases_move_and_nothing_else():
    pool = make_pool(MODEL, labelled(MODEL))
    standing, _ = one_step(dataclasses.replace(SETTINGS, weight_lr=0.1), rarts_step_, pool, fold=False)
    copies = {name for name in standing.tensors if name[:2] in ("u.", "w.")}
    trained = {"norm1.weight", "norm2.bias", "biased.bias", "head.bias", "depthwise.bias", "hidden.bias"}
    assert {f"{which}.{name}" for which in "uw" for name in trained} <= copies
    assert all(standing.tensors[name].ndim == 1 for name in copies)
    assert not torch.equal(standing.tensors["u.norm1.weight"], standing.tensors["w.norm1.weight"])


def test_each_copy_sees_its_own_half_of_the_images():
    pool = make_pool(MODEL, labelled(MODEL))
    numbered = dataclasses.replace(pool, targets=torch.arange(len(pool)))
    seen = [
        {int(i) for step in range(9) for i in supernet_rarts._half(numbered, SETTINGS, step, 0, half)[1]}
        for half in (0, 1)
    ]
    assert seen[0] == set(range(0, 24, 2))
    assert seen[1] == set(range(1, 24, 2))


def test_with_copies_that_do_not_move_the_gradient_is_the_mean_of_the_halves():
    pool = make_pool(MODEL, labelled(MODEL))
    still = dataclasses.replace(SETTINGS, weight_lr=0.0, batch_images=24)
    _, facts = one_step(still, rarts_step_, pool, fold=False)
    parts = []
    for half in (0, 1):
        own = pool.take(torch.arange(half, 24, 2))
        part = dataclasses.replace(pool, batches=(own[0],), targets=own[1])
        settings = dataclasses.replace(still, batch_images=12, optimiser="adam")
        parts.append(one_step(settings, gradient_step_, part, fold=True)[1])
    torch.testing.assert_close(facts.by_loss, (parts[0].by_loss + parts[1].by_loss) / 2, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(facts.by_cost, parts[0].by_cost)
    assert facts.loss == pytest.approx((parts[0].loss + parts[1].loss) / 2, rel=1e-4)


def test_a_search_that_was_stopped_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(theta_training, "CHECKPOINT_S", 0.0)
    expected = run()

    class Stop:
        def track(self, items, description, total=None):
            for item in items:
                if item == 3:
                    raise KeyboardInterrupt
                yield item

    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=tmp_path / "theta", progress=Stop())
    assert run(checkpoint=tmp_path / "theta") == expected
