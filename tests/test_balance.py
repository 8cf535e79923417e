"""Balanced chains compute the same, with weights of one length on both sides of a channel."""

import pytest
import torch
from torch import nn

from edgecompress.train.balance import balance_chains_

CHAINS = {
    "pair": lambda: nn.Sequential(nn.Conv2d(6, 4, (3, 1), bias=False), nn.Conv2d(4, 8, (1, 3))),
    "grouped first": lambda: nn.Sequential(nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 8, 1)),
    "grouped second": lambda: nn.Sequential(nn.Conv2d(6, 12, 1), nn.Conv2d(12, 8, 3, groups=4)),
    "three": lambda: nn.Sequential(nn.Conv2d(6, 3, 1), nn.Conv2d(3, 5, 3), nn.Conv2d(5, 8, 1)),
    "linear": lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 5)),
}


def made(name):
    torch.manual_seed(0)
    chain = CHAINS[name]().double()
    with torch.no_grad():
        chain[0].weight.mul_(1e-3)
        chain[-1].weight.mul_(torch.rand_like(chain[-1].weight) * 100)
    return chain


def lengths(first, second):
    groups = getattr(second, "groups", 1)
    parts = second.weight.detach().reshape(groups, len(second.weight) // groups, second.weight.shape[1], -1)
    return first.weight.detach().flatten(1).norm(dim=1), parts.square().sum((1, 3)).sqrt().flatten()


@pytest.mark.parametrize("name", CHAINS)
def test_outputs_stay_and_lengths_become_equal(name):
    chain = made(name)
    x = torch.randn(4, 6, dtype=torch.float64) if name == "linear" else torch.randn(2, 6, 5, 5).double()
    before = chain(x)
    assert balance_chains_(chain) == len(chain) - 1
    torch.testing.assert_close(chain(x), before)
    torch.testing.assert_close(*lengths(chain[-2], chain[-1]))


def test_a_gradient_step_no_longer_breaks_the_chain():
    x = torch.randn(8, 6, 5, 5).double()
    losses = []
    for balanced in (False, True):
        chain = made("pair")
        wanted = chain(x).detach() * 0.9
        if balanced:
            balance_chains_(chain)
        optimiser = torch.optim.SGD(chain.parameters(), lr=0.05)
        start = (chain(x) - wanted).square().mean().item()
        for _ in range(8):
            optimiser.zero_grad()
            loss = (chain(x) - wanted).square().mean()
            loss.backward()
            optimiser.step()
        losses.append((chain(x) - wanted).square().mean().item() / start)
    assert losses[1] < 0.5 < losses[0] or not losses[0] < torch.inf


def test_channels_without_weights_and_shared_layers_stay():
    chain = made("pair")
    with torch.no_grad():
        chain[0].weight[1] = 0
    kept = chain[1].weight[:, 1].clone()
    balance_chains_(chain)
    assert torch.equal(chain[1].weight[:, 1], kept) and bool(chain[0].weight.isfinite().all())

    shared = made("pair")
    network = nn.ModuleList([shared, nn.Sequential(shared[0], nn.ReLU())])
    assert balance_chains_(network) == 0


def test_activations_are_not_balanced_across():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert balance_chains_(network) == 0
