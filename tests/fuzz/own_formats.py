"""Files that only this package writes: where trainings and searches stand, and images it made."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from made_trainings import course_of, settings_of, tiny_net, training_images

from edgecompress.core.types import Preprocess
from edgecompress.data.sources import open_source
from edgecompress.data.synthetic_shards import shard_bytes, shard_name
from edgecompress.search.theta_checkpoint import Standing, load_standing, save_standing
from edgecompress.train.loop import fit
from edgecompress.train.objectives import from_labels
from fuzz.contract import Format
from fuzz.edits import damaged_bytes, damaged_tree

PREPROCESS = Preprocess(size=(6, 8), resize=None, mean=(0.5,) * 3, std=(0.25,) * 3)
STEPS = 3


def _damaged(make: Callable[[], bytes]) -> Callable[[], st.SearchStrategy[bytes]]:
    return lambda: st.one_of(damaged_bytes(make()), edited_header(make()))


@st.composite
def edited_header(draw: DrawFn, content: bytes) -> bytes:
    """Damages the JSON at the head of a safetensors file, or that in its metadata; says its length anew."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    told = header.get("__metadata__", {})
    name = draw(st.sampled_from([None, *sorted(told)]))
    if name is None:
        header = draw(damaged_tree(header))
    else:
        told[name] = draw(_damaged_text(told[name]))
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


@st.composite
def _damaged_text(draw: DrawFn, text: str) -> str:
    try:
        return json.dumps(draw(damaged_tree(json.loads(text))))
    except ValueError:  # no JSON: a hash
        return draw(damaged_bytes(text.encode())).decode(errors="replace")


def _written(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "file"
        write(file)
        return file.read_bytes()


def _train(checkpoint: Path) -> None:
    """Goes on with a training that was at its end."""
    course, images = course_of(tiny_net()), training_images(32)
    fit(course, from_labels(), images, settings_of(STEPS), checkpoint=checkpoint, identity="a")


@functools.cache
def _training() -> bytes:
    return _written(_train)


@functools.cache
def _search() -> bytes:
    standing = Standing(torch.ones(4), {"mean": torch.zeros(4), "square": torch.ones(4)}, step=3)
    return _written(lambda file: save_standing(file, standing, "a"))


@functools.cache
def _shard() -> bytes:
    told = {"model": "zoo:tiny", "seed": 0, "shard": 0}
    return shard_bytes(torch.zeros(2, 3, 6, 8), torch.tensor([0, 1]), PREPROCESS, told)


def _read_shard(folder: Path) -> None:
    pool = open_source(f"synthetic:{folder}", PREPROCESS).pool
    assert pool is not None
    pool.images(range(min(4, len(pool))))
    labels = pool.labels()
    assert labels is None or labels.shape == (len(pool),)


FORMATS = (
    Format(
        "training-checkpoint", "t.safetensors", _damaged(_training), lambda f: _train(f / "t.safetensors")
    ),
    Format(
        "search-checkpoint",
        "s.safetensors",
        _damaged(_search),
        lambda f: load_standing(f / "s.safetensors", "a"),
    ),
    Format("synthetic-images", shard_name(0), _damaged(_shard), _read_shard),
)
