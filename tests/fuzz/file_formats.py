"""Binary files: checkpoints, images in every form, exported networks."""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench_files import FILES
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from image_files import RAW_CIFAR, RAW_GREY, RAW_RGB, idx_bytes, noise, save_png
from onnx_files import write_net
from PIL import Image
from safetensors.torch import save

from edgecompress.core.store import write_record
from edgecompress.data.sources import open_source
from edgecompress.devices.tflite_contents import read_contents
from edgecompress.export import onnx_format
from edgecompress.latency.tflite_graph import read_graph
from edgecompress.nets.artefact import PLAN_FILE, WEIGHTS_FILE, load
from edgecompress.nets.weights import load_weights_, read_state_dict
from fuzz.contract import Format
from fuzz.edits import damaged_bytes, damaged_text, damaged_tree
from fuzz.good_records import PLAN, dense_net, write_artefact
from fuzz.own_formats import edited_header

Bytes = SearchStrategy[bytes]


def _damaged(make: Callable[[], bytes], *, most: int = 6) -> Callable[[], Bytes]:
    return lambda: damaged_bytes(make(), most=most)


# Checkpoints


def _state() -> dict[str, torch.Tensor]:
    return dense_net().state_dict()


@functools.cache
def _safetensors() -> bytes:
    return save(_state(), metadata={"epoch": "3"})


def _checkpoints() -> Bytes:
    return st.one_of(damaged_bytes(_safetensors()), edited_header(_safetensors()))


@functools.cache
def _pickled(zipped: bool) -> bytes:
    stream = io.BytesIO()
    content = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in _state().items()}}
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


@st.composite
def _edited_archive(draw: DrawFn) -> bytes:
    """Damages one file within the archive torch writes, and packs it anew, now and then compressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_pickled(True))) as old, zipfile.ZipFile(stream, "w") as new:
        names = old.namelist()
        chosen = draw(st.sampled_from([*names, *[one for one in names if one.endswith("data.pkl")] * 8]))
        packing = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
        for name in names:
            content = draw(damaged_bytes(old.read(name))) if name == chosen else old.read(name)
            new.writestr(name, content, compress_type=packing)
    return stream.getvalue()


def _read_weights(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        read_state_dict(folder / name)
        load_weights_(dense_net(), folder / name)

    return read


def _read_artefact(folder: Path) -> None:
    load(folder, model=dense_net())


@functools.cache
def _artefact_weights() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        write_artefact(Path(name))
        return (Path(name) / WEIGHTS_FILE).read_bytes()


def _write_plan(folder: Path) -> None:
    write_record(folder / PLAN_FILE, PLAN)


# Images


@functools.cache
def _picture(kind: str) -> bytes:
    stream = io.BytesIO()
    mode = "P" if kind == "GIF" else "RGB"
    Image.fromarray(noise(6, 8, 3)).convert(mode).save(stream, kind)
    return stream.getvalue()


@functools.cache
def _deflated_tiff() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(noise(6, 8, 3)).save(stream, "TIFF", compression="tiff_deflate")
    return stream.getvalue()


@st.composite
def _edited_png(draw: DrawFn) -> bytes:
    """Damages the content of a chunk and makes its checksum fit."""
    content = _picture("PNG")
    chunks, at = [], 8
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    chosen = draw(st.integers(0, len(chunks) - 1))
    name, data = chunks[chosen]
    chunks[chosen] = (
        draw(st.sampled_from([name, b"tRNS", b"PLTE", b"iTXt"])),
        draw(damaged_bytes(data or b"a")),
    )
    return content[:8] + b"".join(_chunk(*one) for one in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    import zlib

    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _pictures(kind: str) -> Callable[[], Bytes]:
    if kind == "PNG":
        return lambda: st.one_of(_edited_png(), damaged_bytes(_picture(kind)))
    if kind == "TIFF":
        return lambda: st.one_of(damaged_bytes(_picture(kind)), damaged_bytes(_deflated_tiff()))
    return lambda: damaged_bytes(_picture(kind))


def _read_pictures(folder: Path) -> None:
    source = open_source(f"folder:{folder / 'all'}", RAW_RGB)
    assert source.pool is not None
    source.pool.images([0])


def _picture_format(kind: str, suffix: str) -> Format:
    return Format(f"image-{suffix}", f"all/a.{suffix}", _pictures(kind), _read_pictures, weight=0.6, quick=10)


def _labels() -> Bytes:
    return damaged_text("a.png 0\nb.png 1\nc d.png 2\n").map(lambda text: text.encode(errors="surrogatepass"))


def _write_pictures(folder: Path) -> None:
    for name in ("a.png", "b.png", "c d.png"):
        save_png(folder / "all" / name, noise(6, 8, 3))


def _read_labelled(folder: Path) -> None:
    pool = open_source(f"folder:{folder / 'all'}", RAW_RGB).pool
    assert pool is not None
    pool.labels(), pool.images(range(len(pool)))


@functools.cache
def _npz(packed: bool) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, x=noise(3, 6, 8), y=np.array([0, 1, 2]))
    return stream.getvalue()


@st.composite
def _edited_npz(draw: DrawFn) -> bytes:
    """Damages an array within an archive and packs it anew."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_npz(False))) as old, zipfile.ZipFile(stream, "w") as new:
        chosen = draw(st.sampled_from(old.namelist()))
        for name in old.namelist():
            content = old.read(name)
            if name == chosen:
                content = draw(damaged_bytes(content[:128])) + content[128:]
            new.writestr(name, content, compress_type=draw(st.sampled_from([0, 8])))
    return stream.getvalue()


