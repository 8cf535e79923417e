"""The training loop: it learns, it stops, it keeps the best, and it goes on where it was."""

import math

import pytest
import torch
from made_trainings import course_of, right, settings_of, tiny_net, training_images
from torch import nn

from edgecompress.errors import ArtefactError, ConfigError, ModelError
from edgecompress.train import loop
from edgecompress.train.average import Average
from edgecompress.train.loop import fit
from edgecompress.train.objectives import from_labels

LABELS = from_labels()


def weights_of(network):
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def distance_gone(network):
    """Judges a network by how little it moved."""
    return -float((weights_of(network) - weights_of(tiny_net())).norm())


def test_training_learns_the_classes():
    before = tiny_net()
    done = fit(course_of(tiny_net()), LABELS, training_images(), settings_of(45))
    assert right(done.module) > max(80, right(before.eval()) + 20)
    assert [row.steps for row in done.rows] == list(range(3, 46, 3))
    assert done.rows[-1].loss < done.rows[0].loss
    assert not done.module.training


@pytest.mark.parametrize("optimiser", ["sgd", "adamw", "pugd", "sam"])
def test_a_training_that_was_stopped_goes_on_with_the_same_result(tmp_path, monkeypatch, optimiser):
    settings = settings_of(12, optimiser=optimiser, ema=0.8)
    whole = fit(course_of(tiny_net(dropout=0.2)), LABELS, training_images(), settings, judge=right)

    class Stop(Exception):
        pass

    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)  # so that it is in the middle of an epoch, too
    course, taken = course_of(tiny_net(dropout=0.2)), []

    def after_step(step):
        taken.append(step)
        if step == 7:
            raise Stop

    course = loop.Course(course.network, course.backward, course.finish, after_step)
    path = tmp_path / "training.safetensors"
    with pytest.raises(Stop):
        fit(course, LABELS, training_images(), settings, judge=right, checkpoint=path)
    again = course_of(tiny_net(dropout=0.2))
    done = fit(again, LABELS, training_images(), settings, judge=right, checkpoint=path)
    assert torch.equal(weights_of(done.module), weights_of(whole.module))
    assert [row.loss for row in done.rows] == [row.loss for row in whole.rows]
    assert (done.best_epoch, done.best_score) == (whole.best_epoch, whole.best_score)


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    path = tmp_path / "training.safetensors"
    images, settings = training_images(), settings_of(3)
    fit(course_of(tiny_net()), LABELS, images, settings, checkpoint=path, identity="one")
    with pytest.raises(ArtefactError, match="of another training"):
        fit(course_of(tiny_net()), LABELS, images, settings, checkpoint=path, identity="two")


def test_the_best_epoch_is_kept_and_the_start_counts_as_one():
    scores = iter([5.0, 1.0, 7.0, 3.0])
    seen = []

    def judge(network):
        seen.append(weights_of(network).clone())
        return next(scores)

    done = fit(course_of(tiny_net()), LABELS, training_images(), settings_of(9), judge=judge)
    assert (done.best_epoch, done.best_score) == (2, 7.0)
    assert torch.equal(weights_of(done.module), seen[2])
    harmed = fit(course_of(tiny_net()), LABELS, training_images(), settings_of(3), judge=distance_gone)
    assert harmed.best_epoch == 0
    assert torch.equal(weights_of(harmed.module), weights_of(tiny_net()))


def test_a_course_may_insist_on_its_last_epoch():
    course = course_of(tiny_net())
    course = loop.Course(course.network, course.backward, course.finish, keeps_last=True)
    done = fit(course, LABELS, training_images(), settings_of(6), judge=lambda net: 0.0)
    assert done.best_epoch is None
    assert not torch.equal(weights_of(done.module), weights_of(tiny_net()))


def test_divergence_stops_keeps_the_best_and_says_so():
    settings = settings_of(30, lr=1e20, schedule="constant")
    done = fit(course_of(tiny_net()), LABELS, training_images(), settings, judge=right)
    assert done.stopped is not None and done.stopped.startswith("diverged")
    assert weights_of(done.module).isfinite().all()
    with pytest.raises(ModelError, match="not finite"):
        fit(course_of(tiny_net()), LABELS, training_images(), settings)


def test_a_plateau_lowers_the_rate_and_ends_training():
    settings = settings_of(300, schedule="plateau:2:0.1:0.1")
    done = fit(course_of(tiny_net()), LABELS, training_images(), settings, judge=lambda net: 0.0)
    rates = [row.lr for row in done.rows]
    assert len(done.rows) == 6 and done.stopped is not None
    assert rates == pytest.approx([0.05] * 3 + [0.005] * 3)


def test_frozen_norms_keep_their_statistics_and_others_learn_them():
    def means(norms):
        done = fit(course_of(tiny_net()), LABELS, training_images(), settings_of(3, norms=norms))
        return done.module[1].running_mean

    assert torch.equal(means("frozen"), torch.zeros(6))
    assert float(means("train").abs().max()) > 0


def test_parameters_that_do_not_ask_for_a_gradient_stay():
    network = tiny_net()
    network[0].weight.requires_grad_(False)
    done = fit(course_of(network), LABELS, training_images(), settings_of(6))
    assert torch.equal(done.module[0].weight, tiny_net()[0].weight)
    assert not torch.equal(done.module[3].weight, tiny_net()[3].weight)


def test_long_gradients_are_cut():
    settings = settings_of(1, lr=1.0, schedule="constant", clip_norm=1e-3)
    done = fit(course_of(tiny_net()), LABELS, training_images(), settings)
    moved = float((weights_of(done.module) - weights_of(tiny_net())).norm())
    assert 0 < moved < 2e-3  # the decay adds a little


def test_an_average_lies_between_where_weights_were():
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 0.0)
    average = Average(network, 0.9)
    for value in (1.0, 1.0, 1.0):
        nn.init.constant_(network.weight, value)
        average.follow_(network)
    kept = math.prod(count / (count + 10) for count in (1, 2, 3))
    assert float(average.network.weight.item()) == pytest.approx(1 - kept)
    with pytest.raises(ConfigError, match="--ema"):
        Average(network, 1.0)
