"""Whole networks, measured as they are and under random plans: what turns a sum of blocks into their time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from edgecompress.core.latency_table import Calibration
from edgecompress.core.progress import Progress
from edgecompress.latency.calibration import fit_calibration, sum_blocks
from edgecompress.latency.journal import Journal, NetworkEntry, NetworkKey
from edgecompress.latency.keys import block_key
from edgecompress.latency.lookup import Lookup
from edgecompress.pipeline.latency_space import Change, Network, plan_blocks, random_plans
from edgecompress.pipeline.latency_work import Bench, measure_plans


def calibrate(
    bench: Bench, journal: Journal, lookup: Lookup, network: Network, *, plans: int, progress: Progress
) -> Calibration:
    """Returns the calibration of a network; what the journal holds of it is not measured again.

    `lookup` must hold all blocks of the network's candidates.

    Raises:
        DeviceError: the device fails; the journal keeps what was measured until then.
        ExportError: the network cannot be exported, or the device cannot run it.
    """
    drawn = {"dense": [], **random_plans(network, lookup, range(plans))}
    _measure(bench, journal, network, drawn, progress)
    rows = []
    for name, plan in drawn.items():
        blocks = sum_blocks(lookup, plan_blocks(network, plan), dtype=bench.heading.dtype)
        rows.append((name, blocks, journal.networks[_key(network, name, plan)].measured_ms))
    shape, fingerprint = network.ref.input_shape, network.fingerprint
    return fit_calibration(network.name, shape, network.layer_names, rows, fingerprint=fingerprint)


def _measure(
    bench: Bench, journal: Journal, network: Network, plans: Mapping[str, list[Change]], progress: Progress
) -> None:
    """Adds a network under all plans to the journal, but those it holds."""
    keys = {name: _key(network, name, plan) for name, plan in plans.items()}
    missing = [(name, plan) for name, plan in plans.items() if keys[name] not in journal.networks]
    measured = measure_plans(bench, network, missing)
    for name, ms in progress.track(measured, f"measuring {network.name} whole", len(missing)):
        source, shape, plan = keys[name]
        journal.add(NetworkEntry(network=source, input_shape=shape, plan=plan, measured_ms=ms))


def _key(network: Network, name: str, plan: Sequence[Change]) -> NetworkKey:
    blocks = " ".join(block_key(block, size) for block, size in plan_blocks(network, plan))
    digest = hashlib.sha256(f"{network.fingerprint} {blocks}".encode()).hexdigest()[:16]
    return network.name, network.ref.input_shape, f"{name} {digest}"
