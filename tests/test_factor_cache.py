"""What is kept of factorisations, and that it is told apart by what it was made from."""

import torch

from edgecompress.nets.factor_cache import FactorCache, fingerprint
from edgecompress.nets.metric import LayerMetric


def test_a_key_is_made_once():
    made = []
    cache = FactorCache(max_bytes=1 << 20)

    def make():
        made.append(1)
        return (torch.ones(3),)

    assert cache.get(("a",), make)[0] is cache.get(("a",), make)[0]
    assert made == [1]


def test_the_one_used_longest_ago_goes_first():
    cache = FactorCache(max_bytes=2 * 80)
    first = cache.get(("a",), lambda: (torch.zeros(20),))
    cache.get(("b",), lambda: (torch.zeros(20),))
    cache.get(("a",), lambda: (torch.ones(20),))
    cache.get(("c",), lambda: (torch.zeros(20),))  # drops b, not a

    assert cache.get(("a",), lambda: (torch.ones(20),))[0] is first[0]
    assert cache.get(("b",), lambda: (torch.ones(20),))[0].sum() == 20


def test_something_larger_than_the_cache_is_still_returned():
    cache = FactorCache(max_bytes=8)

    assert cache.get(("a",), lambda: (torch.ones(100),))[0].sum() == 100


def test_values_and_shapes_change_the_fingerprint():
    x = torch.arange(6.0)

    assert fingerprint(x) == fingerprint(x.clone())
    assert fingerprint(x) != fingerprint(x.reshape(2, 3))
    assert fingerprint(x) != fingerprint(x + 1e-6)
    assert fingerprint(x.reshape(2, 3).T) == fingerprint(x.reshape(2, 3).T.contiguous())


def test_metrics_of_other_values_have_other_fingerprints():
    eye = torch.eye(2)

    assert LayerMetric(eye, None).fingerprint != LayerMetric(None, eye).fingerprint
    assert LayerMetric(eye).fingerprint == LayerMetric(eye.clone()).fingerprint


def test_there_is_room_before_something_of_known_size_is_made():
    cache = FactorCache(max_bytes=2 * 80)
    for name in ("a", "b"):
        cache.get((name,), lambda: (torch.zeros(10, dtype=torch.float64),))
    held = []

    def make():
        held.extend(name for (name,) in cache._held)
        return (torch.zeros(10, dtype=torch.float64),)

    cache.get(("c",), make, size_bytes=80)
    assert held == ["b"] and [*cache._held] == [("b",), ("c",)]


def test_a_cleared_cache_makes_everything_anew():
    cache, made = FactorCache(max_bytes=1 << 20), []

    def make():
        made.append(1)
        return (torch.zeros(10),)

    cache.get(("a",), make)
    cache.clear()
    cache.get(("a",), make)
    assert len(made) == 2 and cache._bytes == 40
