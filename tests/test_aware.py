"""Moments of inputs and gradients are those of the network, and together they predict its loss."""

import pytest
import torch
import torch.nn.functional as F
from small_nets import INPUT_SHAPE, TARGETS, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import ModelError
from edgecompress.factors.aware import (
    DRAWS,
    FACTORS,
    TEMPERATURE,
    aware_metrics,
    input_moments,
    output_moments,
)
from edgecompress.factors.patches import sample_patches
from edgecompress.nets.metric import kernel_error
from edgecompress.nets.modules import find_layers, layer_named, weight_of

ALL = 10**9


def layers_of(net, names=TARGETS, shape=INPUT_SHAPE):
    return find_layers(net, names, shape)[0]


def net64():
    return small_net().double()


def images64(count, **options):
    return images(count, dtype=torch.float64, **options)


def measured(function, net, layers, batches, *, seed=0):
    return function(net, layers, batches, seed=seed, progress=NO_PROGRESS)


def watched(net, name, x):
    """Returns the input and the output of a layer in a forward pass, and the logits."""
    seen = []
    hook = layer_named(net, name).register_forward_hook(lambda _, i, o: seen.extend((i[0], o)))
    logits = net(x)
    hook.remove()
    return *seen, logits


def exact_fisher(net, layer, x):
    """Enumerates the classes: sum_y p(y) g_y g_y^T, summed over positions, mean over images."""
    _, output, logits = watched(net, layer.name, x)
    logs = (logits / TEMPERATURE).log_softmax(1)
    total = torch.zeros(layer.op.outputs, layer.op.outputs, dtype=x.dtype)
    for label in range(logits.shape[1]):
        (gradient,) = torch.autograd.grad(logs[:, label].sum(), output, retain_graph=True)
        rows = gradient.movedim(1, -1) if layer.op.kind == "conv2d" else gradient
        rows = rows.reshape(len(x), -1, layer.op.outputs)
        total += torch.einsum("n,npa,npb->ab", logs[:, label].detach().exp(), rows, rows)
    return total / len(x)


def test_input_moments_are_the_mean_over_all_patches_of_all_batches():
    net, batches = net64(), [images64(3), images64(2, seed=1)]
    layers = layers_of(net, ("narrow", "wide", "biased", "hidden"))
    found = measured(input_moments, net, layers, batches)
    for layer in layers:
        x = torch.cat([watched(net, layer.name, batch)[0].detach() for batch in batches])
        patches = sample_patches(x, layer.op, ALL, 0)
        torch.testing.assert_close(found[layer.name], patches.T @ patches / len(patches))


def test_output_moments_are_the_exact_fisher_matrix_in_expectation():
    net, x, copies = net64(), images64(2), 1000
    layers = layers_of(net)
    found = measured(output_moments, net, layers, [x.repeat(copies, 1, 1, 1)])
    for layer in layers:
        exact = exact_fisher(net, layer, x)
        assert (found[layer.name] - exact).norm() / exact.norm() < 4 / (copies * DRAWS) ** 0.5
        assert float(found[layer.name].trace() / exact.trace()) == pytest.approx(1, abs=0.05)


def test_output_moments_do_not_mind_activations_in_place():
    class InPlace(nn.Module):
        def __init__(self, *, inplace):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.act, self.head = nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.act(self.conv(x)).mean((2, 3)))

    x = images(4)
    found = [
        measured(output_moments, net, layers_of(net, ("conv",)), [x])["conv"]
        for net in (InPlace(inplace=True), InPlace(inplace=False))
    ]
    assert torch.equal(*found)


