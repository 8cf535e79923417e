"""Counts and models with chosen figures, for tests of what is computed from them."""

from edgecompress.core.counts import CLASSES, COUNTERS, CountModel, Counts


def counts(*, weight_bytes=0, operators=1, **counted):
    """Returns counts with these counters and 0 for all others."""
    instructions = sum(counted.get(name, 0) for name in CLASSES)
    counters = dict.fromkeys(COUNTERS, 0) | counted | {"instructions": instructions}
    return Counts(**counters, weight_bytes=weight_bytes, operators=operators)


def count_model(*, cluster="prime", dtype="float32", provisional=False, left_out=True, **coefficients_us):
    """Returns a model with these coefficients."""
    return CountModel(
        cluster=cluster,
        dtype=dtype,
        coefficients_us=coefficients_us,
        nets=("a", "b"),
        mean_error=0.1,
        median_error=0.05,
        worst_error=0.25,
        left_out=left_out,
        provisional=provisional,
        citation="somebody",
    )
