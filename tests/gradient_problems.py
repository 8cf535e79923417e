"""Small gradient searches: a network, its candidates with predicted errors, and images."""

import torch
from rank_problems import METHODS, cost_of, dense_cost_of
from small_nets import INPUT_SHAPE, images, small_net

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.methods import branches
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import find_layers, layer_named, weight_of
from edgecompress.search.contract import Options, Problem
from edgecompress.search.sensitivity import predicted_errors

NAMES = ("narrow", "wide", "biased", "hidden")
EVERY_METHOD = {**METHODS, "branches": branches.METHOD}


def gradient_problem(model=None, *, metric="macs", share=0.6, methods=("lowrank",), fixed=1000.0):
    """Returns a problem of the small network with plain errors."""
    model = model or small_net()
    layers, skipped = find_layers(model, NAMES, INPUT_SHAPE)
    assert not skipped
    kernels = {one.name: weight_of(layer_named(model, one.name)).double() for one in layers}
    options = [
        Options(one, tuple(c for m in methods for c in EVERY_METHOD[m].candidates(one))) for one in layers
    ]
    metrics = dict.fromkeys(kernels, PLAIN)
    filled = predicted_errors(options, EVERY_METHOD, kernels, metrics, NO_PROGRESS)
    limit = share * (fixed + sum(map(dense_cost_of(metric), layers)))
    return Problem(filled, kernels, metric, limit, fixed, cost_of(metric), dense_cost_of(metric))


def filling(problem):
    """Returns the kernels of a candidate of any layer."""
    fills = {
        (o.layer.name, name): method.factorise(problem.kernels[o.layer.name], o.layer, PLAIN)
        for o in problem.options
        for name, method in EVERY_METHOD.items()
    }
    return lambda candidate: fills[candidate.layers[0], candidate.method](candidate)


def unlabelled(count=24, size=8, dtype=torch.float32):
    return [(batch, None) for batch in images(count, dtype=dtype).split(size)]


def labelled(model, count=24, size=8):
    return [(batch, model(batch).argmax(1)) for batch, _ in unlabelled(count, size)]
