"""The least-squares problem of one layer, as moments: no image is looked at twice.

With s the patches the compressed network sees, t those of the dense one and W the dense kernel, a
block of equivalent kernel K has the weighted error

    tr(output (K input K^T - 2 cross K^T)) + constant,   input = E[s s^T],  cross = W E[t s^T].

It is quadratic in the weights of any one layer of the block, so the last layer has an exact solution;
all layers together are improved by L-BFGS in whitened coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompress.core.types import Block, Op
from edgecompress.nets.chains import Kernels, equivalent_kernel
from edgecompress.nets.metric import (
    INPUT_DAMPING,
    OUTPUT_DAMPING,
    damped,
    diagonal_blocks,
    input_moment,
    whitener,
)

ITERATIONS = 40


@dataclass(frozen=True)
class Target:
    """What a block should compute, in moments; float64."""

    input: Tensor
    """(n, n) second moment of the patches the block sees, n = c kh kw."""
    cross: Tensor
    """(f, n) moment of the wanted outputs with those patches."""
    output: Tensor
    """(f, f) weight of output errors."""

    def error(self, kernel: Tensor) -> Tensor:
        """Returns the weighted squared error of a (f, c, kh, kw) kernel, up to a constant."""
        flat = kernel.flatten(1)
        return ((self.output @ flat) * (flat @ self.input - 2 * self.cross)).sum()

    def damped(self) -> Target:
        """Returns the problem with both moments made safely positive definite.

        The input damping pulls towards the unconstrained solution, not to zero.
        """
        ridge = damped(self.input, INPUT_DAMPING)
        best = torch.cholesky_solve(self.cross.T, torch.linalg.cholesky(ridge)).T
        cross = self.cross + best * (ridge.diagonal() - self.input.diagonal())
        return Target(ridge, cross, damped(self.output, OUTPUT_DAMPING))


def refine(block: Block, kernels: Kernels, op: Op, target: Target) -> Kernels:
    """Improves all layers of a block; the error never grows.

    `op` is the dense operator the block replaces.
    """
    goal = target.damped()
    unwhiten = [
        [_coordinates(o, i, len(chain), op, goal) for i, o in enumerate(chain)] for chain in block.branches
    ]
    variables = [
        [to(weight).requires_grad_() for (to, _), weight in zip(maps, weights, strict=True)]
        for maps, weights in zip(unwhiten, kernels, strict=True)
    ]

    def current() -> Kernels:
        return tuple(
            tuple(back(v) for (_, back), v in zip(maps, row, strict=True))
            for maps, row in zip(unwhiten, variables, strict=True)
        )

    before = goal.error(equivalent_kernel(block, kernels))
    _minimise([v for row in variables for v in row], lambda: goal.error(equivalent_kernel(block, current())))
    with torch.no_grad():
        after = tuple(tuple(kernel.detach() for kernel in row) for row in current())
        return after if bool(goal.error(equivalent_kernel(block, after)) < before) else kernels


def _minimise(variables: list[Tensor], error: Callable[[], Tensor]) -> None:
    scale = 1 / error().detach().abs().clamp_min(torch.finfo(torch.float64).tiny)
    optimiser = torch.optim.LBFGS(
        variables,
        max_iter=ITERATIONS,
        tolerance_grad=1e-12,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = error() * scale
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]


Map = Callable[[Tensor], Tensor]


def _coordinates(part: Op, index: int, length: int, op: Op, goal: Target) -> tuple[Map, Map]:
    """Returns the maps of a layer's kernel to well-conditioned variables and back."""
    if index == 0:
        return _input_coordinates(part, whitener(input_moment(part, goal.input, op), INPUT_DAMPING))
    if index == length - 1:
        return _output_coordinates(part, whitener(diagonal_blocks(goal.output, part.groups), 0.0))
    # L-BFGS flattens gradients in place, so the variable must be contiguous
    return (lambda weight: weight.clone(memory_format=torch.contiguous_format)), (lambda variable: variable)


def _input_coordinates(part: Op, white: Tensor) -> tuple[Map, Map]:
    shape = (part.groups, part.outputs // part.groups, white.shape[-1])

    def back(variable: Tensor) -> Tensor:
        rows: Tensor = torch.linalg.solve_triangular(white, variable, upper=False, left=False)
        return rows.reshape(part.outputs, part.inputs // part.groups, *part.kernel)

    return (lambda weight: (weight.reshape(shape) @ white).clone()), back


def _output_coordinates(part: Op, white: Tensor) -> tuple[Map, Map]:
    shape = (part.groups, white.shape[-1], -1)

    def back(variable: Tensor) -> Tensor:
        rows: Tensor = torch.linalg.solve_triangular(white.mT, variable, upper=True)
        return rows.reshape(part.outputs, part.inputs // part.groups, *part.kernel)

    return (lambda weight: (white.mT @ weight.reshape(shape)).clone()), back


def solve_last(block: Block, kernels: Kernels, op: Op, target: Target) -> Kernels:
    """Returns the block with the last layer of its only branch solved exactly, the others kept.

    The solution does not depend on the weight of output errors: outputs do not share weights.
    """
    (chain,), (weights,) = block.branches, kernels
    goal, last = target.damped(), chain[-1]
    slices = [
        _solved_slice(chain, weights, group, goal.input, cross)
        for group, cross in enumerate(goal.cross.reshape(last.groups, -1, goal.cross.shape[1]))
    ]
    solved = torch.cat(slices).reshape(weights[-1].shape)
    return ((*weights[:-1], solved),)


def _solved_slice(
    chain: tuple[Op, ...], weights: tuple[Tensor, ...], group: int, moment: Tensor, cross: Tensor
) -> Tensor:
    """Solves for the outputs of one group: regress `cross` on what the layer's inputs are made of."""
    basis = _reach(chain, weights, group)  # (entries of the last layer's patch, n)
    normal = damped(basis @ moment @ basis.T, INPUT_DAMPING * 1e-3)
    solved: Tensor = torch.linalg.solve(normal, basis @ cross.T)
    return solved.T


def _reach(chain: tuple[Op, ...], weights: tuple[Tensor, ...], group: int) -> Tensor:
    """Returns, for each entry of the last layer's patch, the combination of the block's patch it holds."""
    last = chain[-1]
    inner = last.inputs // last.groups
    entries = inner * last.kernel[0] * last.kernel[1]
    probe = torch.zeros(entries, last.inputs, *last.kernel, dtype=weights[-1].dtype)
    one_hot = torch.eye(entries, dtype=probe.dtype).reshape(entries, inner, *last.kernel)
    probe[:, group * inner : (group + 1) * inner] = one_hot
    ungrouped = last.model_copy(update={"outputs": entries, "groups": 1})
    block = Block(branches=((*chain[:-1], ungrouped),))
    return equivalent_kernel(block, ((*weights[:-1], probe),)).flatten(1)
