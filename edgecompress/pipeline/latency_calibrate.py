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

AGAIN = 2
"""How often networks are measured again where the first times cannot be right."""

Plan = tuple[str, list[Change]]
"""With its name."""


def calibrate(
    bench: Bench, journal: Journal, lookup: Lookup, network: Network, *, plans: int, progress: Progress
) -> Calibration:
    """Returns the calibration of a network; what the journal holds of it is not measured again.

    `lookup` must hold all blocks of the network's candidates. Times that their sums cannot explain are taken
    for those of a busy device and measured again; where that does not help, the calibration says so.

    Raises:
        DeviceError: the device fails; the journal keeps what was measured until then.
        ExportError: the network cannot be exported, or the device cannot run it.
    """
    drawn = {"dense": [], **random_plans(network, lookup, range(plans))}
    missing = [one for one in drawn.items() if _key(network, *one) not in journal.networks]
    _measure(bench, journal, network, missing, progress)
    found = _fitted(bench, journal, lookup, network, drawn)
    for _ in range(0 if bench.is_exact else AGAIN):
        if not found.is_doubtful:
            break
        _measure(bench, journal, network, list(drawn.items()), progress)
        found = _fitted(bench, journal, lookup, network, drawn)
    return found


def _measure(
    bench: Bench, journal: Journal, network: Network, plans: Sequence[Plan], progress: Progress
) -> None:
    """Adds a network under plans to the journal; of a plan it holds already the shorter time stays.

    Whatever else a device does makes networks slower, never faster.
    """
    keys = {name: _key(network, name, plan) for name, plan in plans}
    measured = measure_plans(bench, network, plans)
    for name, ms in progress.track(measured, f"measuring {network.name} whole", len(plans)):
        known = journal.networks.get(keys[name])
        least_ms = ms if known is None else min(ms, known.measured_ms)
        source, shape, plan = keys[name]
        journal.add(NetworkEntry(network=source, input_shape=shape, plan=plan, measured_ms=least_ms))


def _fitted(
    bench: Bench, journal: Journal, lookup: Lookup, network: Network, plans: Mapping[str, list[Change]]
) -> Calibration:
    rows = []
    for name, plan in plans.items():
        blocks = sum_blocks(lookup, plan_blocks(network, plan), dtype=bench.heading.dtype)
        rows.append((name, blocks, journal.networks[_key(network, name, plan)].measured_ms))
    shape, fingerprint = network.ref.input_shape, network.fingerprint
    return fit_calibration(network.name, shape, network.layer_names, rows, fingerprint=fingerprint)


def _key(network: Network, name: str, plan: Sequence[Change]) -> NetworkKey:
    blocks = " ".join(block_key(block, size) for block, size in plan_blocks(network, plan))
    digest = hashlib.sha256(f"{network.fingerprint} {blocks}".encode()).hexdigest()[:16]
    return network.name, network.ref.input_shape, f"{name} {digest}"
