"""`edgecompress export --sizes`: one network in several sizes, each an artefact with its exported files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.elastic_results import ELASTIC_FILE, SIZES, ElasticResult, ElasticSize, SizeFigures
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.store import new_directory, write_record
from edgecompress.core.types import Size
from edgecompress.errors import ConfigError
from edgecompress.pipeline.conversion import AUTO
from edgecompress.pipeline.elastic_figures import figures_of, score_name
from edgecompress.pipeline.elastic_files import (
    Cut,
    Files,
    Places,
    check_files,
    check_place,
    write_sizes,
)
from edgecompress.pipeline.elastic_job import Cutting, Job, prepare_job
from edgecompress.pipeline.elastic_sizes import parse_sizes, renew_norms_, size_of
from edgecompress.pipeline.elastic_subject import ElasticImages, Model, find_elastic
from edgecompress.pipeline.export import FORMATS
from edgecompress.pipeline.preparation import timed
from edgecompress.search.contract import Choices
from edgecompress.search.ranks import global_values
from edgecompress.train.truncation import Mode


def export_sizes(
    model: str | None,
    sizes: str,
    *,
    rank_selection: str | None = None,
    mode: str | None = None,
    layers: str | None = None,
    latency_table: str | None = None,
    norm_images: int | None = None,
    report_images: int | None = None,
    formats: Sequence[str] = FORMATS,
    precisions: Sequence[str] = (),
    converter: str = AUTO,
    atol: float | None = None,
    min_agreement: float | None = None,
    dynamic_batch: bool = False,
    data: str | None = None,
    report_data: str | None = None,
    calibration_images: int | None = None,
    images: int | None = None,
    weights: str | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
    output: Path | None = None,
    runs_dir: Path = Path("runs"),
    progress: Progress = NO_PROGRESS,
) -> ElasticResult:
    """Cuts a network to every size, renews its batch norms, compares the sizes, writes and exports them.

    Every size gets the network with the best score on the selection images of all that fit it, so of what is
    offered larger is never worse there. `sizes` in the run, or `output`, is replaced whole.

    Args:
        model: Path or name of a run (the latest when None), or a model source.
        sizes: `0.75,0.5`, shares of the MACs, or `12ms,8ms`.
        rank_selection: Of `edgecompress list rank-selections`; `global-values` when None.
        mode: How kernels are split, `channel` or `spatial`; as the network was trained when None.
        layers: To be cut: `paper`, `all` or patterns; all of networks trained for it when None.
        latency_table: For sizes in milliseconds: a file, or one we ship.
        norm_images: To renew batch norms with; 2048 when None, or two fifths of a small set.
        report_images: To report accuracy on; those of the training, or all, when None.
        formats: This and all below is as for `export_model`.
        precisions: Besides float32.
        converter: To TFLite.
        atol: Largest difference float32 outputs may have.
        min_agreement: Least share of images with the same answer in other precisions.
        dynamic_batch: ONNX files that take any number of images at a time.
        data: Images, when the run's or the model's own are not wanted.
        report_data: Other images to report on and compare with.
        calibration_images: For int8.
        images: To compare files on.
        weights: Checkpoint, for a model source; the three below too.
        input_size: Height and width.
        channels: Of the input.
        classes: Of the output.
        output: Directory for the sizes; `sizes` in the run when None.
        runs_dir: Where runs are kept.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option is wrong, a size cannot be reached, or a file does not compute what its
            network does; then nothing is written.
    """
    if mode not in (None, "channel", "spatial"):
        raise ConfigError(f"--mode {mode!r}: not understood; write channel or spatial")
    way: Mode | None = None if mode is None else "spatial" if mode == "spatial" else "channel"
    files = Files(
        formats, precisions, converter, atol, min_agreement, dynamic_batch, calibration_images, images
    )
    asked = _Asked(
        Model(model, runs_dir, weights, input_size, channels, classes),
        Cutting(rank_selection or global_values.ABSOLUTE.name, way, layers, latency_table),
        ElasticImages(data, report_data, norm_images, report_images),
        files,
        output,
    )
    return _made(sizes, asked, progress)


@dataclass(frozen=True)
class _Asked:
    model: Model
    cutting: Cutting
    images: ElasticImages
    files: Files
    output: Path | None


def _made(sizes: str, asked: _Asked, progress: Progress) -> ElasticResult:
    wanted, begun, seconds = parse_sizes(sizes), time.perf_counter(), dict[str, float]()
    check_files(asked.files)
    subject = find_elastic(asked.model, asked.images)
    directory = asked.output or subject.directory / SIZES
    check_place(directory)
    with timed(seconds, "ranks and factors"):
        job = prepare_job(subject, wanted, asked.cutting, asked.images, progress)
        cuts = {one.name: size_of(job.prepared, one, progress) for one in wanted}
    with timed(seconds, "batch norms"):
        norms = _renew_all_(job, cuts)
    with timed(seconds, "figures"):
        whole = figures_of(job, {}, subject.loaded.module, "whole")
        made = [Cut(one, *cuts[one.name], figures_of(job, *cuts[one.name], one.name)) for one in wanted]
    with new_directory(directory, replace=True) as scratch:
        with timed(seconds, "files"):
            rows = write_sizes(job, made, whole, asked.files, Places(scratch, directory))
        seconds["all"] = time.perf_counter() - begun
        result = _result(job, rows, whole, norms, directory, seconds)
        write_record(scratch / ELASTIC_FILE, result)
    return result


def _renew_all_(job: Job, cuts: Mapping[str, tuple[Choices, nn.Module]]) -> str | None:
    """Renews the norms of every network that was cut; a size of 1 is the network as it is."""
    shape, images = job.subject.loaded.ref.input_shape, job.norm_images
    how = None
    for choices, network in job.progress.track(list(cuts.values()), "renewing batch norms"):
        if choices:
            how = renew_norms_(network, images, shape)
    return how


def _result(
    job: Job,
    rows: tuple[ElasticSize, ...],
    whole: SizeFigures,
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
        layers=job.cutting.layers,
        rank_selection=job.cutting.rank_selection,
        score=score_name(job),
        full=whole,
        sizes=rows,
        norms=norms,
        norm_images=len(job.norm_images),
        latency_table=None if clock is None else str(clock.path),
        device=None if clock is None else clock.table.device,
        provenance=None if clock is None else clock.table.provenance,
        split=job.subject.splits.summary,
        skipped=(*job.material.unfit, *job.prepared.skipped),
        warnings=tuple(f"{what}: {text}" for what, text in job.material.warnings),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
