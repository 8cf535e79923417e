"""`edgecompress export --sizes`: one network in several sizes, each an artefact with its exported files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress import export as export_package
from edgecompress.core.elastic_results import ElasticResult, ElasticSize, SizeFigures
from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import ExportedFile, ExportResult
from edgecompress.core.store import new_directory, read_record, write_record
from edgecompress.core.types import Plan
from edgecompress.export.contract import Format
from edgecompress.nets.artefact import save_artefact
from edgecompress.pipeline.conversion import AUTO, usable_converters
from edgecompress.pipeline.elastic_figures import figures_of, offered_networks, score_name
from edgecompress.pipeline.elastic_job import Cutting, Job, prepare_job
from edgecompress.pipeline.elastic_sizes import WantedSize, cut_to, parse_sizes, renew_norms_
from edgecompress.pipeline.elastic_subject import ElasticImages, Model, find_elastic
from edgecompress.pipeline.export import EXPORT_FILE, FORMATS, export
from edgecompress.pipeline.preparation import timed
from edgecompress.pipeline.subject import EXPORTS
from edgecompress.search.contract import Choices

__all__ = ["Cutting", "ElasticImages", "Files", "Model", "export_sizes"]

SIZES, ELASTIC_FILE = "sizes", "elastic.json"


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


def export_sizes(
    model: Model,
    sizes: str,
    *,
    cutting: Cutting | None = None,
    images: ElasticImages | None = None,
    files: Files | None = None,
    output: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> ElasticResult:
    """Cuts a network to every size, renews its batch norms, compares the sizes, writes and exports them.

    A size whose network has a worse score on the selection images than a smaller one gets the smaller
    network: of what is offered, larger is never worse there. `sizes` in the run, or `output`, is replaced
    whole.

    Raises:
        EdgeCompressError: an option is wrong, a size cannot be reached, or a file does not compute what its
            network does; then nothing is written.
    """
    wanted, begun = parse_sizes(sizes), time.perf_counter()
    files, images = files or Files(), images or ElasticImages()
    _check_files(files)
    subject = find_elastic(model, images)
    directory, seconds = output or subject.directory / SIZES, dict[str, float]()
    with new_directory(directory, replace=True) as scratch:
        with timed(seconds, "ranks and factors"):
            job = prepare_job(subject, wanted, cutting or Cutting(), images, progress)
            cuts = {one.name: cut_to(job.prepared, one.budget, progress) for one in wanted}
        with timed(seconds, "batch norms"):
            norms = _renew_all_(job, cuts)
        with timed(seconds, "figures"):
            full = figures_of(job, {}, subject.loaded.module, "whole")
            made = [Cut(one, *cuts[one.name], figures_of(job, *cuts[one.name], one.name)) for one in wanted]
        with timed(seconds, "files"):
            rows = _written(job, made, files, scratch, directory)
        seconds["all"] = time.perf_counter() - begun
        result = _result(job, rows, full, norms, directory, seconds)
        write_record(scratch / ELASTIC_FILE, result)
    return result


def _check_files(files: Files) -> None:
    """Finds out before the long work whether files of these formats can be made.

    Raises:
        ConfigError: a format or converter is not known.
        MissingPackage: one is not installed.
    """
    known = discover(export_package, Format)
    for name in files.formats:
        usable_converters(pick(known, name, what="format"), files.converter)


def _renew_all_(job: Job, cuts: Mapping[str, tuple[Choices, nn.Module]]) -> str | None:
    """Renews the norms of every network that was cut; a size of 1 is the network as it is."""
    shape, images = job.subject.loaded.ref.input_shape, job.norm_images
    how = None
    for choices, network in job.progress.track(list(cuts.values()), "renewing batch norms"):
        if choices:
            how = renew_norms_(network, images, shape)
    return how


def _written(
    job: Job, made: Sequence[Cut], files: Files, scratch: Path, directory: Path
) -> tuple[ElasticSize, ...]:
    """Writes the artefact of every size and its files; returns what is said of them."""
    stands = offered_networks({one.wanted.name: one.figures for one in made})
    by_name = {one.wanted.name: one for one in made}
    exported: dict[str, tuple[ExportedFile, ...]] = {}
    for name in dict.fromkeys(stands.values()):
        place = scratch / name
        place.mkdir()
        save_artefact(place, _plan(job, by_name[name].choices), by_name[name].module)
        exported[name] = _exported(job, place, directory / name, files)
    for name, network in stands.items():
        if name != network:
            _copy(scratch / network, scratch / name, directory / name)
    return tuple(_row(one, by_name[stands[one.wanted.name]], exported) for one in made)


def _plan(job: Job, choices: Choices) -> Plan:
    plan = job.material.plan(choices, job.prepared.skipped)
    own = job.subject.plan
    kept = {"narrowings": own.narrowings, "attention_rewritten": own.attention_rewritten}
    return plan.model_copy(update=kept)


def _exported(job: Job, place: Path, final: Path, files: Files) -> tuple[ExportedFile, ...]:
    found = export(
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
    _tell_place(place, final)
    return found.files


def _copy(source: Path, place: Path, final: Path) -> None:
    shutil.copytree(source, place)
    _tell_place(place, final)


def _tell_place(place: Path, final: Path) -> None:
    """Makes `export.json` name the directory it will stand in."""
    file = place / EXPORTS / EXPORT_FILE
    told = read_record(file, ExportResult)
    write_record(file, told.model_copy(update={"directory": str(final / EXPORTS)}))


def _row(own: Cut, standing: Cut, exported: Mapping[str, tuple[ExportedFile, ...]]) -> ElasticSize:
    return ElasticSize(
        name=own.wanted.name,
        budget=own.wanted.budget,
        found=own.figures,
        network=standing.wanted.name,
        offered=standing.figures,
        layers=len(standing.choices),
        files=exported[standing.wanted.name],
    )


def _result(
    job: Job,
    rows: tuple[ElasticSize, ...],
    full: SizeFigures,
    norms: str | None,
    directory: Path,
    seconds: Mapping[str, float],
) -> ElasticResult:
    clock = job.clock
    return ElasticResult(
        directory=str(directory),
        model=job.subject.loaded.ref,
        trained=job.subject.method,
        mode=job.mode,
        rank_selection=job.cutting.rank_selection,
        score=score_name(job),
        full=full,
        sizes=rows,
        norms=norms,
        norm_images=len(job.norm_images),
        latency_table=None if clock is None else str(clock.path),
        device=None if clock is None else clock.table.device,
        split=job.subject.splits.summary,
        skipped=(*job.material.unfit, *job.prepared.skipped),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
