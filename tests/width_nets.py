"""Networks with random weights and statistics, and what becomes of them when units go."""

import copy

import torch
from torch import nn

from edgecompress.core.types import ModelRef, Preprocess
from edgecompress.nets.narrowing import narrow_, zeroed
from edgecompress.nets.sources import build_module


def network(source, *, classes=None, seed=0):
    """Returns a network of the zoo or of torchvision with nothing in it left at zero or one."""
    ref = ModelRef(source=source, classes=classes, preprocess=Preprocess(size=(32, 32)))
    return randomised(build_module(ref), seed=seed)


@torch.no_grad()
def randomised(model, *, seed=0):
    """Gives every layer, the head as well, weights and statistics of its own, so that errors are seen."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            scale = module.weight[0].numel() ** -0.5
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * scale)
        elif isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            width = module.num_features
            if module.weight is not None:
                module.weight.copy_(torch.rand(width, generator=generator) * 0.6 + 0.4)
            if module.running_mean is not None:
                module.running_mean.copy_(torch.randn(width, generator=generator) * 0.3)
                module.running_var.copy_(torch.rand(width, generator=generator) + 0.5)
        if isinstance(getattr(module, "bias", None), nn.Parameter):
            module.bias.copy_(torch.randn(module.bias.shape, generator=generator) * 0.4)
    return model.eval()


def some_units(groups, *, share=0.6, seed=0):
    """Returns a random part of the units of every group, by name; at least one goes and one stays."""
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for group in groups:
        order = torch.randperm(group.width, generator=generator)
        count = min(max(1, round(share * group.width)), group.width - 1)
        kept[group.name] = sorted(order[:count].tolist())
    return kept


@torch.no_grad()
def removal_error(model, groups, kept, input_shape, *, seed=0):
    """Returns how far the narrowed network is from the one with zeros, and that one from the dense one.

    Both are shares of the largest output.
    """
    x = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(seed))
    dense = model(x)
    with zeroed(model, groups, kept):
        expected = model(x)
    smaller = copy.deepcopy(model)
    narrow_(smaller, groups, kept)
    largest = expected.abs().max()
    error = (smaller(x) - expected).abs().max() / largest
    effect = (dense - expected).abs().max() / dense.abs().max()
    return float(error), float(effect)
