"""Files of synthetic images, the reader for them, and the sheet to look at."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from edgecompress.core.types import Preprocess
from edgecompress.data.contact_sheet import save_contact_sheet
from edgecompress.data.sources import open_source
from edgecompress.data.synthetic_shards import read_shard, shard_bytes, shard_files, shard_name
from edgecompress.errors import DataError

PREPROCESS = Preprocess(size=(6, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5))


def noise(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 6, 8, generator=generator).to(torch.float16)


def write(folder, *shards, labels=True, preprocess=PREPROCESS):
    for number, images in enumerate(shards):
        told = torch.arange(len(images)) if labels else None
        content = shard_bytes(images, told, preprocess, {"seed": 0, "shard": number})
        (folder / shard_name(number)).write_bytes(content)
    return str(folder)


def test_equal_images_are_equal_files(tmp_path):
    told = dict(zip("cab", range(3), strict=True))
    first = shard_bytes(noise(4), torch.arange(4), PREPROCESS, told)
    again = shard_bytes(noise(4), torch.arange(4), PREPROCESS, dict(sorted(told.items())))
    assert first == again
    (tmp_path / "one").write_bytes(first)
    shard = read_shard(tmp_path / "one")
    assert (shard.images, shard.shape, shard.preprocess) == (4, (3, 6, 8), PREPROCESS)


@pytest.mark.parametrize("prefix", ["", "synthetic:"])
def test_images_come_back_as_they_were_stored(tmp_path, prefix):
    parts = noise(5), noise(3, seed=1)
    source = open_source(prefix + write(tmp_path, *parts), PREPROCESS)
    pool = source.pool
    assert source.train is None and len(pool) == 8 and pool.classes is None
    order = [7, 0, 5, 4, 4]
    found = pool.images(order)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.cat(parts)[order].float())
    assert pool.labels().tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert "synthetic" in pool.name


def test_images_without_labels_have_none(tmp_path):
    assert open_source(write(tmp_path, noise(2), labels=False), PREPROCESS).pool.labels() is None


def test_files_are_read_in_the_order_of_their_numbers(tmp_path):
    for number in (1000, 2, 999, 10):
        (tmp_path / shard_name(number)).touch()
    numbers = [file.name.split("-")[1].split(".")[0] for file in shard_files(tmp_path)]
    assert numbers == ["002", "010", "999", "1000"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"size": (6, 9)}, "images of 3x6x8, the model takes 3x6x9"),
        ({"mean": (0.4,), "std": (0.2,)}, "the model takes 1x6x8"),
        ({"mean": (0.4, 0.5, 0.5)}, "made for mean"),
    ],
)
def test_images_for_other_inputs_are_refused(tmp_path, other, said):
    folder = write(tmp_path, noise(2))
    with pytest.raises(DataError, match=said):
        open_source(folder, PREPROCESS.model_copy(update=other))


def test_a_directory_without_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="edgecompress synthesize"):
        open_source(f"synthetic:{tmp_path}", PREPROCESS)


def test_damaged_files_are_refused(tmp_path):
    folder = write(tmp_path, noise(2), noise(2, seed=1))
    whole = (tmp_path / shard_name(1)).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"no tensors at all"):
        (tmp_path / shard_name(1)).write_bytes(damaged)
        with pytest.raises(DataError, match="images-001"):
            open_source(folder, PREPROCESS)


def test_tensors_of_something_else_are_refused(tmp_path):
    save_file({"images": noise(2)}, tmp_path / shard_name(0))
    with pytest.raises(DataError, match="not a file of synthetic images"):
        open_source(str(tmp_path), PREPROCESS)
    told = {"edgecompress": json.dumps({"preprocess": PREPROCESS.model_dump(mode="json")})}
    save_file({"images": noise(2).double()}, tmp_path / shard_name(0), told)
    with pytest.raises(DataError, match="F64"):
        open_source(str(tmp_path), PREPROCESS)
    for labels in (torch.zeros(2), torch.zeros(1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)):
        save_file({"images": noise(2), "labels": labels}, tmp_path / shard_name(0), told)
        with pytest.raises(DataError, match="labels are"):
            open_source(str(tmp_path), PREPROCESS)


def test_a_contact_sheet_shows_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 8, 3)).astype(np.uint8)
    mean, std = (np.array(values) for values in (PREPROCESS.mean, PREPROCESS.std))
    images = torch.from_numpy((pixels / 255 - mean) / std).permute(0, 3, 1, 2).float()
    images[1] = 1e9
    save_contact_sheet(tmp_path / "a.png", images, PREPROCESS)
    with Image.open(tmp_path / "a.png") as picture:
        shown = np.asarray(picture)
    times = 11  # 6 pixels become at least 64
    assert shown.shape == (2 * (6 * times + 2) - 2, 16 * (8 * times + 2) - 2, 3)
    assert (shown[: 6 * times : times, : 8 * times : times] == pixels[0]).all()
    second = shown[: 6 * times, 8 * times + 2 : 16 * times + 2]
    assert (second == 255).all()
    below = shown[6 * times + 2 :: times, : 8 * times : times]
    assert (below == pixels[16]).all()


def test_a_contact_sheet_of_grey_images_is_grey(tmp_path):
    grey = Preprocess(size=(80, 80), mean=(0.5,), std=(0.5,))
    save_contact_sheet(tmp_path / "a.png", torch.zeros(3, 1, 80, 80), grey)
    with Image.open(tmp_path / "a.png") as picture:
        assert (picture.mode, picture.size) == ("L", (3 * 80 + 4, 80))
        assert picture.getpixel((5, 5)) == 128
