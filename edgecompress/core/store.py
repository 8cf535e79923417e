"""Files and directories written whole or not at all, and read with a check."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from edgecompress.errors import ArtefactError

R = TypeVar("R", bound=BaseModel)
VERSIONS = ("schema_version", "format_version")
"""Fields that say of which version a record is."""
LARGEST_TEXT_BYTES = 64 * 2**20
"""Of a file of records, settings or labels: a table of ten thousand blocks has two megabytes, and what is
read takes many times its size in memory."""

_ENDLESS = re.compile(r"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{300}")
"""What a text with numbers that are not finite has somewhere; others may, too."""


def write_text(path: Path, text: str) -> None:
    """Writes a text file under a temporary name, then renames it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_record(path: Path, record: BaseModel, *, indent: int | None = 2) -> None:
    """Writes a record as JSON; without `indent` on one line, for records with very many values."""
    write_text(path, record.model_dump_json(indent=indent) + "\n")


def read_text(path: Path) -> str:
    """Returns the text of a file, of at most `LARGEST_TEXT_BYTES`: no more than that is ever read.

    Raises:
        OSError: it is missing, cannot be read or is larger.
        UnicodeDecodeError: it is not text.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_TEXT_BYTES + 1)
    except ValueError:  # a name with a zero byte, from another file
        raise OSError(errno.EINVAL, "that is no name of a file") from None
    if len(content) > LARGEST_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"larger than {LARGEST_TEXT_BYTES >> 20} MB; is it another kind of file?")
    return content.decode("utf-8")


def read_record(path: Path, kind: type[R]) -> R:
    """Reads a record written by `write_record`.

    Raises:
        ArtefactError: the file is missing, too large, is not JSON, does not fit `kind` or holds numbers that
            are not finite.
    """
    try:
        text = read_text(path)
        found = kind.model_validate_json(text)
        if _ENDLESS.search(text):
            json.loads(text, parse_float=_finite, parse_int=_finite, parse_constant=_finite, strict=False)
        return found
    except FileNotFoundError:
        raise ArtefactError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ArtefactError(f"{path}: not a text file") from None
    except ValidationError as error:
        raise ArtefactError(f"{path}: {_fault(error.errors()[0])}") from None
    except OverflowError as error:
        raise ArtefactError(f"{path}: {error}; was it edited?") from None


def _finite(number: str) -> float:
    """Raises OverflowError for a number of JSON that no number of a computer is; records never hold any."""
    value = float(number)
    if not math.isfinite(value):
        raise OverflowError(f"the number {number[:20]} is not a finite one")
    return value


def _fault(details: ErrorDetails) -> str:
    where = ".".join(str(part) for part in details["loc"])
    if where in VERSIONS and details["type"] == "literal_error":
        return (
            f"is of version {details['input']!r}, and this edgecompress reads {details['ctx']['expected']}; "
            "make the file again, or use the edgecompress that made it"
        )
    said = details["msg"].removeprefix("Value error, ").lower()
    return f"{where + ': ' if where else ''}{said}; was it edited or cut off?"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes that name, on failure it is removed."""
    with _blaming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _blaming(path):
            yield temporary
            _sync(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Says of an error of the file system which file could not be written."""
    try:
        yield
    except OSError as error:
        raise ArtefactError(f"{path}: could not be written: {error.strerror or error}") from None


def sweep_temporaries(path: Path) -> None:
    """Removes what processes that were killed while writing `path` left; nobody else may be writing it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if _is_of(path, left) and left.is_file():
            left.unlink(missing_ok=True)


def _is_of(path: Path, temporary: Path) -> bool:
    """Whether that is what we call something temporary that is to become `path`."""
    return bool(re.fullmatch(re.escape(f".{path.name}.") + "[a-z0-9_]{8}", temporary.name))


@contextlib.contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Waits until no other process is within this block for the same directory, which is made if need be.

    A process that is killed lets go by itself, and nothing is left behind: the directory itself is locked.

    Raises:
        ArtefactError: the directory cannot be made.
    """
    with _blaming(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks lock nothing; the rest is whole without it
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields an empty temporary directory beside `path`; on success it takes that name.

    Raises:
        ArtefactError: `path` exists and `replace` is false or it is a file, or the disk is full.
    """
    with _blaming(path):
        if path.exists() and not replace:
            raise ArtefactError(f"{path}: already exists; give another name or pass --overwrite")
        if path.exists() and not path.is_dir():
            raise ArtefactError(f"{path}: is a file, not a run to overwrite; give another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(one for one in path.parent.glob(f".{glob.escape(path.name)}.*") if _is_of(path, one))
        temporary, handle = held_directory(path.parent, f".{path.name}.")
    try:
        yield temporary
        with _blaming(path):
            _move_into_place(temporary, path, replace=replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


def held_directory(base: Path, prefix: str) -> tuple[Path, int]:
    """Makes a temporary directory that tells others that its process lives: it is locked until that ends.

    Returns it and the descriptor to close when it is no longer needed.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # taken for abandoned before it could be locked
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # being removed, for the same reason
            os.close(handle)
            continue
        except OSError:  # some network disks lock nothing; nothing is removed from them either
            return path, handle
        if path.is_dir():
            return path, handle
        os.close(handle)


def remove_abandoned(directories: Iterable[Path]) -> None:
    """Removes those whose process has ended without doing so, as a killed one does."""
    for path in directories:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone, no directory, or another user's
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # in use
            pass
        finally:
            os.close(handle)


def _move_into_place(temporary: Path, path: Path, *, replace: bool) -> None:
    temporary.chmod(0o755)
    for file in temporary.rglob("*"):
        if file.is_file():
            _sync(file)
    if path.exists() and replace:  # keep the old one until the new one stands
        old = path.with_name(f".{path.name}.old")
        _remove(old)
        path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise
        _remove(old)
    else:
        temporary.rename(path)


def _remove(directory: Path) -> None:
    """Removes a directory; of a link to one the link, never what it leads to."""
    if directory.is_symlink():
        directory.unlink()
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def to_json(value: BaseModel) -> str:
    """Returns the JSON a command prints with `--json`."""
    return json.dumps(value.model_dump(mode="json"), indent=2)
