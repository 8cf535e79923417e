"""Keeps factorisations by what they were made from: weights, metric and family."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Factors = tuple[Tensor, ...]


def fingerprint(tensor: Tensor) -> str:
    """Returns a hash of a tensor's shape and values."""
    digest = hashlib.blake2b(str(tuple(tensor.shape)).encode(), digest_size=16)
    digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


@dataclass
class FactorCache:
    """The factorisations used last, up to a number of bytes."""

    max_bytes: int
    _held: OrderedDict[tuple[str, ...], Factors] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def get(self, key: tuple[str, ...], make: Callable[[], Factors]) -> Factors:
        """Returns what is held under `key`, made now if it is not there."""
        if key not in self._held:
            made = make()
            self._held[key] = made
            self._bytes += _size(made)
        self._held.move_to_end(key)
        found = self._held[key]
        while self._bytes > self.max_bytes and self._held:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= _size(dropped)
        return found


def _size(factors: Factors) -> int:
    return sum(tensor.nbytes for tensor in factors)
