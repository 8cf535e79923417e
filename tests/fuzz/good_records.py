"""Good records to damage, of networks as small as can be."""

from __future__ import annotations

import copy
import functools
from datetime import UTC, datetime
from pathlib import Path

import torch
from made_cells import random_genotype
from made_tables import ms_of
from test_latency_keys import HEADING
from test_report import COMPRESS
from torch import nn

from edgecompress.core.genotype import code_of
from edgecompress.core.latency_table import Calibration, LatencyTable, PlanTiming, TableEntry, make_table
from edgecompress.core.topology_results import CellLatency, TopologyResult
from edgecompress.core.types import Block, Cut, ModelRef, Narrowing, Plan, Preprocess
from edgecompress.latency.keys import block_key
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.nets.artefact import rewrite_, save_artefact
from edgecompress.nets.modules import find_layers

SHAPE = (3, 6, 8)
GENOTYPES = (random_genotype("nats"), random_genotype("darts"))
REF = ModelRef(source="zoo:tiny", classes=4, preprocess=Preprocess(size=SHAPE[1:]))


def dense_net() -> nn.Module:
    """Returns a network of two convolutions and a classifier."""
    return copy.deepcopy(_net())


@functools.cache
def _net() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


def layers():
    """Returns the layers of the network."""
    return find_layers(dense_net(), ["0", "2", "6"], SHAPE)[0]


def _plan() -> Plan:
    narrowing = Narrowing(
        group="0",
        kind="channels",
        before=8,
        after=7,
        cuts=(Cut(module="0", axis="outputs"), Cut(module="2", axis="inputs")),
    )
    chosen = next(iter(LOWRANK.candidates(layers()[2])))
    return Plan(model=REF, narrowings=(narrowing,), choices=(chosen,), skipped=(("3", "no weights"),))


PLAN = _plan()
CELLS_PLAN = Plan(
    model=ModelRef(
        source=f"cells:{code_of(GENOTYPES[0])}", preprocess=Preprocess(size=(12, 12), mean=(0.5,), std=(0.5,))
    )
)


def write_artefact(folder: Path) -> None:
    """Writes the plan and the weights of the network."""
    network = dense_net()
    rewrite_(network, PLAN)
    save_artefact(folder, PLAN, network)


def _table() -> LatencyTable:
    blocks = {}
    for layer in layers()[:2]:
        found = [
            one.blocks[0] for one in [*LOWRANK.candidates(layer)][:2] + [*BRANCHES.candidates(layer)][:1]
        ]
        alone = [Block(branches=(chain,)) for block in found for chain in block.branches]
        for block in (Block(branches=((layer.op,),)), *found, *alone):  # lookups want branches alone, too
            blocks[block_key(block, layer.in_size)] = ms_of(block, layer.in_size)
    timing = PlanTiming(
        plan="dense", blocks_ms=0.1, weight_megabytes=0.01, measured_ms=0.2, predicted_ms=0.2, fitted=True
    )
    calibration = Calibration(
        network="zoo:tiny",
        input_shape=SHAPE,
        layers=("0", "2"),
        scale=1.0,
        per_megabyte_ms=0.0,
        rest_ms=0.1,
        timings=(timing,),
    )
    return make_table(
        HEADING,
        soc=None,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        entries=[TableEntry(key=key, median_ms=ms, interval_ms=None, runs=1) for key, ms in blocks.items()],
        calibrations=[calibration],
        notes=("made up",),
    )


TABLE = _table()
TOPOLOGY = TopologyResult(
    run="runs/cells",
    method="rarts",
    genotype=GENOTYPES[0],
    operations=("none", "skip", "conv3"),
    probabilities=(((0.2, 0.3, 0.5),) * 6,),
    skip_ratio=0.2,
    steps=10,
    alpha_lr=0.1,
    first_loss=2.0,
    last_loss=1.0,
    weights="searched",
    network=COMPRESS.dense,
    plan=CELLS_PLAN,
    latency=CellLatency(
        table="t.json",
        device="local",
        provenance="measured",
        measured_now=0,
        gamma=0.1,
        predicted_ms=1.0,
        cells_ms=0.5,
    ),
    split=COMPRESS.split,
    notes=("short",),
    seconds={"all": 1.0},
)