def _read_npz(folder: Path) -> None:
    source = open_source(str(folder / "a.npz"), RAW_GREY)
    pool = source.pool or source.train
    assert pool is not None
    pool.images([0])


def _idx() -> bytes:
    return idx_bytes(noise(3, 6, 8))


def _write_idx_labels(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 1, 2], dtype=np.uint8)))


def _read_idx(folder: Path) -> None:
    pool = open_source(f"idx:{folder}", RAW_GREY).pool
    assert pool is not None
    pool.images([0])


@functools.cache
def _cifar_png() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(noise(2, 1024, 3)).save(stream, "PNG")
    return stream.getvalue()


def _read_cifar(kind: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        pool = open_source(f"{kind}:{folder}", RAW_CIFAR).pool
        assert pool is not None
        pool.images([0])

    return read


def _write_cifar(name: str, content: Callable[[], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content()) and None


def _cifar_labels() -> Bytes:
    return st.one_of(
        damaged_bytes(b"[1, 2]"), damaged_tree([1, 2]).map(lambda tree: json.dumps(tree).encode())
    )


# Exported networks


def _read_tflite(folder: Path) -> None:
    read_contents(folder / "a.tflite")
    read_graph(folder / "a.tflite", seed=0)


@functools.cache
def _onnx() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        return write_net(Path(name) / "a.onnx").read_bytes()


def _tflite() -> Bytes:
    return st.sampled_from([path.read_bytes() for path in sorted(FILES.glob("*.tflite"))]).flatmap(
        damaged_bytes
    )


FORMATS = (
    Format(
        "checkpoint-safetensors", "w.safetensors", _checkpoints, _read_weights("w.safetensors"), weight=1.5
    ),
    Format(
        "checkpoint-pth",
        "w.pth",
        lambda: st.one_of(damaged_bytes(_pickled(True)), _edited_archive()),
        _read_weights("w.pth"),
    ),
    Format(
        "checkpoint-pth-old",
        "w.pth",
        lambda: damaged_bytes(_pickled(False)),
        _read_weights("w.pth"),
        weight=1,
    ),
    Format("artefact-weights", WEIGHTS_FILE, _damaged(_artefact_weights), _read_artefact, _write_plan),
    _picture_format("PNG", "png"),
    _picture_format("JPEG", "jpg"),
    _picture_format("BMP", "bmp"),
    _picture_format("GIF", "gif"),
    _picture_format("WEBP", "webp"),
    _picture_format("TIFF", "tif"),
    _picture_format("PPM", "ppm"),
    Format("labels.txt", "all/labels.txt", _labels, _read_labelled, _write_pictures, weight=0.5),
    Format(
        "npz",
        "a.npz",
        lambda: st.one_of(damaged_bytes(_npz(True)), damaged_bytes(_npz(False)), _edited_npz()),
        _read_npz,
    ),
    Format("idx", "train-images-idx3-ubyte", _damaged(_idx), _read_idx, _write_idx_labels, weight=0.7),
    Format(
        "idx-gz",
        "train-images-idx3-ubyte.gz",
        lambda: st.one_of(damaged_bytes(gzip.compress(_idx())), damaged_bytes(_idx()).map(gzip.compress)),
        _read_idx,
        _write_idx_labels,
        weight=0.5,
    ),
    Format(
        "cifar-binary",
        "test_batch.bin",
        _damaged(lambda: noise(2 * 3073).tobytes()),
        _read_cifar("cifar-binary"),
        weight=0.5,
    ),
    Format(
        "cifar-png",
        "test_batch.png",
        _damaged(_cifar_png),
        _read_cifar("cifar-png"),
        _write_cifar("test_lables.json", lambda: b"[1, 2]"),
        weight=0.3,
    ),
    Format(
        "cifar-labels",
        "test_lables.json",
        _cifar_labels,
        _read_cifar("cifar-png"),
        _write_cifar("test_batch.png", _cifar_png),
        weight=0.3,
    ),
    Format("tflite", "a.tflite", _tflite, _read_tflite, weight=2, quick=30),
    Format("onnx", "a.onnx", _damaged(_onnx), lambda f: onnx_format.inspect(f / "a.onnx"), weight=1.5),
)
