"""Small files that unpack to gigabytes, made in milliseconds."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

BLOCK = 16 * 2**20


def deflated(start: bytes, zeros: int, *, wbits: int) -> bytes:
    """Returns `start` and so many zeros packed; blocks of zeros are packed once and repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (zeros // BLOCK) + packer.flush(zlib.Z_FINISH)


def gzip_bomb(path: Path, start: bytes, zeros: int) -> Path:
    """Writes a .gz file; its checksum is wrong, as nobody should get that far."""
    path.write_bytes(deflated(start, zeros, wbits=31))
    return path


def zip_bomb(path: Path, name: str, start: bytes, zeros: int, others: dict[str, bytes] | None = None) -> Path:
    """Writes an archive in which `name` unpacks to `start` and so many zeros."""
    packed = deflated(start, zeros, wbits=-15)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for other, content in (others or {}).items():
            archive.writestr(other, content)
        archive.writestr(name, packed)  # as if it was stored; what is said of it is changed below
        info = archive.getinfo(name)
        at, size = info.header_offset, len(start) + zeros
        archive.filelist[-1].compress_type = zipfile.ZIP_DEFLATED
        archive.filelist[-1].file_size = size
    content = bytearray(stream.getvalue())
    content[at + 8 : at + 10] = struct.pack("<H", zipfile.ZIP_DEFLATED)
    content[at + 22 : at + 26] = struct.pack("<I", size & 0xFFFFFFFF)
    path.write_bytes(content)
    return path


def png_bomb(path: Path, width: int, height: int) -> Path:
    """Writes an empty picture of that size, one bit per pixel."""
    row = 1 + (width + 7) // 8
    packed = deflated(b"", (row * height + BLOCK) // BLOCK * BLOCK, wbits=15)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in chunks
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path
