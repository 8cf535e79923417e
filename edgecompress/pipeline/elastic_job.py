"""The options of `export --sizes`, understood: which layers are cut, by what rule, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgecompress.core.progress import Progress
from edgecompress.core.types import Layer, Metric
from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError
from edgecompress.nets.modules import find_layers
from edgecompress.pipeline.elastic_sizes import Sizing, WantedSize, prepare_sizes
from edgecompress.pipeline.elastic_subject import ElasticImages, ElasticSubject
from edgecompress.pipeline.latency_costs import Clock, read_clock
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Prepared, Setting
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search.contract import Costs, shape_costs
from edgecompress.train.truncation import Mode


@dataclass(frozen=True)
class Cutting:
    """How sizes are made; None: as the network was trained."""

    rank_selection: str = "global-values"
    mode: Mode | None = None
    layers: str | None = None
    latency_table: str | None = None


@dataclass(frozen=True)
class Job:
    """Everything all sizes have in common."""

    subject: ElasticSubject
    cutting: Cutting
    mode: Mode
    norm_images: Split
    material: Material
    clock: Clock | None
    prepared: Prepared
    progress: Progress


def prepare_job(
    subject: ElasticSubject,
    wanted: Sequence[WantedSize],
    cutting: Cutting,
    images: ElasticImages,
    progress: Progress,
) -> Job:
    """Finds the layers to cut and what each of their ranks costs.

    Raises:
        ConfigError: milliseconds are asked for without a table that fits, or no layer can be cut.
    """
    _check(subject, wanted, cutting)
    loaded = subject.loaded
    names = chosen_layers(loaded, cutting.layers or subject.usual_layers)
    layers, unfit = find_layers(loaded.module, names, loaded.ref.input_shape)
    clock, unknown = None, tuple[Layer, ...]()
    if cutting.latency_table is not None:
        clock = read_clock(cutting.latency_table, loaded, () if cutting.layers is None else layers)
        layers, unknown = _timed_and_others(layers, clock)
    unfit += tuple((one.name, "the latency table does not have it") for one in unknown)
    material = Material(loaded, layers, unfit, subject.splits)
    costs: dict[Metric, Costs] = shape_costs(material.totals)
    if clock is not None:
        costs["ms"] = clock.costs()
    mode = cutting.mode or subject.mode
    sizing = Sizing(mode, cutting.rank_selection, subject.least_rank)
    prepared = prepare_sizes(Setting(loaded.module, layers, costs), sizing, progress)
    norm_images = subject.norm_images(images.norms)
    return Job(subject, cutting, mode, norm_images, material, clock, prepared, progress)


def _check(subject: ElasticSubject, wanted: Sequence[WantedSize], cutting: Cutting) -> None:
    if cutting.latency_table is None and any(one.budget.metric == "ms" for one in wanted):
        raise ConfigError("--sizes in milliseconds: need the table of a device; pass --latency-table")
    if cutting.latency_table is not None and subject.plan.narrowings:
        raise ConfigError("--latency-table: is of the network before it was pruned; give sizes as shares")


def _timed_and_others(layers: tuple[Layer, ...], clock: Clock) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Returns the layers a table can tell of, and those that stay whole since it cannot."""
    known = clock.calibration.layers
    return (
        tuple(one for one in layers if one.name in known),
        tuple(one for one in layers if one.name not in known),
    )
