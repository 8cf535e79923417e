"""How the radius of a perturbation, or the scale of the first gradient, changes over training.

With progress x from 0 to 1 and bounds b_min and b_max,

    const   a = b_min = b_max
    cos     a = b_min + (b_max - b_min) cos(pi x / 2)           falls from b_max to b_min
    sin     a = b_min + (b_max - b_min) sin(pi x / 2)           rises from b_min to b_max
    isin    a = 1 / [b_min + (b_max - b_min) sin(pi x / 2)]     falls from 1 / b_min to 1 / b_max
    icos    a = 1 / [b_min + (b_max - b_min) cos(pi x / 2)]     rises from 1 / b_max to 1 / b_min

As text `0.5`, or `NAME:FIRST:LAST` with the bounds in the order they are met: `cos:1.5:0.5`, `isin:0.5:2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

from edgecompress.errors import ConfigError

Shape = Literal["const", "cos", "isin", "sin", "icos"]

EXAMPLES = "a number, cos:1.5:0.5, sin:0:2, isin:0.5:2 or icos:2:0.5"
_FROM_LARGE_BOUND = ("cos", "icos")
_FROM_SMALL_BOUND = ("sin", "isin")
_INVERSE = ("isin", "icos")


@dataclass(frozen=True)
class RadiusSchedule:
    """A factor over the course of training.

    Raises:
        ConfigError: the bounds are negative, endless or in the wrong order, or the form would divide by 0.
    """

    shape: Shape
    beta_min: float
    beta_max: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta_min <= self.beta_max < math.inf:
            found = f"{self.beta_min:g} to {self.beta_max:g}"
            raise ConfigError(f"{self.shape}: bounds {found}; they must be 0 or more, the smaller one first")
        if self.shape == "const" and self.beta_min < self.beta_max:
            raise ConfigError(f"const: bounds {self.beta_min:g} and {self.beta_max:g} differ; give one value")
        if self.shape in _INVERSE and self.beta_min < 1e-9:
            raise ConfigError(f"{self.shape}: divides by the bound {self.beta_min:g}; it must be above 0")

    def __call__(self, progress: float) -> float:
        """Returns the factor at a share of training from 0 to 1; both ends are exact."""
        if self.beta_min == self.beta_max:
            return 1 / self.beta_min if self.shape in _INVERSE else self.beta_min
        falling = self.shape in _FROM_LARGE_BOUND
        # cos(pi x / 2) as a sine: the cosine of pi / 2 is not quite 0 in floating point
        share = math.sin(math.pi / 2 * (1 - progress if falling else progress))
        beta = (1 - share) * self.beta_min + share * self.beta_max
        return 1 / beta if self.shape in _INVERSE else beta

    def __str__(self) -> str:
        if self.shape == "const":
            return f"{self.beta_min!r}"
        first, last = self.beta_min, self.beta_max
        if self.shape in _FROM_LARGE_BOUND:
            first, last = last, first
        return f"{self.shape}:{first!r}:{last!r}"


def const(value: float) -> RadiusSchedule:
    """Returns the schedule that stays at one value."""
    return RadiusSchedule("const", value, value)


def parse_radius(text: str) -> RadiusSchedule:
    """Reads a number or `NAME:FIRST:LAST`.

    Raises:
        ConfigError: it is neither, or the bounds do not suit the form.
    """
    name, *bounds = text.split(":")
    try:
        if not bounds:
            return const(float(name))
        first, last = (float(bound) for bound in bounds)
    except ValueError:
        raise ConfigError(f"{text!r}: not understood; write {EXAMPLES}") from None
    if name not in _FROM_LARGE_BOUND + _FROM_SMALL_BOUND:
        raise ConfigError(f"{text!r}: there is no {name!r}; write {EXAMPLES}")
    _check_order(text, name, first, last)
    return RadiusSchedule(cast(Shape, name), min(first, last), max(first, last))


def _check_order(text: str, name: str, first: float, last: float) -> None:
    """Refuses bounds that would run backwards rather than guess what was meant."""
    if (first > last) if name in _FROM_SMALL_BOUND else (first < last):
        way = "falls" if name in _FROM_LARGE_BOUND else "rises"
        raise ConfigError(f"{text!r}: the bound of {name} {way}; write {name}:{last:g}:{first:g}")


def progress_at(epoch: float, epochs: int) -> float:
    """Returns how far training is: 0 in the first epoch, 1 in the last. Parts of epochs may be counted."""
    return min(1.0, epoch / max(1, epochs - 1))
