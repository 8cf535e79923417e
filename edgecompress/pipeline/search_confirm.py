"""The end of a search: what the device says of the finished network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgecompress.core.search_results import Compared, DeviceTime, Round
from edgecompress.errors import EdgeCompressError
from edgecompress.pipeline.preparation import Prepared
from edgecompress.pipeline.search_device import Target
from edgecompress.pipeline.search_standing import Loop, Outcome, Standing, best, meets, timed, unmet


def confirm(
    loop: Loop, prepared: Prepared, device: Target, target: float, standing: Standing, outcome: Outcome
) -> Outcome:
    """Adds what the device says of the exported network, and of dense and compressed in turns.

    Nothing that goes wrong here may cost the network, which is finished.
    """
    memo = prepared.memo.alone()  # other processes have no device
    try:
        with timed(standing):
            file = _exported(prepared, device, outcome)
            dense = memo.record("dense time", DeviceTime, lambda: device.file_time(device.dense))
            final = memo.record(f"file time {outcome.hash}", DeviceTime, lambda: device.file_time(file))
        outcome = _confirmed(loop, target, standing, outcome, dense, final)
        with timed(standing):
            compared = memo.record(
                f"compared {outcome.hash}",
                Compared,
                lambda: device.compare(file, preset=loop.preset, progress=loop.progress),
            )
        doubts = tuple(dict.fromkeys((*outcome.doubts, *compared.doubts)))
        outcome = replace(outcome, comparison=compared.comparison, doubts=doubts)
    except EdgeCompressError as error:
        outcome = replace(outcome, not_measured=f"{error}; to measure it: edgecompress export, then bench")
    return replace(outcome, seconds={**outcome.seconds, **standing.seconds})


def _confirmed(
    loop: Loop, target: float, standing: Standing, outcome: Outcome, dense: DeviceTime, final: DeviceTime
) -> Outcome:
    """Adds a last round: the exported network."""
    met = meets(loop, final.ms, target)
    last = Round(
        number=len(standing.rounds) + 1,
        limit_ms=target,
        predicted_ms=standing.rounds[best(standing.rounds)].predicted_ms,
        measured_ms=final.ms,
        file="exported",
        met=met,
        doubts=final.doubts,
    )
    return replace(
        outcome,
        met=met,
        reason=None if met else unmet(target, final.ms, standing),
        rounds=(*outcome.rounds, last),
        dense_ms=dense.ms,
        measured_ms=final.ms,
        doubts=tuple(dict.fromkeys((*dense.doubts, *final.doubts))),
    )


def _exported(prepared: Prepared, device: Target, outcome: Outcome) -> Path:
    folder = prepared.memo.directory
    assert folder is not None
    file = folder / f"compressed-{outcome.hash}{device.dense.suffix}"
    if not file.is_file():
        part = folder / f"part{file.suffix}"
        device.write(outcome.compressed.module, part)
        part.replace(file)
    return file
