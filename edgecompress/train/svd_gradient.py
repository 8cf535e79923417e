"""The gradient through a matrix cut to a lower rank, bounded however close its singular values are.

M = U diag(s) V^T is cut to its r largest singular values. Of a loss whose gradient by the cut matrix is D,
the gradient by M is U H V^T. In the singular bases, G = U^T D V, a kept value i and a dropped one k mix:

    H_ik = (G_ik + p G_ki) / (1 - p^2),    H_ki = (G_ki + p G_ik) / (1 - p^2),    p = s_k / s_i.

Other entries with a kept index stay as they are in G, entries without one are 0. That holds for tall and
for wide matrices alike. The mixing amplifies by up to 1 / (1 - p), without end where two values are equal; p
is clipped, which bounds it. Only ratios of singular values enter, so the scale of M does not matter.

Reference: Yaguchi et al., Decomposable-Net: Scalable Low-Rank Compression for Neural Networks, IJCAI 2021,
whose sum of three terms, with a case for wide matrices, this is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CLIP = 0.99**0.5
"""Largest ratio of a dropped singular value to a kept one; gradients grow 200-fold at most."""
LEAST_VALUE = 1e-15
"""Kept values below it are as good as 0."""


@dataclass(frozen=True)
class Decomposition:
    """A matrix as its singular values, largest first, and their vectors."""

    left: Tensor
    """(rows, n), n the smaller side."""
    values: Tensor
    """(n,)"""
    right: Tensor
    """(columns, n)"""


def decompose(matrix: Tensor) -> Decomposition | None:
    """Returns the singular values of a matrix; None where an entry is not finite or LAPACK finds no end."""
    try:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch documents it, and hides it
        return None
    return Decomposition(left, values, right.mT)


def cut(parts: Decomposition, rank: int) -> Tensor:
    """Returns the matrix with its `rank` largest singular values only."""
    return (parts.left[:, :rank] * parts.values[:rank]) @ parts.right[:, :rank].mT


def pull_back(gradient: Tensor, parts: Decomposition, rank: int, *, clip: float = CLIP) -> Tensor:
    """Returns the gradient by the whole matrix, given that by the matrix cut to `rank`."""
    u, v = parts.left[:, :rank], parts.right[:, :rank]
    rows, columns = u.mT @ gradient, gradient @ v  # of G: the kept rows, the kept columns
    stays = u @ (rows - (rows @ v) @ v.mT) + columns @ v.mT  # every entry with a kept index, once
    if rank == len(parts.values):
        return stays
    others_u, others_v = parts.left[:, rank:], parts.right[:, rank:]
    ratios = (parts.values[rank:] / parts.values[:rank, None].clamp_min(LEAST_VALUE)).clamp_max(clip)
    kept_dropped, dropped_kept = rows @ others_v, (others_u.mT @ columns).mT  # both (kept, dropped)
    grown = ratios / (1 - ratios.square())
    more = grown * (ratios * kept_dropped + dropped_kept)  # H_ik - G_ik
    more_mirrored = grown * (ratios * dropped_kept + kept_dropped)  # H_ki - G_ki
    return stays + u @ more @ others_v.mT + others_u @ more_mirrored.mT @ v.mT
