"""Sizes of a network on disk: each an artefact like any other, with its exported files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.elastic_results import ELASTIC_FILE, ElasticSize, SizeFigures
from edgecompress.core.results import ExportedFile, ExportResult
from edgecompress.core.store import read_record, write_record
from edgecompress.core.types import Plan
from edgecompress.errors import ArtefactError
from edgecompress.nets.artefact import save_artefact
from edgecompress.pipeline.conversion import AUTO, usable_converters
from edgecompress.pipeline.elastic_figures import offered_networks
from edgecompress.pipeline.elastic_job import Job
from edgecompress.pipeline.elastic_sizes import WantedSize
from edgecompress.pipeline.export import EXPORT_FILE, FORMATS, check_writable, chosen_formats, export
from edgecompress.pipeline.subject import EXPORTS
from edgecompress.search.contract import Choices


@dataclass(frozen=True)
class Files:
    """What is exported of every size, as for `export`."""

    formats: Sequence[str] = FORMATS
    precisions: Sequence[str] = ()
    converter: str = AUTO
    atol: float | None = None
    min_agreement: float | None = None
    dynamic_batch: bool = False
    calibration_images: int | None = None
    images: int | None = None


@dataclass(frozen=True)
class Cut:
    """The network of one size."""

    wanted: WantedSize
    choices: Choices
    module: nn.Module
    figures: SizeFigures


@dataclass(frozen=True)
class Places:
    """Where sizes are written, and where they will stand."""

    scratch: Path
    final: Path


def check_files(files: Files) -> None:
    """Finds out before the long work whether such files can be made.

    Raises:
        ConfigError: a format, precision or converter is not known, or they do not go together.
        MissingPackage: a converter is not installed.
    """
    for kind in chosen_formats(files.formats, files.precisions, dynamic_batch=files.dynamic_batch):
        usable_converters(kind, files.converter)


def check_place(directory: Path) -> None:
    """Makes sure that sizes can be written, and that nothing but sizes is replaced by them.

    Raises:
        ArtefactError: they cannot, or something else is there.
    """
    check_writable(directory)
    if directory.is_dir() and any(directory.iterdir()) and not (directory / ELASTIC_FILE).is_file():
        raise ArtefactError(
            f"{directory}: holds something else, which sizes would replace; give another --output"
        )


def write_sizes(
    job: Job, made: Sequence[Cut], whole: SizeFigures, files: Files, places: Places
) -> tuple[ElasticSize, ...]:
    """Writes the network every size is given, and its files; returns what is said of them.

    Raises:
        ExportError: a file does not compute what its network does.
    """
    by_name = {one.wanted.name: one for one in made}
    figures = {name: one.figures for name, one in by_name.items()}
    first: dict[str, Path] = {}  # where a network was written that is offered at several sizes
    rows = []
    for name, network in offered_networks([one.wanted for one in made], figures, whole).items():
        place, standing = places.scratch / name, by_name[network]
        if network in first:
            shutil.copytree(first[network], place)
        else:
            _write(job, standing, place, files)
            first[network] = place
        rows.append(_row(by_name[name], standing, _placed(place, places.final / name)))
    return tuple(rows)


def _write(job: Job, one: Cut, place: Path, files: Files) -> None:
    """Writes the artefact of a network and exports it."""
    place.mkdir()
    save_artefact(place, _plan(job, one.choices), one.module)
    export(
        str(place),
        formats=files.formats,
        precisions=files.precisions,
        converter=files.converter,
        dense=False,
        atol=files.atol,
        min_agreement=files.min_agreement,
        dynamic_batch=files.dynamic_batch,
        data=job.subject.data,
        report_data=job.subject.report_data,
        calibration_images=files.calibration_images,
        images=files.images,
        progress=job.progress,
    )


def _plan(job: Job, choices: Choices) -> Plan:
    plan, own = job.material.plan(choices, job.prepared.skipped), job.subject.plan
    kept = {"narrowings": own.narrowings, "attention_rewritten": own.attention_rewritten}
    return plan.model_copy(update=kept)


def _placed(place: Path, final: Path) -> tuple[ExportedFile, ...]:
    """Makes `export.json` name the directory it will stand in; returns its files."""
    file = place / EXPORTS / EXPORT_FILE
    told = read_record(file, ExportResult)
    write_record(file, told.model_copy(update={"directory": str(final / EXPORTS)}))
    return told.files


def _row(own: Cut, standing: Cut, files: tuple[ExportedFile, ...]) -> ElasticSize:
    return ElasticSize(
        name=own.wanted.name,
        budget=own.wanted.budget,
        found=own.figures,
        network=standing.wanted.name,
        offered=standing.figures,
        layers=len(standing.choices),
        files=files,
    )
