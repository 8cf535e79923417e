"""Synthetic images: the loss is the published formula, the network stays as it is, seeds decide all."""

import math

import pytest
import torch
from small_nets import INPUT_SHAPE, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.plugins import pick
from edgecompress.core.synthesis_results import SynthesisSettings
from edgecompress.errors import ConfigError
from edgecompress.train.norm_statistics import WatchedNetwork
from edgecompress.train.synthesis import ImageBatch, first_images, make_images
from edgecompress.train.synthesis_loss import image_losses
from edgecompress.train.synthesis_presets import SYNTHESIS_PRESETS, pick_settings

SETTINGS = SynthesisSettings(
    preset="ours",
    statistics="image",
    scale="sum",
    input_weight=1.0,
    start="noise",
    learning_rate=0.1,
    schedule="plateau",
    iterations=12,
    batch_images=6,
)


def settings(**changed):
    return SETTINGS.model_copy(update=changed)


class OtherNorms(nn.Module):
    """Norms that are called by keyword, on rows and on maps of one pixel, and one that runs twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.shared = nn.BatchNorm2d(4)
        self.narrow = nn.Conv2d(4, 4, 1)
        self.one_pixel = nn.BatchNorm2d(4)
        self.rows = nn.BatchNorm1d(4)
        self.forgetful = nn.BatchNorm2d(4, track_running_stats=False)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.shared(input=self.conv(x)).relu()
        x = self.shared(self.narrow(x)).relu()
        x = self.forgetful(x)
        x = self.one_pixel(x.mean((2, 3), keepdim=True))
        return self.head(self.rows(x.flatten(1)))


def other_net(*, seed=0):
    torch.manual_seed(seed)
    net = OtherNorms()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


def naive_loss(net, x, *, statistics, scale, alpha, skipped=()):
    """The published formula, written down as it stands; inputs of norms are caught by hooks."""
    norms = [m for m in net.modules() if getattr(m, "running_mean", None) is not None]
    inputs, handles = [], []

    def catch(module, args, kwargs):
        inputs.append((module, args[0] if args else kwargs["input"]))

    for norm in norms:
        handles.append(norm.register_forward_pre_hook(catch, with_kwargs=True))
    net(x)
    for handle in handles:
        handle.remove()
    zeros, ones = torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype)
    terms = [(alpha, x, zeros, ones)]
    for norm, value in inputs:
        if norms.index(norm) not in skipped:
            terms.append((1.0, value, norm.running_mean, (norm.running_var + 1e-6).sqrt()))
    total = 0.0
    for weight, value, mean, deviation in terms:
        value = value.reshape(*value.shape[:2], -1)
        groups = list(value) if statistics == "image" else [value.transpose(0, 1).flatten(1)]
        for one in groups:
            difference = (one.mean(1) - mean) ** 2
            if one.shape[1] > 1:
                difference = difference + ((one.var(1) + 1e-6).sqrt() - deviation) ** 2
            if scale == "relative":
                variance = deviation**2
                difference = difference / variance.clamp(min=0.01 * variance.mean())
            n = 1.0 if scale == "sum" else 1 / len(mean)
            total = total + weight * n * difference.sum() / len(groups)
    return total


@pytest.mark.parametrize("statistics", ["image", "batch"])
@pytest.mark.parametrize("scale", ["sum", "mean", "relative"])
@pytest.mark.parametrize("make", [small_net, other_net])
def test_loss_and_gradient_are_those_of_the_formula(make, statistics, scale):
    net = make().double()
    x = images(5, dtype=torch.float64).requires_grad_()
    chosen = settings(statistics=statistics, scale=scale, input_weight=3.0)
    losses = image_losses(WatchedNetwork(net), x, None, chosen)
    naive = naive_loss(net, x, statistics=statistics, scale=scale, alpha=3.0)
    torch.testing.assert_close(losses.total, naive)
    (gradient,) = torch.autograd.grad(losses.total, x)
    (expected,) = torch.autograd.grad(naive, x)
    torch.testing.assert_close(gradient, expected)
    assert gradient.abs().max() > 1e-4


def test_skipped_norms_do_not_count():
    net, x = small_net().double(), images(4, dtype=torch.float64)
    some = image_losses(WatchedNetwork(net), x, None, settings(skipped_norms=(0, 2))).total
    naive = naive_loss(net, x, statistics="image", scale="sum", alpha=1.0, skipped=(0, 2))
    torch.testing.assert_close(some, naive)


def test_other_terms_are_cross_entropy_and_total_variation():
    net, x = small_net().double(), images(4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3])
    watched = WatchedNetwork(net)
    losses = image_losses(watched, x, labels, settings(class_weight=0.5, smooth_weight=0.25))
    entropy = nn.functional.cross_entropy(net(x), labels)
    down, right = (x[:, :, 1:] - x[:, :, :-1]).abs().mean(), (x[..., 1:] - x[..., :-1]).abs().mean()
    torch.testing.assert_close(losses.total, losses.statistics + 0.5 * entropy + 0.25 * (down + right))


@pytest.mark.parametrize("make", [small_net, other_net])
def test_a_watched_network_computes_what_the_network_does_and_leaves_it_alone(make):
    net, x = make(), images(3)
    before = state_of(net)
    watched = WatchedNetwork(net)
    outputs, seen = watched(x)
    torch.testing.assert_close(outputs, net(x), rtol=1e-4, atol=1e-5)
    assert len(seen) >= len(watched.stored) >= 2
    assert not any(p.requires_grad for p in watched.parameters())
    assert all(p.requires_grad for p in net.parameters())
    assert same_state(net, before) and hooks_of(net) == 0


def made(net, number=0, seed=0, **changed):
    chosen = settings(**changed)
    return make_images(WatchedNetwork(net), ImageBatch(number, INPUT_SHAPE, 6, seed), chosen)


def test_the_loss_falls_and_the_network_is_frozen():
    net = small_net()
    watched = WatchedNetwork(net)
    before, inside = state_of(net), state_of(watched)
    found = make_images(watched, ImageBatch(0, INPUT_SHAPE, 6, 0), settings(iterations=30))
    assert found.end_loss < 0.5 * found.start_loss
    assert found.images.dtype == torch.float16 and found.images.shape == (6, *INPUT_SHAPE)
    assert same_state(net, before) and same_state(watched, inside)
    assert all(p.grad is None for p in [*net.parameters(), *watched.parameters()])
    again = image_losses(watched, found.images.float(), None, SETTINGS).total
    assert float(again) == pytest.approx(found.end_loss, rel=0.02)


def test_images_follow_from_seed_and_number_alone():
    net = small_net()
    first = made(net, number=1, seed=3, shift_pixels=2)
    torch.rand(7)  # the state of torch's own random numbers does not matter
    assert torch.equal(first.images, made(net, number=1, seed=3, shift_pixels=2).images)
    for other in (made(net, number=2, seed=3), made(net, number=1, seed=4)):
        assert not torch.equal(first.images, other.images)


def test_classes_are_dealt_out_evenly_and_reached():
    net = small_net()
    changed = {"class_weight": 1.0, "iterations": 40}
    found = [made(net, number=number, **changed) for number in (0, 1)]
    assert torch.cat([one.labels for one in found]).bincount().tolist() == [2] * 6
    assert found[0].asked_class > 0.8
    assert found[0].statistics_loss < found[0].end_loss
    assert made(net).labels is None and made(net).asked_class is None


def test_a_plateau_ends_a_batch():
    stuck = made(small_net(), learning_rate=1e-9, stop_patience=4, iterations=50)
    assert (stuck.stopped, stuck.iterations) == ("plateau", 4)
    assert made(small_net(), stop_patience=4).stopped == "iterations"


def test_a_batch_ends_after_so_many_iterations():
    found = made(small_net(), iterations=7)
    assert (found.stopped, found.iterations) == ("iterations", 7)


def test_divergence_ends_a_batch_and_the_best_images_are_kept():
    found = made(small_net(), learning_rate=1e6)
    assert found.stopped == "diverged" and found.iterations < 12
    assert found.images.isfinite().all()
    assert found.end_loss <= found.start_loss


def test_a_network_that_says_nan_diverges_at_once():
    net = small_net()
    nn.init.constant_(net.narrow.weight, math.nan)
    found = made(net)
    assert (found.stopped, found.iterations) == ("diverged", 0)
    assert found.images.isfinite().all()


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_the_learning_rate_falls(monkeypatch, schedule):
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self)
    )
    made(small_net(), schedule=schedule, patience=3, learning_rate=0.1, iterations=20, statistics="batch")
    assert rates == sorted(rates, reverse=True) and rates[0] == 0.1
    if schedule == "cosine":
        assert rates[10] == pytest.approx(0.05) and rates[-1] < 0.002
    rates.clear()
    made(
        small_net(), schedule=schedule, patience=3, learning_rate=1e-7, min_learning_rate=1e-9, iterations=20
    )
    assert rates[-1] < 0.2 * rates[0]


@pytest.mark.parametrize("start", ["faint", "noise", "smooth"])
def test_first_images(start):
    batch = ImageBatch(0, (3, 32, 32), 6, 0)
    found = first_images(batch, settings(start=start, batch_images=64), batch.generator())
    assert found.shape == (64, 3, 32, 32) and abs(found.mean()) < 0.1
    if start == "faint":
        assert found.abs().max() == pytest.approx(127.5 / 5418.75, rel=0.01)
        return
    assert found.std() == pytest.approx(1, abs=0.02)
    rough = found.diff(dim=-1).std()
    assert rough < 0.5 if start == "smooth" else rough > 1.3


def test_presets_of_the_paper_are_what_was_published():
    resnet, mobile, efficient = (
        SYNTHESIS_PRESETS[f"paper-{name}"].settings for name in ("resnet18", "mobilenetv2", "efficientnet")
    )
    assert [one.scale for one in (resnet, mobile, efficient)] == ["sum", "mean", "mean"]
    assert [one.input_weight for one in (resnet, mobile, efficient)] == [1, 1, 100]
    assert [one.learning_rate for one in (resnet, mobile, efficient)] == [0.5, 0.25, 0.5]
    assert efficient.skipped_norms == (6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 48)
    for one in (resnet, mobile, efficient):
        assert (one.statistics, one.start, one.schedule) == ("image", "faint", "plateau")
        assert (one.iterations, one.patience, one.min_learning_rate) == (500, 100, 1e-4)
        assert (one.batch_images, one.class_weight, one.smooth_weight, one.shift_pixels) == (32, 0, 0, 0)


def test_settings_are_those_of_the_preset_but_for_what_is_given():
    found = pick_settings("paper-resnet18", {"iterations": 7, "class_weight": None})
    expected = pick(SYNTHESIS_PRESETS, "paper-resnet18", what="preset").settings
    assert found == expected.model_copy(update={"iterations": 7})


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [("papre", {}, "paper-resnet18"), ("ours", {"statistics": "photo"}, "'image' or 'batch'")],
)
def test_settings_that_cannot_be_are_refused(preset, given, said):
    with pytest.raises(ConfigError, match=said):
        pick_settings(preset, given)
