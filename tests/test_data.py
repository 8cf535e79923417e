"""Every reader gives back the pixels that were stored, and preprocessing is what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from image_files import RAW_CIFAR, RAW_GREY, RAW_RGB, noise, save_png, stored, write_idx
from PIL import Image

from edgecompress.core.types import Preprocess
from edgecompress.data import image_sets
from edgecompress.data.image_sets import FileSet
from edgecompress.data.pixels import decode, normalise
from edgecompress.data.readers.folder import SUFFIXES
from edgecompress.data.sources import list_readers, open_source
from edgecompress.errors import DataError


def test_embedded_set_is_balanced_and_divided():
    source = open_source("fashion-mnist", Preprocess(size=(28, 28), mean=(0.286,), std=(0.353,)))
    assert torch.bincount(source.train.labels()).tolist() == [200] * 10
    assert torch.bincount(source.test.labels()).tolist() == [300] * 10
    images = source.train.images(range(500))
    assert images.shape == (500, 1, 28, 28) and images.dtype == torch.float32
    assert abs(images.mean()) < 0.1 and abs(images.std() - 1) < 0.1


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_give_back_both_parts(tmp_path, packed):
    train, test = noise(5, 6, 8), noise(3, 6, 8, seed=1)
    write_idx(tmp_path, "train", train, [0, 1, 2, 3, 4], packed=packed)
    write_idx(tmp_path, "t10k", test, [2, 1, 0], packed=packed)
    for spec in (str(tmp_path), f"idx:{tmp_path}", f"fashion-mnist:{tmp_path}"):
        source = open_source(spec, RAW_GREY)
        assert (stored(source.train)[..., 0] == train).all() and (stored(source.test)[..., 0] == test).all()
        assert source.test.labels().tolist() == [2, 1, 0] and source.pool is None


@pytest.mark.parametrize("shape", [(4, 6, 8), (4, 6, 8, 1), (4, 6, 8, 3)])
def test_npz_gives_back_one_pool(tmp_path, shape):
    pixels = noise(*shape)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.array([[3], [1], [4], [1]]))
    source = open_source(str(tmp_path / "a.npz"), RAW_RGB if shape[-1] == 3 else RAW_GREY)
    assert (stored(source.pool).reshape(shape) == pixels).all()
    assert source.pool.labels().tolist() == [3, 1, 4, 1] and source.pool.labels().dtype == torch.int64


def test_npz_may_be_divided_and_unlabelled(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=noise(4, 6, 8), x_test=noise(2, 6, 8), y_test=[0, 1])
    source = open_source(f"npz:{tmp_path / 'a.npz'}", RAW_GREY)
    assert source.train.labels() is None and source.test.labels().tolist() == [0, 1]


def test_cifar_png_gives_back_both_parts(tmp_path):
    train, test = noise(6, 32, 32, 3), noise(2, 32, 32, 3, seed=1)
    save_png(tmp_path / "data_batch_1.png", train[:3].reshape(3, 1024, 3))
    save_png(tmp_path / "data_batch_2.png", train[3:].reshape(3, 1024, 3))
    save_png(tmp_path / "test_batch.png", test.reshape(2, 1024, 3))
    (tmp_path / "train_lables.json").write_text(json.dumps([0, 1, 2, 3, 4, 5]))
    (tmp_path / "test_lables.json").write_text("[7, 8]")
    source = open_source(str(tmp_path), RAW_CIFAR)
    assert (stored(source.train) == train).all() and (stored(source.test) == test).all()
    assert source.test.labels().tolist() == [7, 8]


def test_cifar_binary_gives_back_both_parts(tmp_path):
    pixels, labels = noise(3, 32, 32, 3), [9, 0, 5]
    records = [
        bytes([label]) + one.transpose(2, 0, 1).tobytes() for label, one in zip(labels, pixels, strict=True)
    ]
    (tmp_path / "data_batch_1.bin").write_bytes(b"".join(records[:2]))
    (tmp_path / "test_batch.bin").write_bytes(records[2])
    source = open_source(str(tmp_path), RAW_CIFAR)
    assert (stored(source.train) == pixels[:2]).all() and (stored(source.test) == pixels[2:]).all()
    assert source.train.labels().tolist() == [9, 0]


def test_class_folders_are_numbered_in_sorted_order(tmp_path):
    images = {
        name: save_png(tmp_path / name / "1.png", noise(6, 8, 3, seed=i)) for i, name in enumerate("cab")
    }
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "._1.png").write_bytes(b"left behind by a file manager")
    pool = open_source(str(tmp_path), RAW_RGB).pool
    assert pool.labels().tolist() == [0, 1, 2] and pool.classes == 3
    assert all(
        (one == np.asarray(Image.open(images[name]))).all()
        for one, name in zip(stored(pool), "abc", strict=True)
    )


@pytest.mark.parametrize(
    ("held_out", "used"), [(["val"], "val"), (["test"], "test"), (["val", "test"], "test")]
)
def test_train_and_test_folders_are_a_division(tmp_path, held_out, used):
    for seed, part in enumerate(["train", *held_out]):
        for name in ("cat", "dog"):
            save_png(tmp_path / part / name / "1.png", noise(6, 8, 3, seed=seed))
    source = open_source(str(tmp_path), RAW_RGB)
    assert source.pool is None and source.train.classes == source.test.classes == 2
    assert source.test.name.endswith(used)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("bus", "train"):
        save_png(tmp_path / name / "1.png", noise(6, 8, 3))
    assert open_source(str(tmp_path), RAW_RGB).pool.labels().tolist() == [0, 1]


def test_labels_txt_says_which_images_and_in_which_order(tmp_path):
    pixels = {
        name: noise(6, 8, 3, seed=i) for i, name in enumerate(["one.png", "two words.png", "left out.png"])
    }
    for name, one in pixels.items():
        save_png(tmp_path / name, one)
    (tmp_path / "labels.txt").write_text("two words.png 970\n\none.png 65\n")
    pool = open_source(f"folder:{tmp_path}", RAW_RGB).pool
    assert pool.labels().tolist() == [970, 65] and pool.classes is None
    assert (stored(pool) == np.stack([pixels["two words.png"], pixels["one.png"]])).all()


def test_a_bare_folder_has_no_labels(tmp_path):
    save_png(tmp_path / "b.PNG", noise(6, 8, 3))
    pool = open_source(str(tmp_path), RAW_RGB).pool
    assert len(pool) == 1 and pool.labels() is None


def test_readers_have_different_names_and_folders_come_last():
    readers = list_readers()
    known = {"fashion-mnist", "idx", "npz", "cifar-png", "cifar-binary", "synthetic", "folder"}
    assert {reader.name for reader in readers} == known
    assert readers[-1].name == "folder" and all(reader.summary for reader in readers)


def test_grey_and_colour_are_converted_by_the_number_of_means(tmp_path):
    grey = save_png(tmp_path / "grey.png", noise(6, 8))
    colour = save_png(tmp_path / "colour.png", noise(6, 8, 3))
    assert decode(colour, RAW_GREY).shape == (6, 8, 1)
    three = decode(grey, RAW_RGB)
    assert (three == three[..., :1]).all() and three.shape == (6, 8, 3)


@pytest.mark.parametrize("size", [(40, 50), (51, 37), (33, 33), (24, 24)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_short_side_is_resized_and_the_centre_cropped(tmp_path, size, interpolation):
    preprocess = RAW_RGB.model_copy(update={"size": (19, 20), "resize": 24, "interpolation": interpolation})
    path = save_png(tmp_path / "a.png", noise(*size, 3))
    scale = 24 / min(size)
    resized = Image.open(path).resize(
        (int(size[1] * scale), int(size[0] * scale)), Image.Resampling[interpolation.upper()]
    )
    top, left = round((resized.height - 19) / 2), round((resized.width - 20) / 2)
    assert (decode(path, preprocess) == np.asarray(resized)[top : top + 19, left : left + 20]).all()


def test_scaling_is_by_mean_and_deviation_of_each_channel():
    preprocess = Preprocess(size=(6, 8))
    pixels = noise(2, 6, 8, 3)
    expected = (pixels / 255 - np.array(preprocess.mean)) / np.array(preprocess.std)
    actual = normalise(pixels, preprocess).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("resize", [None, 9])
def test_arrays_of_another_size_are_resized(tmp_path, resize):
    np.savez(tmp_path / "a.npz", x=np.full((2, 5, 4), 77, dtype=np.uint8))
    preprocess = RAW_RGB.model_copy(update={"resize": resize, "size": (6, 8)})
    pool = open_source(str(tmp_path / "a.npz"), preprocess).pool
    assert stored(pool).shape == (2, 6, 8, 3) and (stored(pool) == 77).all()


def test_arrays_of_the_right_size_are_left_alone(tmp_path):
    pixels = noise(1, 6, 8)
    np.savez(tmp_path / "a.npz", x=pixels)
    pool = open_source(str(tmp_path / "a.npz"), RAW_RGB.model_copy(update={"resize": 7})).pool
    assert (stored(pool) == pixels[..., None]).all()


def test_no_indices_give_no_images(tmp_path):
    save_png(tmp_path / "a.png", noise(6, 8, 3))
    assert open_source(str(tmp_path), RAW_RGB).pool.images([]).shape == (0, 3, 6, 8)


def test_decoded_files_are_kept_but_not_without_limit(tmp_path, monkeypatch):
    paths = [save_png(tmp_path / f"{i}.png", noise(6, 8, 3, seed=i)) for i in range(3)]
    monkeypatch.setattr(image_sets, "CACHE_BYTES", 2 * 6 * 8 * 3)
    images = FileSet("some", paths, None, RAW_RGB)
    before = images.images([0, 1, 2])
    paths[0].unlink()
    paths[2].unlink()
    assert (images.images([2]) == before[2]).all()
    with pytest.raises(DataError, match=r"0\.png"):
        images.images([0])


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_pictures_of_every_kind_are_read(tmp_path, suffix):
    pixels = noise(6, 8, 3)
    picture = Image.fromarray(pixels if suffix != ".pgm" else pixels[..., 0])
    picture.save(tmp_path / f"a{suffix}", **({"lossless": True} if suffix == ".webp" else {}))
    found = decode(tmp_path / f"a{suffix}", RAW_RGB)
    with Image.open(tmp_path / f"a{suffix}") as same:
        assert (found == np.asarray(same.convert("RGB"))).all()
    if suffix not in (".jpg", ".jpeg", ".gif", ".pgm"):  # those keep fewer colours
        assert (found == pixels).all()


def test_what_phones_write_and_call_jpg_is_read(tmp_path):
    first, second = (Image.fromarray(noise(6, 8, 3, seed=seed)) for seed in (0, 1))
    first.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[second])
    with Image.open(tmp_path / "a.jpg") as same:
        assert same.format == "MPO"
        assert (decode(tmp_path / "a.jpg", RAW_RGB) == np.asarray(same)).all()
