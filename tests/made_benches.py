"""Measurements with chosen latencies, for tests of what is made of them."""

from datetime import UTC, datetime

from made_bursts import bursts, without_samples

from edgecompress.core.measurement import (
    BenchResult,
    Conditions,
    DeviceBench,
    Environment,
    FileFacts,
    Measurement,
    OpTime,
    Validity,
)
from edgecompress.core.statistics import compare, summarise

PHONE = Conditions(
    device="Pixel 4 (flame)",
    build="google/flame/flame:13/TP1A.221005.002/9012097:user/release-keys",
    runtime="benchmark_model",
    runtime_version="sha256:0123456789ab",
    threads=1,
    cores=(7,),
    governor="schedutil",
    provenance="measured",
)
MACHINE = PHONE.model_copy(
    update={"device": "AMD EPYC", "runtime": "litert", "runtime_version": "2.3.0", "governor": None}
)
ORT = MACHINE.model_copy(update={"runtime": "onnxruntime", "runtime_version": "1.31.1"})


def steady(center_ms, rounds=8):
    """Returns bursts that scatter by a few thousandths around a centre."""
    return bursts(center_ms * (1 + 0.001 * (number % 4)) for number in range(rounds))


def measurement(name, center_ms, *, conditions=MACHINE, raw=True, mean_only=False, **more):
    """Returns a valid measurement; `more` replaces its other fields."""
    found = steady(center_ms) if raw else [without_samples(one) for one in steady(center_ms)]
    if mean_only:
        found = [one.model_copy(update={"median_ms": None}) for one in found]
    fields = {
        "file": FileFacts(name=name, path=f"nets/{name}", sha256="ab" * 32, size_bytes=1000),
        "conditions": conditions,
        "warmup_runs": 10,
        "bursts": tuple(found),
        "summary": summarise(found),
        "before": Environment(),
        "after": Environment(),
        "validity": Validity(valid=True),
    }
    return Measurement(**fields | more)


def bench_of(*measurements, device="local"):
    """Returns what one device measured, every file compared with the first."""
    first, *others = measurements
    compared = [
        compare(first.bursts, one.bursts, names=(first.file.name, one.file.name), paired=True)
        for one in others
    ]
    return DeviceBench(device=device, measurements=measurements, comparisons=tuple(compared))


def result_of(*benches, preset="quick", score="median", **more):
    """Returns the record of a whole command."""
    return BenchResult(
        preset=preset,
        score=score,
        device="local",
        seed=0,
        created=datetime(2026, 11, 16, tzinfo=UTC),
        versions={},
        benches=benches,
        **more,
    )


def operators(count):
    """Returns operators of falling time, named as converters name them."""
    return tuple(
        OpTime(
            name=f"[fashion_resnet/block{number}/conv2d/Relu;fashion_resnet/block{number}/batch_norm]:{number}",
            kind="Convolution (NHWC, F32) GEMM",
            mean_ms=1 / (number + 1),
            calls=1,
        )
        for number in range(count)
    )
