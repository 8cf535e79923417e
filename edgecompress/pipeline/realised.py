"""Networks of plans, built and repaired at most once per run."""

from __future__ import annotations

from edgecompress.core.progress import Progress
from edgecompress.core.types import Record
from edgecompress.nets.kept import kept_tensors
from edgecompress.pipeline.engine import Compressed, build, realise
from edgecompress.pipeline.preparation import Prepared
from edgecompress.search.contract import Choices, plan_hash


class _Told(Record):
    steps: tuple[tuple[str, str], ...]
    seconds: dict[str, float]


def realise_once(prepared: Prepared, choices: Choices, progress: Progress) -> Compressed:
    """Returns what `realise` returns; after a kill what was done before is read."""
    name = plan_hash(choices)
    made: list[Compressed] = []

    def make() -> Compressed:
        if not made:
            made.append(realise(prepared, choices, progress))
        return made[0]

    tensors = kept_tensors(prepared.memo, f"network {name}", lambda: make().module.state_dict())
    told = prepared.memo.record(
        f"network {name}", _Told, lambda: _Told(steps=tuple(make().steps), seconds=make().seconds)
    )
    if made:
        return made[0]
    network = build(prepared, choices)
    network.load_state_dict(tensors)
    return Compressed(network, choices, list(told.steps), dict(told.seconds))
