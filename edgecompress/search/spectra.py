"""Singular values of the layers of a problem, in the family a rank rule works with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompress.core.types import Layer
from edgecompress.errors import ConfigError
from edgecompress.methods import lowrank
from edgecompress.nets.families import Family, family_named, to_matrices
from edgecompress.search.contract import Options, Problem


@dataclass(frozen=True)
class Spectrum:
    """One layer, the family its kernel is read in, and what each rank of it carries."""

    layer: Layer
    family: Family
    energies: Tensor
    """(max_rank,), never rising: s^2 summed over the slices, which all keep the same rank."""


def spectra_of(problem: Problem, *preferred: str) -> list[Spectrum]:
    """Returns the spectrum of every layer that `lowrank` can rewrite.

    A layer is read in the first of the `preferred` families it is offered, or else in the first it
    is offered at all.

    Raises:
        ConfigError: the candidates are all of other methods.
    """
    check_offered(problem, lowrank.METHOD.name)
    spectra = []
    for options in problem.options:
        offered = offered_families(options)
        if offered:
            names = {family.name: family for family in offered}
            family = next((names[name] for name in preferred if name in names), offered[0])
            values = singular_values(family, problem.kernels[options.layer.name])
            spectra.append(Spectrum(options.layer, family, values.square().sum(0)))
    return spectra


def check_offered(problem: Problem, method: str) -> None:
    """Raises ConfigError if candidates are offered and none of them is of that method."""
    methods = {candidate.method for options in problem.options for candidate in options.candidates}
    if methods and method not in methods:
        raise ConfigError(
            f"this rank selection chooses among candidates of {method!r}, and the layers are offered "
            f"{', '.join(sorted(methods))} only; pass --methods {method} or take another rank selection"
        )


def offered_families(options: Options) -> tuple[Family, ...]:
    """Returns the families `lowrank` offers a layer, in the order of its candidates."""
    names = dict.fromkeys(c.family for c in options.candidates if c.method == lowrank.METHOD.name)
    return tuple(family_named(name) for name in names)


def singular_values(family: Family, kernel: Tensor) -> Tensor:
    """Returns the singular values of a kernel's matrices, (slices, max_rank), largest first.

    They are roots of the eigenvalues of the smaller Gram matrix: many times cheaper than an SVD, and
    good to about 1e-8 of the largest, which rank rules do not notice.
    """
    matrices = to_matrices(family, kernel.double())
    _, rows, columns = matrices.shape
    gram = matrices @ matrices.mT if rows <= columns else matrices.mT @ matrices
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.flip(-1).clamp_min(0).sqrt()
