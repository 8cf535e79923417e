"""A small model in a file, images for it, and a latency table that is made up: times follow from MACs."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from test_latency_keys import HEADING

from edgecompress.core.costs import block_macs
from edgecompress.core.latency_table import Calibration, PlanTiming, TableEntry, make_table
from edgecompress.core.store import write_record
from edgecompress.core.types import Block
from edgecompress.latency.calibration import weight_megabytes
from edgecompress.latency.keys import block_key
from edgecompress.latency.parsing import parse_block
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.nets.modules import find_layers
from edgecompress.nets.sources import load_model

MODEL = """
import torch
from torch import nn

BIAS = [0.0, 0.0, 0.0, 0.0]


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        )
        self.head = nn.Linear(16, 4)
        self.head.weight.data.mul_(60)
        self.head.bias.data[:] = torch.tensor(BIAS)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))
"""
SOURCE = "small.py:Small"
SIZE = (10, 10)
REST_MS = 0.002


def write_home(folder: Path) -> None:
    """Writes model, images and a made-up table into the folder, which is the working directory."""
    (folder / "small.py").write_text(MODEL)
    pixels = _pixels(160)
    bias = -_logits(pixels).mean(0)  # so that no class is always the answer
    (folder / "small.py").write_text(MODEL.replace("[0.0, 0.0, 0.0, 0.0]", str(bias.tolist())))
    labels = _logits(pixels).argmax(1).numpy()
    labels[::10] = (labels[::10] + 1) % 4
    np.savez(folder / "images.npz", x=pixels, y=labels)
    np.savez(folder / "other.npz", x=pixels, y=labels + 4)
    np.savez(folder / "unlabelled.npz", x=pixels)
    write_table(folder / "t.json")


def _pixels(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shade = rng.integers(0, 200, (count, 1, 1, 3))
    return (rng.integers(0, 56, (count, *SIZE, 3)) + shade).astype(np.uint8)


def _logits(pixels: np.ndarray) -> torch.Tensor:
    loaded = load_model(SOURCE, input_size=SIZE)
    mean, std = (np.array(values) for values in (loaded.ref.preprocess.mean, loaded.ref.preprocess.std))
    scaled = torch.from_numpy(((pixels / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    with torch.no_grad():
        return loaded.module(scaled)


def ms_of(block: Block, in_size: tuple[int, int]) -> float:
    """Returns the made-up milliseconds of a block: its MACs and something per operator."""
    return 1e-7 * block_macs(block, in_size) + 0.0005 * sum(map(len, block.branches))


def _timing(blocks: list[tuple[Block, tuple[int, int]]]) -> PlanTiming:
    blocks_ms = sum(ms_of(*one) for one in blocks)
    ms, megabytes = blocks_ms + REST_MS, weight_megabytes((one for one, _ in blocks), dtype="float32")
    return PlanTiming(
        plan="dense",
        blocks_ms=blocks_ms,
        weight_megabytes=megabytes,
        measured_ms=ms,
        predicted_ms=ms,
        fitted=True,
    )


def write_table(file: Path, *, slower: dict[str, float] | None = None) -> None:
    """Writes a table of every block; families in `slower` take so many times as long."""
    loaded = load_model(SOURCE, input_size=SIZE)
    layers, _ = find_layers(loaded.module, loaded.targets, loaded.ref.input_shape)
    entries: dict[str, float] = {}
    for layer in layers:
        dense = Block(branches=((layer.op,),))
        entries[block_key(dense, layer.in_size)] = ms_of(dense, layer.in_size)
        for one in (*LOWRANK.candidates(layer), *BRANCHES.candidates(layer)):
            factor = (slower or {}).get(one.family.partition("(")[0], 1.0)
            key = block_key(one.blocks[0], layer.in_size)
            if key not in entries or factor > 1:  # families may share a block
                entries[key] = factor * ms_of(one.blocks[0], layer.in_size)
    calibration = Calibration(
        network=loaded.ref.source,
        input_shape=loaded.ref.input_shape,
        layers=tuple(layer.name for layer in layers),
        scale=1.0,
        per_megabyte_ms=0.0,
        rest_ms=REST_MS,
        timings=(_timing([(Block(branches=((one.op,),)), one.in_size) for one in layers]),),
    )
    made = make_table(
        HEADING.model_copy(update={"device": "local"}),
        soc=None,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        entries=[TableEntry(key=key, median_ms=ms, interval_ms=None, runs=1) for key, ms in entries.items()],
        calibrations=[calibration],
    )
    assert all(parse_block(one.key) for one in made.entries)
    write_record(file, made, indent=None)
