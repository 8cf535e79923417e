"""`edgecompress topology`: searches the cells of a network, builds and trains it, and writes a run."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from edgecompress.core.genotype import Genotype, code_of
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import ModelSummary
from edgecompress.core.runs import create_run
from edgecompress.core.store import write_record
from edgecompress.core.topology_results import CellLatency, TopologyResult
from edgecompress.core.types import ModelRef, Plan, Preprocess, Size
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.cell_edges import Stack
from edgecompress.nets.cell_networks import derived_network, inherit_
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.pipeline.topology_images import SearchImages, make_preprocess, read_images
from edgecompress.pipeline.topology_latency import CellClock, read_cell_clock
from edgecompress.pipeline.topology_options import (
    Cells,
    checked_cells,
    checked_gamma,
    checked_method,
    count_steps,
)
from edgecompress.search.cell_costs import network_parts, normalised, operation_costs, searched_parts
from edgecompress.search.cell_selection import select_cell
from edgecompress.search.topology import Searched, TopologySettings, search_topology, train_

GENOTYPE_FILE = "genotype.json"
RESULT_FILE = "topology.json"
LATENCY_FILE = "latency.json"
TRAIN_STEPS = 200

POOLS = "pools: no table has them; each counts as a depthwise convolution of its window, an estimate"
BLOCKED = "cell: `none` was likeliest on every way through it, so it was left out of the choice"
SUM = "predicted ms: the sum of operators by themselves, not calibrated on whole networks; measure with bench"


def topology(
    *,
    space: str = "darts",
    method: str = "rarts",
    operations: tuple[str, ...] = (),
    channels: int = 4,
    cells: int = 3,
    steps: int | None = None,
    epochs: int | None = None,
    batch_images: int = 32,
    train_steps: int = TRAIN_STEPS,
    data: str = "fashion-mnist",
    images: int | None = None,
    report_images: int | None = None,
    input_size: Size | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    latency_table: str | None = None,
    device: str | None = None,
    gamma: float | None = None,
    alpha_lr: float | None = None,
    max_skips: int | None = None,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> TopologyResult:
    """Searches the operations of cells, trains the network they make and writes the run.

    With a latency table, or a device to measure on, the search also minimises the expected milliseconds.
    The run can be loaded, exported and measured like one of `compress`.

    Raises:
        EdgeCompressError: an option, the data or the table is wrong. Nothing is written.
    """
    options = {k: v for k, v in locals().items() if k != "progress"}
    start = time.perf_counter()
    chosen = checked_cells(space, operations, channels, cells)
    preprocess = make_preprocess(input_size, mean, std)
    found = read_images(data, preprocess, images=images, report_images=report_images, seed=seed)
    settings = TopologySettings(
        method=checked_method(method),
        steps=count_steps(steps, epochs, found.per_half, batch_images),
        batch_images=batch_images,
        alpha_lr=alpha_lr,
        gamma=checked_gamma(gamma, latency_table or device),
    )
    job = _Job(chosen, settings, found, preprocess, train_steps, max_skips, seed, progress, start)
    with create_run(
        runs_dir,
        command="topology",
        name=name,
        options=options,
        seed=seed,
        inputs={found.splits.summary.source: found.splits.summary.sha256},
        overwrite=overwrite,
    ) as run:
        clock = _clock(job, latency_table, device)
        result, network = _searched(job, clock, run.path)
        save_artefact(run.directory, result.plan, network)
        write_record(run.directory / GENOTYPE_FILE, result.genotype)
        write_record(run.directory / RESULT_FILE, result)
        if clock is not None and clock.measured:
            write_record(run.directory / LATENCY_FILE, clock.new_table())
    return result


@dataclass(frozen=True)
class _Job:
    cells: Cells
    settings: TopologySettings
    images: SearchImages
    preprocess: Preprocess
    train_steps: int
    max_skips: int | None
    seed: int
    progress: Progress
    start: float

    @property
    def stack(self) -> Stack:
        channels = len(self.preprocess.mean)
        return Stack(self.cells.channels, self.cells.cells, channels, self.images.classes, affine=False)

    @property
    def image(self) -> tuple[int, int, int]:
        return (len(self.preprocess.mean), *self.preprocess.size)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start


def _clock(job: _Job, table: str | None, device: str | None) -> CellClock | None:
    if table is None and device is None:
        return None
    parts = searched_parts(job.cells.space, job.cells.operations, job.stack, job.image)
    return read_cell_clock(table, device, parts.values(), seed=job.seed, progress=job.progress)


def _searched(job: _Job, clock: CellClock | None, path: Path) -> tuple[TopologyResult, nn.Module]:
    """Returns what was found, and the network with its weights."""
    cells, seconds = job.cells, {"latencies": job.seconds}
    found = search_topology(
        cells.space,
        cells.operations,
        job.stack,
        job.images.halves,
        job.settings,
        costs=_costs(job, clock),
        seed=job.seed,
        progress=job.progress,
    )
    seconds["search"] = job.seconds - sum(seconds.values())
    genotype, said = _genotype(job, found)
    network = _trained(job, found, genotype)
    seconds["training"] = job.seconds - sum(seconds.values())
    summary = _summary(job, network)
    seconds["report"] = job.seconds - sum(seconds.values())
    tenth = max(1, len(found.losses) // 10)
    latency = _latency(job, clock, found, network)
    result = TopologyResult(
        run=str(path),
        method=job.settings.method,
        genotype=genotype,
        operations=cells.operations,
        probabilities=tuple(_rows(one) for one in found.alpha),
        skip_ratio=genotype.skip_ratio,
        steps=job.settings.steps,
        alpha_lr=job.settings.score_lr,
        first_loss=statistics.fmean(found.losses[:tenth]),
        last_loss=statistics.fmean(found.losses[-tenth:]),
        weights=_weights_from(job),
        network=summary,
        plan=Plan(model=_ref(job, genotype)),
        latency=latency,
        split=job.images.splits.summary,
        notes=(*said, *(() if latency is None else (POOLS, SUM))),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
    return result, network


def _costs(job: _Job, clock: CellClock | None) -> tuple[Tensor, ...] | None:
    if clock is None:
        return None
    space, operations = job.cells.space, job.cells.operations
    parts = searched_parts(space, operations, job.stack, job.image)
    return normalised(operation_costs(space, operations, job.cells.cells, parts, clock.ms))


def _genotype(job: _Job, found: Searched) -> tuple[Genotype, tuple[str, ...]]:
    """Returns the network found, and what should be said of it."""
    likeliest = _selected(job, found, without_none=False)
    if likeliest.lets_through:
        return likeliest, ()
    return _selected(job, found, without_none=True), (BLOCKED,)


def _selected(job: _Job, found: Searched, *, without_none: bool) -> Genotype:
    space, operations = job.cells.space, job.cells.operations
    cells = [
        select_cell(space, operations, alpha.softmax(-1), max_skips=job.max_skips, without_none=without_none)
        for alpha in found.alpha
    ]
    return Genotype(
        space=space,
        channels=job.cells.channels,
        cells=job.cells.cells,
        image=job.image,
        classes=job.images.classes,
        normal=cells[0],
        reduction=cells[1] if len(cells) > 1 else None,
    )


def _trained(job: _Job, found: Searched, genotype: Genotype) -> nn.Module:
    network = derived_network(genotype)
    inherit_(network, found.network, genotype, job.cells.operations)
    if job.train_steps:
        settings = replace(job.settings, steps=job.train_steps)
        train_(network, job.images.all, settings, seed=job.seed, progress=job.progress)
    return network.eval()


def _weights_from(job: _Job) -> str:
    trained = f"then trained for {job.train_steps} steps" if job.train_steps else "not trained on their own"
    return f"inherited from the search, {trained}"


def _summary(job: _Job, network: nn.Module) -> ModelSummary:
    rows, report = profile(network, job.image), job.images.splits.report
    size = batch_size(job.image)
    return ModelSummary(
        params=total_params(network),
        macs=total_macs(rows),
        weight_bytes=sum(row.weight_bytes for row in rows),
        accuracy=None
        if report is None
        else accuracy(network, report, size=size, progress=job.progress, what="of the network found"),
    )


def _latency(job: _Job, clock: CellClock | None, found: Searched, network: nn.Module) -> CellLatency | None:
    if clock is None or found.gamma is None:
        return None
    parts = network_parts(network, job.image)
    times = {name: clock.ms(part) for name, part in parts.items()}
    return CellLatency(
        table=clock.table,
        device=clock.heading.device,
        provenance=clock.heading.conditions.provenance,
        measured_now=len(clock.measured),
        gamma=found.gamma,
        predicted_ms=sum(times.values()),
        cells_ms=sum(ms for name, ms in times.items() if ".graph." in name),
    )


def _ref(job: _Job, genotype: Genotype) -> ModelRef:
    source = f"cells:{code_of(genotype)}"
    return ModelRef(source=source, classes=genotype.classes, preprocess=job.preprocess)


def _rows(alpha: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(value, 6) for value in row) for row in alpha.softmax(-1).tolist())
