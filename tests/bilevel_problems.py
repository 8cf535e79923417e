"""Search problems whose solutions are known: one on paper, many quadratic."""

import dataclasses

import torch

from edgecompress.search.rarts import Lagrangian, Point, lagrangian_value


def point(u, w, alpha):
    """Returns a point of single numbers."""
    return Point(*((torch.tensor(float(x), dtype=torch.float64),) for x in (u, w, alpha)))


def numbers(at):
    return tuple(float(one[0]) for one in (at.u, at.w, at.alpha))


def toy_outer(w, alpha):
    """alpha w - 2 alpha + 1; with the inner loss below the bilevel optimum is w = alpha = 1."""
    return alpha[0] * w[0] - 2 * alpha[0] + 1


def toy_inner(w, alpha):
    return (w[0] - alpha[0]) ** 2


def toy(lam, beta):
    return Lagrangian(toy_outer, toy_inner, lam, beta)


TOY_LIPSCHITZ = 4.0


def toy_limit(lam, beta):
    """Returns u, w, alpha and the value where the toy's Lagrangian is least."""
    d = 4 * beta * lam - beta - 2 * lam
    u, w, alpha = 4 * beta * lam - 2 * beta - 4 * lam, 4 * beta * lam - 2 * beta, 4 * beta * lam
    return u / d, w / d, alpha / d, -(beta + 2 * lam) / d


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """A quadratic function of weights and architecture together; curvature of any sign within [-1, 1]."""

    curvature: torch.Tensor
    slope: torch.Tensor

    def __call__(self, weights, alpha):
        z = torch.cat((*weights, *alpha))
        return z @ self.curvature @ z / 2 + self.slope @ z


def quadratic(size, generator, *, convex=False):
    """Returns one whose largest curvature has absolute value 1."""
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    matrix = matrix @ matrix.T + 0.3 * torch.eye(size) if convex else matrix + matrix.T
    slope = torch.randn(size, generator=generator, dtype=torch.float64)
    return Quadratic(matrix / torch.linalg.matrix_norm(matrix, 2), slope)


def quadratic_search(seed, lam, beta, gamma, *, weights=3, architecture=2, convex=False):
    """Returns a Lagrangian with Lipschitz constant 1 and a point to start from."""
    g = torch.Generator().manual_seed(seed)
    primary, auxiliary = (quadratic(weights + architecture, g, convex=convex) for _ in range(2))
    own = quadratic(architecture, g, convex=convex)
    lagrangian = Lagrangian(primary, auxiliary, lam, beta, gamma, lambda alpha: own((), alpha))
    start = [(torch.randn(n, generator=g, dtype=torch.float64),) for n in (weights, weights, architecture)]
    return lagrangian, Point(*start)


def value(lagrangian, at):
    return lagrangian_value(lagrangian, at).item()


def squared_distance(a, b):
    pairs = zip((*a.u, *a.w, *a.alpha), (*b.u, *b.w, *b.alpha), strict=True)
    return sum((x - y).square().sum().item() for x, y in pairs)
