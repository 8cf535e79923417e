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

    def get(self, key: tuple[str, ...], make: Callable[[], Factors], *, size_bytes: int = 0) -> Factors:
        """Returns what is held under `key`, made now if it is not there.

        Where it is known how large it will be, there is room for it before it is made.
        """
        if key not in self._held:
            self._drop(size_bytes)
            made = make()
            self._held[key] = made
            self._bytes += _size(made)
        self._held.move_to_end(key)
        found = self._held[key]
        self._drop()
        return found

    def _drop(self, room_bytes: int = 0) -> None:
        """Forgets what was used least recently, until so much more fits."""
        while self._bytes + room_bytes > self.max_bytes and self._held:
            _, dropped = self._held.popitem(last=False)
            self._bytes -= _size(dropped)

    def clear(self) -> None:
        """Forgets all of them, to make room."""
        self._held.clear()
        self._bytes = 0


def _size(factors: Factors) -> int:
    return sum(tensor.nbytes for tensor in factors)
