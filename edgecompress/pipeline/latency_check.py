"""`edgecompress latency check`: measures plans a table has not seen, and says how far off it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgecompress.core.latency_results import CheckResult, NetworkCheck
from edgecompress.core.latency_table import LatencyTable, PlanTiming
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.types import Size
from edgecompress.devices.contract import Options
from edgecompress.latency.calibration import agreement, find_calibration, sum_blocks
from edgecompress.latency.journal import check_heading
from edgecompress.latency.lookup import make_lookup
from edgecompress.pipeline.latency_files import find_table, read_table, table_heading
from edgecompress.pipeline.latency_space import METHODS, Network, load_network, plan_blocks, random_changes
from edgecompress.pipeline.latency_work import Bench, find_place, measure_plans, open_bench

UNSEEN = 1_000_000
"""Plans are numbered from here, times the seed; those of the fit from 0."""


def check(
    table: str,
    models: Sequence[str] = (),
    *,
    plans: int = 30,
    input_size: Size | None = None,
    threads: int | None = None,
    serial: str | None = None,
    benchmark_binary: Path | None = None,
    timeout_s: float = 300.0,
    adb: str = "adb",
    seed: int = 1,
    progress: Progress = NO_PROGRESS,
) -> CheckResult:
    """Measures random plans that were not used in the fit on the table's device.

    Args:
        table: A file, or the name of a shipped table.
        models: Model sources; all the table is calibrated for when empty.
        plans: How many, per model.
        input_size: Height and width, where the models do not say; that of the table when None.
        threads: Of the runtime; must be those of the table.
        serial: Which phone.
        benchmark_binary: Google's `benchmark_model` for the phone.
        timeout_s: Of one call to the device.
        adb: Program that reaches phones.
        seed: Which random plans.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: the table is of another device, is not calibrated for a model, or the device
            fails.
    """
    path, found = find_table(table), read_table(table)
    options = Options(
        threads=threads or found.conditions.threads,
        cores=found.conditions.cores,
        serial=serial,
        benchmark_binary=benchmark_binary,
        timeout_s=timeout_s,
        adb=adb,
        clean=True,
    )
    place = find_place(found.device, found.format, options)
    bench = open_bench(place, found.format, found.dtype, begun=table_heading(found), seed=seed)
    check_heading(path, table_heading(found), bench.heading)
    networks = [
        _loaded(found, one, input_size) for one in models or [each.network for each in found.calibrations]
    ]
    return CheckResult(
        table=str(path),
        device=found.device,
        provenance=found.provenance,
        conditions=found.conditions,
        networks=tuple(_checked(found, bench, one, plans, seed, progress) for one in networks),
    )


def _loaded(table: LatencyTable, model: str, input_size: Size | None) -> Network:
    known = next((one for one in table.calibrations if one.network == model), None)
    if known is None:
        return load_network(model, METHODS, input_size=input_size)
    own = None if model.startswith("zoo:") else known.input_shape[1:]  # the zoo knows its input
    return load_network(model, METHODS, layers=",".join(known.layers), input_size=input_size or own)


def _checked(
    table: LatencyTable, bench: Bench, network: Network, plans: int, seed: int, progress: Progress
) -> NetworkCheck:
    calibration = find_calibration(table, network.name, network.ref.input_shape)
    lookup = make_lookup(table)
    numbers = range(UNSEEN * seed, UNSEEN * seed + plans)
    drawn = {f"random {number}": random_changes(network, lookup, seed=number) for number in numbers}
    measured = progress.track(
        measure_plans(bench, network, list(drawn.items())), f"measuring {network.name} whole", plans
    )
    timings = []
    for name, ms in measured:
        blocks = sum_blocks(lookup, plan_blocks(network, drawn[name]), dtype=table.dtype)
        timings.append(
            PlanTiming(
                plan=name,
                blocks_ms=blocks.ms,
                weight_megabytes=blocks.weight_megabytes,
                measured_ms=ms,
                predicted_ms=calibration.predict_ms(blocks.ms, blocks.weight_megabytes),
                fitted=False,
            )
        )
    found = agreement(timings)
    return NetworkCheck(
        network=network.name,
        mean_error=found.mean_error,
        worst_error=found.worst_error,
        rank_correlation=found.rank_correlation,
        timings=tuple(timings),
    )