def test_moments_predict_the_divergence_of_a_small_change():
    """To second order KL = 1/2 tr(output D input D^T); exact here: one layer, one image."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).double()
    x = images64(1, shape=(3, 4, 4))
    (layer,) = layers_of(net, ("1",), (3, 4, 4))
    metric = aware_metrics(net, [layer], [x.repeat(4000, 1, 1, 1)], 0, NO_PROGRESS)["1"]
    before, kernel = (net(x) / TEMPERATURE).log_softmax(1).detach(), weight_of(net[1]).clone()
    with torch.no_grad():
        net[1].weight.add_(1e-3 * torch.randn(5, 48, dtype=torch.float64))
        after = (net(x) / TEMPERATURE).log_softmax(1)
    divergence = float(F.kl_div(after, before, log_target=True, reduction="sum"))
    predicted = kernel_error(kernel, weight_of(net[1]), metric) / 2
    assert predicted == pytest.approx(divergence, rel=0.05)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.head = nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.mix(x.flatten(2).transpose(1, 2)).relu().mean(1))


def test_tokens_of_a_linear_layer_are_positions():
    net, x = Tokens().double(), images64(2, shape=(3, 4, 5))
    (layer,) = layers_of(net, ("mix",), (3, 4, 5))
    inputs = measured(input_moments, net, [layer], [x])["mix"]
    tokens = x.flatten(2).transpose(1, 2).reshape(-1, 3)
    torch.testing.assert_close(inputs, tokens.T @ tokens / len(tokens))
    outputs = measured(output_moments, net, [layer], [x.repeat(1500, 1, 1, 1)])["mix"]
    exact = exact_fisher(net, layer, x)
    assert (outputs - exact).norm() / exact.norm() < 0.06


def test_the_same_seed_gives_the_same_metrics_and_another_one_others():
    net, batches = small_net(), [images(4)]
    layers = layers_of(net)
    first, again, other = (aware_metrics(net, layers, batches, s, NO_PROGRESS) for s in (0, 0, 1))
    for name in TARGETS:
        assert torch.equal(first[name].input, again[name].input)
        assert torch.equal(first[name].output, again[name].output)
        assert not torch.equal(first[name].output, other[name].output)


def test_the_model_is_left_as_it_was():
    net = small_net()
    net.hidden.bias.requires_grad_(False)
    state, wanted = state_of(net), [p.requires_grad for p in net.parameters()]
    batch = images(4)
    FACTORS.metrics(net, layers_of(net), [batch], 0, NO_PROGRESS)
    assert same_state(net, state)
    assert [p.requires_grad for p in net.parameters()] == wanted
    assert all(p.grad is None for p in net.parameters())
    assert batch.grad is None and not batch.requires_grad
    assert hooks_of(net) == 0


def test_moments_are_float64_and_symmetric():
    net = small_net()
    for metric in aware_metrics(net, layers_of(net), [images(4)], 0, NO_PROGRESS).values():
        for moment in (metric.input, metric.output):
            assert moment.dtype == torch.float64
            torch.testing.assert_close(moment, moment.T, rtol=1e-5, atol=1e-5 * float(moment.abs().max()))


@pytest.mark.parametrize(("broken", "named"), [("narrow", "wide"), ("head", "hidden")])
def test_weights_that_are_not_numbers_are_named_by_a_layer_next_to_them(broken, named):
    net = small_net()
    layers = layers_of(net)
    layer_named(net, broken).weight.data[0, 0] = float("nan")
    with pytest.raises(ModelError, match=f"^{named}: .*not finite"):
        aware_metrics(net, layers, [images(4)], 0, NO_PROGRESS)
    assert hooks_of(net) == 0
    assert all(p.requires_grad for p in net.parameters())


class Frozen(nn.Module):
    def __init__(self, *, where):
        super().__init__()
        self.net, self.where = small_net(), where

    def forward(self, x):
        if self.where == "all":
            with torch.no_grad():
                return self.net(x)
        self.net.narrow(self.net.stem(x))  # a branch that leads nowhere
        return x.mean((2, 3))


@pytest.mark.parametrize("where", ["all", "branch"])
def test_a_layer_no_gradient_reaches_is_one_line_that_says_what_to_do(where):
    net = Frozen(where=where).eval()
    layers = layers_of(net, ("net.narrow",))
    with pytest.raises(ModelError, match=r"net\.narrow: no gradient reaches it.*--factors plain") as error:
        measured(output_moments, net, layers, [images(4)])
    assert "\n" not in str(error.value)


def test_a_model_with_a_single_output_is_refused():
    net = small_net(classes=1)
    with pytest.raises(ModelError, match=r"one number.*--factors plain"):
        measured(output_moments, net, layers_of(net), [images(4)])
