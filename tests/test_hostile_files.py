"""Files made to do harm: they run no code, take no memory and reach no other file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from cli_calls import check_one_line_error, run
from image_files import RAW_CIFAR, RAW_GREY, RAW_RGB, idx_bytes, noise, write_idx
from made_bombs import gzip_bomb, png_bomb, zip_bomb
from onnx_files import write_net
from PIL import EpsImagePlugin, Image

from edgecompress.core.config import load_settings
from edgecompress.core.latency_table import LatencyTable
from edgecompress.core.runs import Run
from edgecompress.core.store import LARGEST_TEXT_BYTES, read_record
from edgecompress.core.types import Plan
from edgecompress.core.unpacking import ALWAYS_BYTES
from edgecompress.data.pixels import decode
from edgecompress.data.sources import open_source
from edgecompress.devices.files import load_device
from edgecompress.errors import ArtefactError, ConfigError, DataError, ExportError, WeightsError
from edgecompress.export import onnx_format
from edgecompress.nets.weights import PICKLE_SUFFIXES, read_state_dict

GIGABYTE = 2**30


@pytest.fixture(autouse=True)
def little_memory():
    """Whatever asks for a gigabyte more than there is now fails the test."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()  # data and stack
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + GIGABYTE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


class Harm:
    """Pickled, it makes a file where it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


# Code


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder in which nothing may appear."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("suffix", PICKLE_SUFFIXES)
@pytest.mark.parametrize("form", ["zip", "old", "plain", "wrapped"])
def test_pickled_code_is_refused_and_not_run(here, suffix, form):
    file, harm = here / f"w{suffix}", {"state_dict": {"a": torch.zeros(1)}, "note": Harm()}
    if form == "plain":
        file.write_bytes(pickle.dumps(Harm()))
    elif form == "wrapped":  # an archive that says it is torch's
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(harm["note"]))
            archive.writestr("archive/version", "3")
    else:
        torch.save(harm, file, _use_new_zipfile_serialization=form == "zip")
    check_one_line_error(run("inspect", "zoo:resnet20", "--weights", file), str(file))


def test_pickled_objects_among_images_are_refused_and_not_run(here):
    np.savez(here / "a.npz", x=np.array([Harm()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="plain arrays"):
        open_source(str(here / "a.npz"), RAW_RGB)


def test_pictures_that_are_programs_are_not_run(here, monkeypatch):
    """PIL hands PostScript to Ghostscript, whatever the file is called."""
    (here / "bin").mkdir()
    (here / "bin" / "gs").write_text(f"#!/bin/sh\nmkdir {here}/pwned\n")
    (here / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # where it was found before
    (here / "a.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n(pwned) (w) file\n%%EOF\n"
    )
    with pytest.raises(DataError, match="cannot be decoded"):
        decode(here / "a.jpg", RAW_RGB)


# Memory


def zeros(path, size):
    with path.open("wb") as stream:
        stream.truncate(size)  # takes no room on the disk
    return path


@pytest.mark.parametrize("kind", [Plan, Run, LatencyTable])
def test_a_gigabyte_of_json_is_refused_before_it_is_read(tmp_path, kind):
    file = zeros(tmp_path / "plan.json", GIGABYTE)
    with pytest.raises(ArtefactError, match="larger than 64 MB"):
        read_record(file, kind)


def test_endless_files_are_refused():
    with pytest.raises(ArtefactError, match="larger than 64 MB"):
        read_record(Path("/dev/zero"), Plan)


@pytest.mark.parametrize("name", ["s.json", "s.toml"])
def test_settings_and_devices_of_a_gigabyte_are_refused(tmp_path, name):
    file = zeros(tmp_path / name, GIGABYTE)
    with pytest.raises(ConfigError, match="larger than 64 MB"):
        load_settings(file, "compress", known={}, commands=[])
    with pytest.raises(ConfigError, match="larger than 64 MB"):
        load_device(str(file.rename(tmp_path / "phone.toml")))


@pytest.mark.parametrize("name", ["plan.json", "s.json", "s.toml"])
def test_lists_in_lists_without_end_are_refused(tmp_path, name):
    """Parsers that call themselves run out of stack."""
    file = tmp_path / name
    file.write_text(("" if name.endswith("json") else "a = ") + "[" * (LARGEST_TEXT_BYTES // 64))
    if name == "plan.json":
        with pytest.raises(ArtefactError, match=r"plan\.json"):
            read_record(file, Plan)
    else:
        with pytest.raises(ConfigError, match="not valid"):
            load_settings(file, "compress", known={}, commands=[])


def npy(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_an_archive_of_images_that_unpacks_to_gigabytes_is_refused(tmp_path):
    file = zip_bomb(tmp_path / "a.npz", "x.npy", npy((4096, 1024, 1024)), 4 * GIGABYTE - 2**20)
    assert file.stat().st_size < 2**23
    with pytest.raises(DataError, match="unpacks to"):
        open_source(str(file), RAW_GREY)


def test_an_array_that_promises_terabytes_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy((2**20, 2**10, 2**10)) + bytes(100))
    with pytest.raises(DataError, match=r"a\.npz"):
        open_source(str(tmp_path / "a.npz"), RAW_GREY)


@pytest.mark.parametrize("promised", [(4096, 1024, 1024), (3, 6, 8)], ids=["honest", "lying"])
def test_packed_idx_files_of_gigabytes_are_refused(tmp_path, promised):
    write_idx(tmp_path, "train", noise(3, 6, 8), [0, 1, 2], packed=True)
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, *promised)
    gzip_bomb(tmp_path / "train-images-idx3-ubyte.gz", header, 4 * GIGABYTE)
    with pytest.raises(DataError, match=r"unpacks to|header promises"):
        open_source(str(tmp_path), RAW_GREY)


def test_a_shape_whose_product_overflows_is_refused(tmp_path):
    write_idx(tmp_path, "train", noise(3, 6, 8), [0, 1, 2], packed=False)
    overflowing = struct.pack(">BBBB4I", 0, 0, 8, 4, 2**31, 2**31, 2**31, 2**31)  # 2**124: 0 in 64 bits
    (tmp_path / "train-images-idx3-ubyte").write_bytes(overflowing)
    with pytest.raises(DataError, match="unpacks to"):
        open_source(str(tmp_path), RAW_GREY)


@pytest.mark.parametrize("side", [20_000, 60_000])
def test_pictures_of_gigapixels_are_refused(tmp_path, side):
    file = png_bomb(tmp_path / "a.png", side, side)
    assert file.stat().st_size < 2**20
    with pytest.raises(DataError, match="decompression bomb"):
        decode(file, RAW_RGB)


def test_cifar_pictures_of_the_wrong_width_are_refused_unread(tmp_path):
    png_bomb(tmp_path / "test_batch.png", 13_000, 13_000)
    (tmp_path / "test_lables.json").write_text("[1]")
    with pytest.raises(DataError, match="rows of 13000 pixels"):
        open_source(f"cifar-png:{tmp_path}", RAW_CIFAR)


def test_a_large_cifar_picture_is_still_read(tmp_path, monkeypatch):
    rows = 2000
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", 1500 * 1024
    )  # beyond it PIL warns, and warnings are errors
    Image.fromarray(np.zeros((rows, 1024), np.uint8)).save(tmp_path / "test_batch.png")
    (tmp_path / "test_lables.json").write_text(json.dumps([0] * rows))
    assert len(open_source(f"cifar-png:{tmp_path}", RAW_CIFAR).pool) == rows


def test_a_checkpoint_that_unpacks_to_gigabytes_is_refused(tmp_path):
    torch.save({"a": torch.zeros(4)}, tmp_path / "good.pth")
    with zipfile.ZipFile(tmp_path / "good.pth") as archive:
        others = {name: archive.read(name) for name in archive.namelist() if not name.endswith("data/0")}
    zip_bomb(tmp_path / "w.pth", "good/data/0", b"", 4 * GIGABYTE - 2**24, others)
    with pytest.raises(WeightsError, match="unpacks to"):
        read_state_dict(tmp_path / "w.pth")


@pytest.mark.parametrize("size", [2**63 - 1, 2**32, ALWAYS_BYTES])
def test_a_header_that_promises_gigabytes_is_refused(tmp_path, size):
    file = zeros(tmp_path / "w.safetensors", 3 * GIGABYTE)
    with file.open("r+b") as stream:
        stream.write(size.to_bytes(8, "little") + b'{"a":')
    with pytest.raises(WeightsError, match="safetensors"):
        read_state_dict(file)


# Other files


def external(path, location):
    """Writes a network that reads its weights from another file."""
    proto = onnx.load(write_net(path))
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "432"}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("absolute", [True, False])
def test_networks_do_not_read_weights_from_elsewhere(tmp_path, absolute):
    secret = tmp_path / "secret"
    secret.write_bytes(np.ones(108, np.float32).tobytes())
    (tmp_path / "deep").mkdir()
    file = external(tmp_path / "deep" / "a.onnx", str(secret) if absolute else "../secret")
    with pytest.raises(ExportError, match="cannot run it"):
        onnx_format.run(file, torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize("name", ["../out.npy", "/tmp/edgecompress-out.npy", "a/../../../out.npy"])
def test_archives_of_images_write_nothing(here, name):
    """Names in an archive are no places on the disk."""
    folder = here / "deep"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy((2, 6, 8)) + bytes(96))
        archive.writestr(name, npy((2,)) + bytes(2))
    with contextlib.suppress(DataError):
        open_source(str(folder / "a.npz"), RAW_GREY)
    assert sorted(path.name for path in here.rglob("*")) == ["a.npz", "deep"]
    assert not Path("/tmp/edgecompress-out.npy").exists()


def test_archives_of_weights_write_nothing(here):
    folder = here / "deep"
    folder.mkdir()
    torch.save({"a": torch.zeros(4)}, here / "good.pth")
    with zipfile.ZipFile(here / "good.pth") as old, zipfile.ZipFile(folder / "w.pth", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.writestr("../../out", "out")
    with contextlib.suppress(WeightsError):
        read_state_dict(folder / "w.pth")
    assert sorted(path.name for path in here.rglob("*")) == ["deep", "good.pth", "w.pth"]


def test_idx_labels_of_another_form_are_refused(tmp_path):
    write_idx(tmp_path, "train", noise(3, 6, 8), [0, 1, 2], packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(noise(3, 6, 8)))
    with pytest.raises(DataError, match="one class index per image"):
        open_source(str(tmp_path), RAW_GREY)
