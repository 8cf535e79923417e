"""Missing, damaged and contradictory images are named, each with what to do."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from image_files import RAW_CIFAR, RAW_GREY, RAW_RGB, idx_bytes, noise, save_png, write_idx

from edgecompress.core.types import Preprocess
from edgecompress.data.pixels import decode
from edgecompress.data.readers.idx import read_idx
from edgecompress.data.sources import open_source
from edgecompress.errors import DataError


def test_unknown_data_lists_what_is_understood():
    with pytest.raises(DataError, match=r"'nowhere': there is no such .*cifar-png.*npz.*folder"):
        open_source("nowhere", RAW_RGB)


def test_a_file_of_unknown_form_is_not_recognised(tmp_path):
    (tmp_path / "a.rar").write_bytes(b"")
    with pytest.raises(DataError, match="not recognised"):
        open_source(str(tmp_path / "a.rar"), RAW_RGB)


@pytest.mark.parametrize("prefix", ["idx", "npz", "cifar-png", "cifar-binary", "folder", "fashion-mnist"])
def test_a_reader_asked_for_by_name_says_what_is_missing(tmp_path, prefix):
    with pytest.raises(DataError, match="nowhere"):
        open_source(f"{prefix}:{tmp_path / 'nowhere'}", RAW_RGB)


def test_an_empty_directory_holds_no_images(tmp_path):
    with pytest.raises(DataError, match="no images found"):
        open_source(str(tmp_path), RAW_RGB)


@pytest.mark.parametrize("damage", [b"", b"\x89PNG\r\n\x1a\n", "cut"])
def test_a_damaged_image_is_named(tmp_path, damage):
    file = save_png(tmp_path / "bad.png", noise(6, 8, 3))
    file.write_bytes(file.read_bytes()[:90] if damage == "cut" else damage)
    pool = open_source(str(tmp_path), RAW_RGB).pool
    with pytest.raises(DataError, match=r"bad\.png: cannot be decoded"):
        pool.images([0])


def test_a_file_of_the_wrong_size_is_not_stretched(tmp_path):
    path = save_png(tmp_path / "a.png", noise(9, 9, 3))
    with pytest.raises(DataError, match=r"a\.png: 9x9 pixels; the model takes 8x6"):
        decode(path, RAW_RGB)


def test_sixteen_bit_images_are_refused(tmp_path):
    path = save_png(tmp_path / "a.png", noise(6, 8).astype(np.uint16) * 256)
    with pytest.raises(DataError, match=r"a\.png: pixels of type 'I;16'"):
        decode(path, RAW_GREY)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a.png", "line 1: 'a.png' is not"),
        ("a.png cat", "line 1: 'a.png cat' is not"),
        ("a.png -1", "is not `file class-index`"),
        ("a.png 1\na.png 2", "line 2: 'a.png' is listed twice"),
        ("b.png 1", "line 1: there is no file 'b.png'"),
        ("\n", "no images are listed"),
    ],
)
def test_a_wrong_line_of_labels_txt_is_shown(tmp_path, text, complaint):
    save_png(tmp_path / "a.png", noise(6, 8, 3))
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(DataError, match=complaint):
        open_source(str(tmp_path), RAW_RGB)


def test_mixed_forms_of_folders_are_refused(tmp_path):
    save_png(tmp_path / "a" / "1.png", noise(6, 8, 3))
    save_png(tmp_path / "1.png", noise(6, 8, 3))
    with pytest.raises(DataError, match="both beside and inside"):
        open_source(str(tmp_path), RAW_RGB)


def test_an_empty_class_folder_is_refused(tmp_path):
    save_png(tmp_path / "a" / "1.png", noise(6, 8, 3))
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="class folder without images"):
        open_source(str(tmp_path), RAW_RGB)


def test_both_parts_must_have_the_same_classes(tmp_path):
    for name in ("train/cat", "train/dog", "test/cat"):
        save_png(tmp_path / name / "1.png", noise(6, 8, 3))
    with pytest.raises(DataError, match="same classes: dog"):
        open_source(str(tmp_path), RAW_RGB)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": noise(3, 6, 8), "y": [0, 1]}, "3 images but 2 labels"),
        ({"x": noise(3, 6, 8), "y": [0, 1, -1]}, "label -1 found"),
        ({"x": noise(3, 6, 8), "y": [0.5, 1, 2]}, "labels are float64"),
        ({"x": noise(3, 6, 8).astype(np.float32)}, "images are float32"),
        ({"x": noise(3, 6, 8, 4)}, r"shape \(3, 6, 8, 4\)"),
        ({"x": noise(0, 6, 8)}, "there are no images"),
        ({"pictures": noise(3, 6, 8)}, "holds pictures; expected are x and y"),
        ({"x": np.array([None, 1], dtype=object)}, "not a readable .npz of plain arrays"),
    ],
)
def test_a_wrong_npz_is_explained(tmp_path, arrays, complaint):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=complaint):
        open_source(str(tmp_path / "a.npz"), RAW_GREY)


def test_a_bare_array_is_not_an_npz(tmp_path):
    with (tmp_path / "a.npz").open("wb") as stream:
        np.save(stream, noise(3, 6, 8))
    with pytest.raises(DataError, match=r"a\.npz: one bare array"):
        open_source(str(tmp_path / "a.npz"), RAW_GREY)


@pytest.mark.parametrize("kept", [0, 10, 100, -30])
def test_a_cut_off_npz_is_an_error(tmp_path, kept):
    np.savez(tmp_path / "a.npz", x=noise(3, 6, 8))
    raw = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(raw[:kept])
    with pytest.raises(DataError, match=r"a\.npz"):
        open_source(str(tmp_path / "a.npz"), RAW_GREY)


@pytest.mark.parametrize("name", ["a-ubyte", "a-ubyte.gz"])
@pytest.mark.parametrize("kept", [0, 3, 9, -1])
def test_a_cut_off_idx_file_is_an_error(tmp_path, name, kept):
    raw = idx_bytes(noise(3, 6, 8))
    raw = gzip.compress(raw) if name.endswith("gz") else raw
    (tmp_path / name).write_bytes(raw[:kept])
    with pytest.raises(DataError, match=name):
        read_idx(tmp_path / name)


def test_idx_files_of_different_counts_are_an_error(tmp_path):
    write_idx(tmp_path, "train", noise(3, 6, 8), [0, 1], packed=False)
    with pytest.raises(DataError, match="3 images but 2 labels"):
        open_source(str(tmp_path), RAW_GREY)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="not beside it"):
        open_source(str(tmp_path), RAW_GREY)


def test_damaged_cifar_files_are_errors(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3000)
    with pytest.raises(DataError, match="not whole records"):
        open_source(str(tmp_path), RAW_CIFAR)
    save_png(tmp_path / "test_batch.png", noise(2, 1024, 3))
    for labels, complaint in (
        ("[1]", "2 images but 1 labels"),
        ("[1, ", "cannot be read"),
        ("{}", "not a list"),
    ):
        (tmp_path / "test_lables.json").write_text(labels)
        with pytest.raises(DataError, match=complaint):
            open_source(f"cifar-png:{tmp_path}", RAW_CIFAR)


def test_images_are_grey_or_rgb():
    with pytest.raises(DataError, match="2 means"):
        open_source("fashion-mnist", Preprocess(size=(28, 28), mean=(0.5, 0.5), std=(0.5, 0.5)))
