"""Small rank-selection problems, with kernels whose singular values fall as trained ones do."""

import torch

from edgecompress.core.types import Layer, Op
from edgecompress.methods import lowrank, tucker2
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.metric import PLAIN, kernel_error
from edgecompress.search.contract import Options, Problem, dense_shape_cost, shape_cost

METHODS = {"lowrank": lowrank.METHOD, "tucker2": tucker2.METHOD}
FIXED_COSTS = {"macs": 1000.0, "params": 100.0, "ms": 0.005}


def conv(name, inputs, outputs, kernel=3, *, stride=1, size=8, **options):
    pair = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (pair[0] // 2, pair[1] // 2)
    op = Op(
        kind="conv2d",
        inputs=inputs,
        outputs=outputs,
        kernel=pair,
        stride=(stride, stride),
        padding=padding,
        **options,
    )
    return Layer(name=name, op=op, in_size=(size, size))


def linear(name, inputs, outputs):
    op = Op(kind="linear", inputs=inputs, outputs=outputs, bias=True)
    return Layer(name=name, op=op, in_size=(1, 1))


LAYERS = (
    conv("wide", 12, 24, stride=2),
    conv("deep", 24, 24, size=4),
    conv("point", 24, 32, 1, size=4, bias=True),
    linear("head", 32, 16),
)


def kernel_of(layer, *, seed=0):
    """Returns a random kernel with falling singular values in both channel modes."""
    op, generator = layer.op, torch.Generator().manual_seed(seed)

    def mixing(size):
        random = torch.randn(size, size, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(random).Q * torch.linspace(0, 2.5, size).neg().exp()

    noise = torch.randn(op.outputs, op.inputs, *op.kernel, generator=generator, dtype=torch.float64)
    return torch.einsum("fg,gdij,cd->fcij", mixing(op.outputs), noise, mixing(op.inputs))


def problem_of(
    layers=LAYERS, *, metric="macs", share=1.0, methods=("lowrank",), families=None, with_errors=False
):
    """Returns a problem whose limit is a share of the dense model's cost."""
    fixed = FIXED_COSTS[metric]
    kernels = {layer.name: kernel_of(layer, seed=i) for i, layer in enumerate(layers)}
    options = tuple(
        Options(
            layer,
            found := tuple(_candidates(layer, methods, families)),
            _errors(layer, kernels[layer.name], found) if with_errors else (),
        )
        for layer in layers
    )
    limit = share * (fixed + sum(map(dense_cost_of(metric), layers)))
    return Problem(options, kernels, metric, limit, fixed, cost_of(metric), dense_cost_of(metric))


def _candidates(layer, methods, families):
    for name in methods:
        for candidate in METHODS[name].candidates(layer):
            if families is None or candidate.family in families:
                yield candidate


def _errors(layer, kernel, candidates):
    fills = {name: method.factorise(kernel, layer, PLAIN) for name, method in METHODS.items()}
    kernels = [equivalent_kernel(c.blocks[0], fills[c.method](c)) for c in candidates]
    return tuple(kernel_error(kernel, approximation, PLAIN) for approximation in kernels)


# A made-up device: time goes up in steps, and every operator has a price of its own.


def cost_of(metric):
    if metric != "ms":
        return shape_cost(metric)
    return lambda c: _made_up_ms(c.macs, sum(len(branch) for block in c.blocks for branch in block.branches))


def dense_cost_of(metric):
    if metric != "ms":
        return dense_shape_cost(metric)
    return lambda layer: _made_up_ms(dense_shape_cost("macs")(layer), 1)


def _made_up_ms(macs, operators):
    return -(-macs // 512) * 1.0367e-3 + operators * 2.0213e-3
