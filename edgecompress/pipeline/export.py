"""`edgecompress export`: writes networks as ONNX and TFLite and proves that the files compute the same."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress import export as package
from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import ExportedFile, ExportResult, ParityResult
from edgecompress.core.runs import installed_versions
from edgecompress.core.store import (
    locked_directory,
    read_record,
    replacing,
    sha256_of,
    sweep_temporaries,
    write_record,
)
from edgecompress.core.types import ModelRef, Size
from edgecompress.errors import ArtefactError, ConfigError
from edgecompress.export.contract import Converter, Format
from edgecompress.export.parity import LIMITS, Limits, check_parity, outputs
from edgecompress.factors.rounding import round_weights_
from edgecompress.nets.equalise import equalise_pairs_
from edgecompress.nets.export_ready import export_ready
from edgecompress.pipeline.conversion import AUTO, Task, convert_best, usable_converters
from edgecompress.pipeline.subject import Images, Subject, find_images, find_subject

EXPORT_FILE = "export.json"
FORMATS = ("onnx", "tflite")
_BATCH = 16


def export(
    model: str | None = None,
    *,
    formats: Sequence[str] = FORMATS,
    precisions: Sequence[str] = (),
    converter: str = AUTO,
    dense: bool = True,
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
) -> ExportResult:
    """Writes a run (the latest when None) or a model source as files of other runtimes.

    float32 files are always written, those of `precisions` (`fp16`, `int8`) besides. Every file is
    read back and compared with the network on images; `export.json` beside them says how close it is.

    Args:
        model: Path or name of a run, or a model source as for `compress`.
        formats: Of `edgecompress list formats`.
        precisions: Besides float32.
        converter: To TFLite; `auto` tries all that are installed and keeps the right and fastest.
        dense: Export the network a run started from as well.
        atol: Largest difference float32 outputs may have; 1e-4 of the largest output when None.
        min_agreement: Least share of images with the same answer in other precisions.
        dynamic_batch: ONNX files that take any number of images at a time.
        data: Images, when the run's or the model's own are not wanted.
        report_data: Other images to compare on.
        calibration_images: For int8; 256, or two fifths of a small set.
        images: To compare on; 200, or two fifths of a small set.
        weights: Checkpoint, for a model source; the three below too.
        input_size: Height and width.
        channels: Of the input.
        classes: Of the output.
        output: Directory for the files; `exports` in the run when None.
        runs_dir: Where runs are kept.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option is wrong, a network cannot be converted, or a file does not
            compute what its network does; then nothing is written.
    """
    others = tuple(name for name in dict.fromkeys(precisions) if name != "fp32")
    kinds = chosen_formats(formats, others, dynamic_batch=dynamic_batch)
    chosen = {kind.name: usable_converters(kind, converter) for kind in kinds}
    subject = find_subject(
        model,
        runs_dir=runs_dir,
        dense=dense,
        weights=weights,
        input_size=input_size,
        channels=channels,
        classes=classes,
    )
    shown = find_images(
        subject,
        data=data,
        report_data=report_data,
        calibrating="int8" in others,
        calibration=calibration_images,
        parity=images,
    )
    directory = output or subject.directory
    check_writable(directory)
    limits = _limits(atol, min_agreement)
    with tempfile.TemporaryDirectory() as scratch:
        job = _Job(subject, shown, kinds, chosen, others, limits, dynamic_batch, Path(scratch), progress)
        files = [file for name in subject.networks for file in _exported(job, name)]
        with locked_directory(directory):  # two exports at once: each file fits what is said of it
            _place(Path(scratch), directory, files)
            return _recorded(subject, directory, files, shown)


@dataclass(frozen=True)
class _Job:
    subject: Subject
    images: Images
    formats: tuple[Format, ...]
    converters: dict[str, tuple[Converter, ...]]
    precisions: tuple[str, ...]
    limits: dict[str, Limits]
    any_batch: bool
    scratch: Path
    progress: Progress


def chosen_formats(
    names: Sequence[str], precisions: Sequence[str], *, dynamic_batch: bool
) -> tuple[Format, ...]:
    """Returns the formats of these names.

    Raises:
        ConfigError: there is no such format, or it does not go with the precisions or any batch.
    """
    known = discover(package, Format)
    kinds = tuple(pick(known, name, what="format") for name in dict.fromkeys(names))
    if not kinds:
        raise ConfigError(f"no format is given; known are: {', '.join(sorted(known))}")
    for kind in kinds:
        for precision in precisions:
            if precision not in kind.recode:
                can = ", ".join(("fp32", *kind.recode))
                raise ConfigError(f"precision {precision!r}: {kind.name} files can be: {can}")
    if dynamic_batch and any(kind.name != "onnx" for kind in kinds):
        raise ConfigError("--dynamic-batch: TFLite files take one image at a time; use it with --onnx only")
    if dynamic_batch and precisions:
        raise ConfigError("--dynamic-batch: goes with float32 only; leave out --fp16 and --int8")
    return kinds


def _limits(atol: float | None, min_agreement: float | None) -> dict[str, Limits]:
    limits = dict(LIMITS)
    if atol is not None:
        limits["fp32"] = Limits(atol=atol)
    if min_agreement is not None:
        for name in set(limits) - {"fp32"}:
            limits[name] = Limits(rtol=limits[name].rtol, agreement=min_agreement)
    return limits


def check_writable(directory: Path) -> None:
    """Finds out before the long work whether files can be written, and leaves no trace of that.

    Raises:
        ArtefactError: they cannot.
    """
    try:
        new = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        for each in new:
            each.rmdir()
    except OSError as error:
        problem = error.strerror or error
        raise ArtefactError(f"{directory}: cannot be written to: {problem}; give another --output") from None


@dataclass(frozen=True)
class _Network:
    name: str
    ready: nn.Module
    rounded: nn.Module | None
    """The same with its weights on the grid of int8, where that was asked for."""
    expected: Tensor
    """Outputs of the original for the images compared on."""


def _exported(job: _Job, name: str) -> list[ExportedFile]:
    """Writes one network in all formats and precisions into the scratch directory."""
    network = _prepared(job, name)
    return [file for kind in job.formats for file in _in_format(job, network, kind)]


def _prepared(job: _Job, name: str) -> _Network:
    original = job.subject.networks[name]
    ready = export_ready(original, job.subject.ref.input_shape)
    rounded = None
    if "int8" in job.precisions:
        batches = torch.split(job.images.calibration, _BATCH)
        equalise_pairs_(ready, batches)  # exact in float, so the float files may have it too
        rounded = copy.deepcopy(ready)
        round_weights_(rounded, job.progress.track(batches, f"rounding the weights of {name}"))
    return _Network(name, ready, rounded, outputs(original, job.images.parity))


def _in_format(job: _Job, network: _Network, kind: Format) -> list[ExportedFile]:
    start, compared = time.perf_counter(), job.images.parity
    shape, limits = job.subject.ref.input_shape, job.limits["fp32"]
    task = Task(network.ready, shape, kind, job.any_batch, compared, network.expected, limits)
    best = convert_best(task, job.converters[kind.name], job.scratch, network.name, job.progress)
    file = job.scratch / best.file.name
    shutil.move(best.file, file)
    made = _Made(network.name, kind, best.converter, (*best.notes, *_doubts(network.expected)))
    found = [_described(made, file, "fp32", best.parity, start)]
    for precision in job.progress.track(job.precisions, f"writing {network.name} in other precisions"):
        found.append(_in_precision(job, network, made, file, precision))
    return found


def _in_precision(job: _Job, network: _Network, made: _Made, file: Path, precision: str) -> ExportedFile:
    start, kind = time.perf_counter(), made.format
    other = job.scratch / f"{network.name}.{precision}{kind.suffix}"
    if precision == "int8":
        kind.recode[precision](_rounded_file(job, network, made), other, job.images.calibration)
    else:
        kind.recode[precision](file, other, None)
    limits = job.limits[precision]
    parity = check_parity(kind, other, network.expected, job.images.parity, limits=limits)
    return _described(made, other, precision, parity, start)


def _rounded_file(job: _Job, network: _Network, made: _Made) -> Path:
    """Writes the network with rounded weights in float32, as the int8 file starts from it."""
    assert network.rounded is not None  # int8 was asked for
    (converter,) = (one for one in job.converters[made.format.name] if one.name == made.converter)
    file = job.scratch / f"{network.name}.rounded{made.format.suffix}"
    converter.convert(network.rounded, job.subject.ref.input_shape, file, False)
    return file


def _doubts(expected: Tensor) -> tuple[str, ...]:
    """Returns why equal outputs would prove little."""
    if float(expected.abs().max()) == 0:
        return ("the network answers 0 to everything, so the comparison proves nothing; give it weights",)
    return ()


@dataclass(frozen=True)
class _Made:
    network: str
    format: Format
    converter: str
    notes: tuple[str, ...]


def _described(made: _Made, file: Path, precision: str, parity: ParityResult, start: float) -> ExportedFile:
    return ExportedFile(
        file=file.name,
        network=made.network,
        format=made.format.name,
        precision=precision,
        converter=made.converter,
        layout=made.format.layout,
        size_bytes=file.stat().st_size,
        sha256=sha256_of(file),
        parity=parity.model_copy(update={"file": file.name}),
        graph=made.format.inspect(file),
        notes=made.notes if precision == "fp32" else (),
        seconds=round(time.perf_counter() - start, 3),
    )


def _place(scratch: Path, directory: Path, files: Sequence[ExportedFile]) -> None:
    for one in files:
        sweep_temporaries(directory / one.file)
        with replacing(directory / one.file) as temporary:
            shutil.copyfile(scratch / one.file, temporary)


def _recorded(
    subject: Subject, directory: Path, files: Sequence[ExportedFile], images: Images
) -> ExportResult:
    """Writes `export.json`; files of an earlier export of the same model stay in it."""
    old, new = _earlier(subject.ref, directory), {one.file for one in files}
    kept = (
        [] if old is None else [one for one in old.files if one.file not in new and _stands(one, directory)]
    )
    calibrated = images.calibration_from
    result = ExportResult(
        directory=str(directory),
        model=subject.ref,
        files=(*kept, *files),
        parity_images=images.parity_from,
        calibration_images=calibrated or (old.calibration_images if old and kept else None),
        versions=installed_versions(),
        warnings=subject.warnings,
    )
    sweep_temporaries(directory / EXPORT_FILE)
    write_record(directory / EXPORT_FILE, result)
    return result.model_copy(update={"files": tuple(files), "calibration_images": calibrated})


def _earlier(ref: ModelRef, directory: Path) -> ExportResult | None:
    try:
        old = read_record(directory / EXPORT_FILE, ExportResult)
    except ArtefactError:  # none, or of another version: the new one takes its place
        return None
    return old if old.model == ref else None


def _stands(one: ExportedFile, directory: Path) -> bool:
    file = directory / one.file
    return file.is_file() and sha256_of(file) == one.sha256
