"""Networks, quadratics and closures for tests of optimisers."""

import torch
from torch import nn


def normed_net(*, seed=0, dropout=0.0, dtype=torch.float64):
    """Returns a small network with every kind of parameter, in training mode."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, 3),
    ).to(dtype)


def batch(*, seed=0, count=6, dtype=torch.float64):
    """Returns images and labels for `normed_net`."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 2, 4, 4, generator=generator, dtype=dtype)
    return images, torch.randint(3, (count,), generator=generator)


def closure_of(net, optimizer, data=None, *, factor=1.0, calls=None, times=lambda: 1.0):
    """Returns a closure as the training loop has it; `calls` gets all weights at every call."""
    images, labels = data or batch(dtype=next(net.parameters()).dtype)

    def closure():
        optimizer.zero_grad()
        loss = factor * times() * nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        if calls is not None:
            calls.append([one.detach().clone() for one in net.parameters()])
        return loss.detach()

    return closure


def weights_of(net):
    """Returns copies of all parameters and buffers."""
    return {name: value.clone() for name, value in net.state_dict().items()}


def vector(tensors):
    """Returns all tensors as one vector."""
    return torch.cat([one.detach().flatten() for one in tensors])


def hessian(size, *, seed=0):
    """Returns a positive definite matrix."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def quadratic(matrix, weight, optimizer, calls=None):
    """Returns a closure of w H w / 2."""

    def closure():
        optimizer.zero_grad()
        loss = weight @ matrix @ weight / 2
        loss.backward()
        if calls is not None:
            calls.append(weight.detach().clone())
        return loss.detach()

    return closure


def step(net, optimizer, **options):
    return optimizer.step(closure_of(net, optimizer, **options))


def moves(net, optimizer, count=1, **options):
    """Takes steps and returns the change of all weights by each."""
    found = []
    for number in range(count):
        before = vector(net.parameters())
        step(net, optimizer, data=batch(seed=number), **options)
        found.append(vector(net.parameters()) - before)
    return found


def start(seed, size=5):
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64))
