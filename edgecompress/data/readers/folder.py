"""A directory of image files, labelled by sub-folders, by `labels.txt` or not at all.

DIR/<class>/*.jpg           the class index is the position among the sorted folder names
DIR/labels.txt              lines `file class-index`; files that are not listed are left out
DIR/*.jpg                   no labels: good for calibration only
DIR/train/..., DIR/test/... each in one of the forms above; `val` where there is no `test`
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgecompress.core.store import read_text
from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import FileSet
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

LABELS = "labels.txt"
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_PARTS = {"train", "val", "test"}


def open_folder(path: str, preprocess: Preprocess) -> Source:
    """Opens a directory in any of the forms above.

    Raises:
        DataError: it is missing or holds no images, its labels are wrong, or its forms are mixed.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise DataError(f"{path}: there is no such directory")
    parts = _parts(directory)
    if not parts:
        return Source(path, pool=_open_part(directory, preprocess))
    held_out = parts.get("test", parts.get("val"))
    train = _open_part(parts["train"], preprocess) if "train" in parts else None
    test = _open_part(held_out, preprocess) if held_out else None
    _check_same_classes(parts.get("train"), held_out)
    return divided(path, train, test)


def _parts(directory: Path) -> dict[str, Path]:
    """Returns the sub-folders when they are a division, nothing when they are classes."""
    folders = {folder.name: folder for folder in _folders(directory)}
    return folders if folders.keys() <= _PARTS and not (directory / LABELS).is_file() else {}


def _check_same_classes(train: Path | None, test: Path | None) -> None:
    if train is None or test is None:
        return
    names = [{folder.name for folder in _folders(part)} for part in (train, test)]
    if all(names) and names[0] != names[1]:
        odd = ", ".join(sorted(names[0] ^ names[1])[:3])
        raise DataError(f"{train.parent}: {train.name} and {test.name} do not have the same classes: {odd}")


def _open_part(directory: Path, preprocess: Preprocess) -> FileSet:
    if (directory / LABELS).is_file():
        return _open_listed(directory, preprocess)
    folders, files = _folders(directory), _image_files(directory)
    if folders and files:
        raise DataError(
            f"{directory}: images both beside and inside sub-folders; move them or write {LABELS}"
        )
    if folders:
        return _open_classes(directory, folders, preprocess)
    if not files:
        raise DataError(f"{directory}: no images found; looked for {' '.join(sorted(SUFFIXES))}")
    return FileSet(str(directory), files, None, preprocess)


def _open_classes(directory: Path, folders: list[Path], preprocess: Preprocess) -> FileSet:
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        inside = _image_files(folder)
        if not inside:
            raise DataError(f"{folder}: a class folder without images; fill or remove it")
        files += inside
        labels += [label] * len(inside)
    return FileSet(str(directory), files, labels, preprocess, classes=len(folders))


def _open_listed(directory: Path, preprocess: Preprocess) -> FileSet:
    listed: dict[Path, int] = {}
    source = directory / LABELS
    for number, line in enumerate(_read_lines(source), start=1):
        if not line.strip():
            continue
        file, label = _parse_line(line, where=f"{source}, line {number}")
        if directory / file in listed:
            raise DataError(f"{source}, line {number}: {file!r} is listed twice")
        if not os.path.isfile(directory / file):  # noqa: PTH113  Path's own raises for names that are too long
            raise DataError(f"{source}, line {number}: there is no file {file!r}")
        listed[directory / file] = label
    if not listed:
        raise DataError(f"{source}: no images are listed; lines are `file class-index`")
    return FileSet(str(directory), list(listed), list(listed.values()), preprocess)


def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from None


def _parse_line(line: str, *, where: str) -> tuple[str, int]:
    fields = line.rsplit(maxsplit=1)
    if len(fields) != 2 or not re.fullmatch(r"[0-9]{1,9}", fields[1]):
        raise DataError(f"{where}: {line.strip()!r} is not `file class-index`")
    return fields[0].strip(), int(fields[1])


def _folders(directory: Path) -> list[Path]:
    return sorted(item for item in directory.iterdir() if item.is_dir() and not item.name.startswith("."))


def _image_files(directory: Path) -> list[Path]:
    """Returns the images right here; dot files are thumbnails and copies that systems leave behind."""
    return sorted(
        item
        for item in directory.iterdir()
        if item.suffix.lower() in SUFFIXES and not item.name.startswith(".") and item.is_file()
    )


def _matches(spec: str) -> bool:
    return Path(spec).is_dir()


READER = Reader(
    "folder",
    "a directory of images in class folders, with labels.txt or unlabelled; perhaps under train/ and test/",
    _matches,
    open_folder,
    general=True,
)
