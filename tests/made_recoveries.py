"""A small trained network in a file, images it tells apart, and a run in which compression damaged it."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from edgecompress.nets.user_code import build_from_file
from edgecompress.pipeline.compress import compress

SIDE, CLASSES = 10, 4
NET = """
from torch import nn


def _conv(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def build():
    return nn.Sequential(
        _conv(3, 8, 1), _conv(8, 16, 1), _conv(16, 16, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(64, 4),
    )


def plain():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
    )
"""
MODEL = {"model": "net.py:build", "weights": "net.safetensors", "input_size": (SIDE, SIDE)}
DAMAGING = {
    "budget": "macs=45%",
    "factors": "plain",
    "refit": False,
    "local_search": False,
    "batch_norm": "keep",
}
"""Ranks are cut and nothing is made up for."""


def write_home(folder: Path) -> None:
    """Writes net.py, its weights, images with and without labels, and a pool; the folder is where we are."""
    (folder / "net.py").write_text(NET)
    torch.manual_seed(0)
    network = build_from_file(folder / "net.py", "build", source="net.py:build")
    train, test = pixels(500), pixels(160, seed=1)
    _settle_(network, scaled(train[:200]))
    save_file(network.state_dict(), folder / "net.safetensors")
    labels = [answers(network, one) for one in (train, test)]
    np.savez("images.npz", x_train=train, y_train=labels[0], x_test=test, y_test=labels[1])
    np.savez("bare.npz", x=train)
    np.savez("pool.npz", x=train, y=labels[0])


def damage(name="damaged", **more):
    """Compresses the network so that much can be won back, and returns the run's name."""
    compress(**(MODEL | DAMAGING | {"data": "images.npz", "name": name, "overwrite": True} | more))
    return name


def pixels(count, *, seed=0):
    """Returns smooth colours with some noise."""
    rng = np.random.default_rng(seed)
    corners = torch.from_numpy(rng.uniform(0, 255, (count, 3, 3, 3))).permute(0, 3, 1, 2)
    smooth = nn.functional.interpolate(corners, (SIDE, SIDE), mode="bilinear")
    noisy = smooth.permute(0, 2, 3, 1).numpy() + rng.normal(0, 12, (count, SIDE, SIDE, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def scaled(images):
    mean, std = (np.array(values) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return torch.from_numpy(((images / 255 - mean) / std).transpose(0, 3, 1, 2)).float()


def _settle_(network, images):
    """Gives batch norms the statistics of images, and classes about equal parts of them."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        network.train()(images)
        network.eval()
        network[-1].weight.mul_(25)
        network[-1].bias.sub_(network(images).mean(0))


@torch.no_grad()
def answers(network, images):
    """Returns what a network takes images for, with one label in twenty wrong."""
    found = network(scaled(images)).argmax(1).numpy()
    found[::20] = (found[::20] + 1) % CLASSES
    return found
