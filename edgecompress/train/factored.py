"""Weights that are products of several factors, multiplied first, so that a layer still runs once.

Weight decay sees the factors of W = F_N ... F_1, that is the sum of |F_k|^2. For a given W the least sum is N
times the sum of s^(2/N) over its singular values s, reached by factors that all have the singular values
s^(1/N). So the decay of factors is a penalty on the rank of W, the sharper the more factors there are.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Start = Literal["balanced", "orthogonal"]

FLOOR = 1e-3
"""Of the largest singular value: square factors begin with no less, or what is 0 in all of them stays 0."""

_IN_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Place:
    """A weight that can be a product."""

    module: str
    """Dotted name; empty for the network itself."""
    tensor: str
    squares: Literal["first", "last"]
    """Whether the square factors come before the one that has the shape of the weight, or after it."""

    @property
    def name(self) -> str:
        """The name of the weight in a state dict."""
        return f"{self.module}.{self.tensor}".lstrip(".")


class Product(nn.Module):
    """A weight as a product of matrices, in the order in which they are applied to an input."""

    def __init__(
        self, shape: torch.Size, factors: int, squares: Literal["first", "last"], start: Start, seed: int
    ) -> None:
        super().__init__()
        self.shape, self.factors, self.squares = shape, factors, squares
        self.start, self.seed = start, seed

    def forward(self, *factors: Tensor) -> Tensor:
        """Returns the weight."""
        product: Tensor = torch.linalg.multi_dot(factors[::-1])
        return product.reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Returns factors whose product is the weight."""
        matrix = weight.detach().flatten(1).double()
        if self.squares == "last":
            found = split_rows(matrix, self.factors, start=self.start, seed=self.seed)
        else:
            turned = split_rows(matrix.mT, self.factors, start=self.start, seed=self.seed)
            found = tuple(factor.mT for factor in reversed(turned))
        return tuple(factor.to(weight.dtype).contiguous() for factor in found)


def split_rows(matrix: Tensor, factors: int, *, start: Start, seed: int) -> tuple[Tensor, ...]:
    """Returns a factor of the matrix's shape, then square ones; applied in this order they are the matrix."""
    squares = _even_squares(matrix, factors) if start == "balanced" else _rotations(matrix, factors, seed)
    rest = matrix
    for square in reversed(squares):
        rest = torch.linalg.solve(square, rest)
    return (rest, *squares)


def _even_squares(matrix: Tensor, factors: int) -> list[Tensor]:
    """Returns U S^(1/N) U^T, so that what is left of U S V^T is U S^(1/N) V^T."""
    squares, u = torch.linalg.eigh(matrix @ matrix.mT)
    if not squares[-1] > 0:
        return [torch.eye(len(matrix), dtype=matrix.dtype)] * (factors - 1)
    roots = squares.clamp(min=FLOOR**2 * float(squares[-1])).pow(0.5 / factors)
    return [u * roots @ u.mT] * (factors - 1)


def _rotations(matrix: Tensor, factors: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = (factors - 1, len(matrix), len(matrix))
    return list(torch.linalg.qr(torch.randn(size, generator=generator, dtype=matrix.dtype)).Q)


def factorable(network: nn.Module) -> tuple[Place, ...]:
    """Returns the weights that may become products.

    Those are of linear layers, of convolutions without groups, and of the projections of attention. In a
    network with attention, whatever comes before the first one (the patch embedding) and the last linear
    layer (the head) stay as they are. Weights that are not trained, or belong to two layers, do as well.
    """
    named = list(network.named_modules())
    attention = [place for place, (_, module) in enumerate(named) if _is_attention(module)]
    if attention:
        linear = [place for place, (_, module) in enumerate(named) if isinstance(module, nn.Linear)]
        named = [named[place] for place in range(attention[0], len(named)) if place not in linear[-1:]]
    owners = Counter(id(one) for module in network.modules() for one in module.parameters(recurse=False))

    def suits(name: str, place: Place) -> bool:
        weight = network.get_submodule(name)._parameters.get(place.tensor)
        return weight is not None and weight.requires_grad and owners[id(weight)] == 1

    return tuple(place for name, module in named for place in _places(name, module) if suits(name, place))


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _places(name: str, module: nn.Module) -> Iterator[Place]:
    if isinstance(module, nn.Linear):
        yield Place(name, "weight", "first")
    elif isinstance(module, nn.Conv2d) and module.groups == 1:
        yield Place(name, "weight", "first" if module.kernel_size == (1, 1) else "last")
    elif isinstance(module, nn.MultiheadAttention):
        yield from (Place(name, tensor, "first") for tensor in _IN_PROJECTIONS)


def factor_(
    network: nn.Module, places: Iterable[Place], factors: int, *, start: Start = "balanced", seed: int = 0
) -> None:
    """Makes weights products of so many factors; the network computes what it did, to rounding."""
    for number, place in enumerate(places):
        module = network.get_submodule(place.module)
        shape = module.get_parameter(place.tensor).shape
        product = Product(shape, factors, place.squares, start, seed * 1_000_003 + number)
        parametrize.register_parametrization(module, place.tensor, product)


@torch.no_grad()
def merged_state(network: nn.Module, places: Iterable[Place]) -> dict[str, Tensor]:
    """Returns the state dict the network would have with ordinary weights."""
    state: dict[str, Tensor] = dict(network.state_dict())
    for place in places:
        module = network.get_submodule(place.module)
        own = f"{place.module}.parametrizations.{place.tensor}.".lstrip(".")
        state = {name: value for name, value in state.items() if not name.startswith(own)}
        state[place.name] = getattr(module, place.tensor)
    return state


def merged(network: nn.Module, places: Iterable[Place], original: nn.Module) -> nn.Module:
    """Returns a copy of the network as it was before `factor_`, with the weights of now."""
    plain = copy.deepcopy(original)
    plain.load_state_dict(merged_state(network, places))
    return plain
