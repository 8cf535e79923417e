"""Counts and models with chosen figures, for tests of what is computed from them."""

from edgecompress.core.counts import CLASSES, CacheCounts, CountModel, Counts


def counts(*, cache=None, weight_bytes=0, operators=1, **classes):
    """Returns counts of these classes; `cache` is the misses of both levels."""
    by_class = dict.fromkeys(CLASSES, 0) | classes
    return Counts(
        instructions=sum(by_class.values()),
        **by_class,
        bytes_loaded=0,
        bytes_stored=0,
        cache=None if cache is None else CacheCounts(l1_misses=cache[0], l2_misses=cache[1]),
        weight_bytes=weight_bytes,
        operators=operators,
    )


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
