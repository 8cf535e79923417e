"""`edgecompress latency check`: measures plans a table has not seen, and says how far off it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgecompress.core.latency_results import CheckResult, NetworkCheck
from edgecompress.core.latency_table import Calibration, LatencyTable
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.types import Size
from edgecompress.devices.contract import Options
from edgecompress.errors import ConfigError
from edgecompress.latency.calibration import (
    agreement,
    calibrations_of,
    plan_timing,
    sum_blocks,
)
from edgecompress.latency.journal import check_heading
from edgecompress.latency.lookup import Lookup, make_lookup
from edgecompress.nets.sources import lasting_source
from edgecompress.pipeline.latency_files import find_table, read_table, table_heading
from edgecompress.pipeline.latency_identity import own_calibration
from edgecompress.pipeline.latency_space import (
    Network,
    check_plans,
    every_method,
    load_network,
    plan_blocks,
    random_plans,
)
from edgecompress.pipeline.latency_work import Bench, find_place, measure_plans, open_bench

UNSEEN = 1_000_000
"""Plans are numbered from here, times the seed; those of the fit from 0."""
DEFAULT_OPTIONS = Options()


def check(
    table: str,
    models: Sequence[str] = (),
    *,
    plans: int = 30,
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
    options: Options = DEFAULT_OPTIONS,
    seed: int = 1,
    progress: Progress = NO_PROGRESS,
) -> CheckResult:
    """Measures random plans that were not used in the fit on the table's device.

    Args:
        table: A file, or the name of a shipped table.
        models: Model sources; all the table is calibrated for when empty.
        plans: How many, per model.
        input_size: Height and width, where the models do not say; that of the table when None.
        channels: Of the input, as in `compress`; those of the table when None.
        classes: The models tell apart, as in `compress`.
        options: How to reach the device; threads must be those of the table.
        seed: Which random plans.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: the table is of another device, is not calibrated for a model, or the device
            fails.
    """
    check_plans(plans)
    path, found = find_table(table), read_table(table)
    names = tuple(models) or tuple(one.network for one in found.calibrations)
    if not names:
        raise ConfigError(f"{path}: is calibrated for no network; add one with `edgecompress latency build`")
    networks = [_loaded(found, one, input_size, channels, classes) for one in names]
    calibrations = [own_calibration(found, one.loaded) for one in networks]
    bench = _open(path, found, options, seed)
    lookup = make_lookup(found, name=path.name)
    seeds = range(UNSEEN * seed, UNSEEN * seed + plans)
    checked = [
        _checked(bench, _covered(one, lookup), calibration, lookup, seeds, progress)
        for one, calibration in zip(networks, calibrations, strict=True)
    ]
    return CheckResult(
        table=str(path),
        device=found.device,
        provenance=found.provenance,
        conditions=found.conditions,
        networks=tuple(checked),
    )


def _open(path: Path, table: LatencyTable, options: Options, seed: int) -> Bench:
    """Makes the device of a table ready, as it was when the table was built."""
    was = table.conditions
    options = replace(options, threads=options.threads or was.threads, cores=was.cores, clean=True)
    place = find_place(table.device, table.format, options)
    bench = open_bench(place, table.format, table.dtype, begun=table_heading(table), seed=seed)
    check_heading(path, table_heading(table), bench.heading)
    return bench


def _loaded(
    table: LatencyTable, model: str, input_size: Size | None, channels: int | None, classes: int | None
) -> Network:
    known = next(iter(calibrations_of(table, lasting_source(model))), None)
    if known is not None and not model.startswith("zoo:"):  # the zoo knows its input
        own_channels, *own_size = known.input_shape
        channels, input_size = channels or own_channels, input_size or (own_size[0], own_size[1])
    return load_network(
        model,
        every_method(),
        layers="paper" if known is None else ",".join(known.layers),
        input_size=input_size,
        channels=channels,
        classes=classes,
    )


def _covered(network: Network, lookup: Lookup) -> Network:
    """Returns a network with those candidates a table was built for."""
    sizes = {layer.name: layer.in_size for layer in network.layers}
    covered = {
        name: tuple(one for one in found if lookup.find(one.blocks[0], sizes[name]) is not None)
        for name, found in network.candidates.items()
    }
    return replace(network, candidates=covered)


def _checked(
    bench: Bench,
    network: Network,
    calibration: Calibration,
    lookup: Lookup,
    seeds: range,
    progress: Progress,
) -> NetworkCheck:
    plans = random_plans(network, lookup, seeds)
    measured = measure_plans(bench, network, list(plans.items()))
    timings = []
    for name, ms in progress.track(measured, f"measuring {network.name} whole", len(plans)):
        blocks = sum_blocks(lookup, plan_blocks(network, plans[name]), dtype=bench.heading.dtype)
        predicted_ms = calibration.predict_ms(blocks.ms, blocks.weight_megabytes)
        timings.append(plan_timing(name, blocks, ms, predicted_ms, fitted=False))
    found = agreement(timings)
    return NetworkCheck(
        network=network.name,
        mean_error=found.mean_error,
        worst_error=found.worst_error,
        rank_correlation=found.rank_correlation,
        timings=tuple(timings),
    )
