"""Results of trainings, recoveries and sizes, for tests of what is shown of them."""

from __future__ import annotations

from test_report import COMPRESS, MODEL, exported

from edgecompress.core.elastic_results import ElasticResult, ElasticSize, SizeFigures
from edgecompress.core.recover_results import RecoverResult, Rung, Standing
from edgecompress.core.train_results import EpochRow, TrainResult
from edgecompress.core.types import Accuracy, Budget

SPLIT = COMPRESS.split


def figures(macs, score, top1, ms=None):
    accuracy = None if top1 is None else Accuracy(top1=top1, top5=None, images=500)
    return SizeFigures(macs=macs, params=macs // 100, predicted_ms=ms, score=score, accuracy=accuracy)


def size(name, found, network=None, offered=None):
    in_ms = name.endswith("ms")
    value = float(name.removesuffix("ms"))
    return ElasticSize(
        name=name,
        budget=Budget(metric="ms" if in_ms else "macs", value=value, relative=not in_ms),
        found=found,
        network=network or name,
        offered=offered or found,
        layers=7,
        files=(exported("compressed.tflite", network="compressed", precision="fp32"),),
    )


SMALL = figures(2_500_000, 89.0, 88.0)
ELASTIC = ElasticResult(
    directory="runs/taught/sizes",
    model=MODEL,
    trained="decomposable",
    mode="spatial",
    layers=None,
    rank_selection="global-values",
    score="top-1",
    full=figures(10_000_000, 92.0, 91.0),
    sizes=(
        size("0.25", SMALL),
        size("0.75", figures(7_400_000, 91.0, 90.5)),
        size("0.50", figures(4_900_000, 88.0, 87.0), "0.25", SMALL),
    ),
    norms="in sequence",
    norm_images=2048,
    split=SPLIT,
    skipped=(("stem", "grouped convolution"),),
    seconds={"files": 3.0, "all": 4.0},
)
"""In which 0.50 is worse than 0.25, so that its place is taken."""
TIMED = ELASTIC.model_copy(
    update={
        "full": figures(10_000_000, 92.0, 91.0, ms=8.0),
        "sizes": (
            size("6ms", figures(9_000_000, 91.5, 90.0, ms=5.9)),
            size("4ms", figures(5_000_000, 90.0, 89.0, ms=3.5)),
        ),
        "latency_table": "pixel4.json",
        "device": "emulated-a76",
        "provenance": "emulated",
    }
)
TRAIN = TrainResult(
    run="runs/taught",
    method="decomposable",
    optimiser="sgd",
    plan=COMPRESS.plan,
    dense=COMPRESS.dense,
    compressed=COMPRESS.dense.model_copy(update={"accuracy": Accuracy(top1=73.5, top5=91.0, images=500)}),
    epochs=tuple(
        EpochRow(epoch=n, steps=10 * n, loss=2.0 / n, lr=0.1 / n, score=60.0 + 5 * min(n, 6 - n), seconds=9.5)
        for n in range(1, 5)
    ),
    best_epoch=3,
    stopped="the loss was not finite in epoch 5",
    split=SPLIT,
    ranks_used=(("a", 3, 8), ("b", 10, 16)),
    steps=(("stopped", "the loss was not finite in epoch 5"),),
    seconds={"training": 38.0},
)


def standing(top1, divergence):
    return Standing(top1=top1, right=top1, divergence=divergence)


RECOVER = RecoverResult(
    run="runs/won",
    parent="cut",
    level="distill",
    preset="ours",
    plan=COMPRESS.plan,
    dense=COMPRESS.dense,
    before=COMPRESS.compressed,
    compressed=COMPRESS.compressed.model_copy(
        update={"accuracy": Accuracy(top1=71.0, top5=None, images=500)}
    ),
    ladder=(
        Rung(
            level="none",
            outcome="as it came",
            gain=0.0,
            minutes=0.1,
            kept=False,
            before=standing(70, 0.3),
            after=standing(70, 0.3),
        ),
        Rung(
            level="stats",
            outcome="kept: norms",
            gain=0.75,
            minutes=0.5,
            kept=True,
            before=standing(70, 0.3),
            after=standing(70.75, 0.2),
        ),
        Rung(
            level="synthetic",
            outcome="no such images",
            gain=None,
            minutes=0.0,
            kept=False,
            before=standing(70.75, 0.2),
            after=None,
        ),
        Rung(
            level="distill",
            outcome="40 steps",
            gain=-0.25,
            minutes=12.0,
            kept=False,
            before=standing(70.75, 0.2),
            after=standing(70.5, 0.2),
            steps=40,
        ),
    ),
    split=SPLIT,
    steps=(("images", "few"),),
    seconds={"stats": 30.0, "distill": 720.0},
)
