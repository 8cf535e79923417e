"""Runs a network many times while only some of its layers change, each time from the first changed one on.

Whatever has finished before the first changed layer starts gives what it gave last time: such modules hand
out kept outputs instead of computing, whole blocks at once where a whole block has finished. Which outputs
are worth their memory is decided after one recorded run; any choice is right, since a module whose output
is not kept just computes it.

The network must be in eval mode and compute from its input alone. Layers that run several times, or in an
order that depends on the image, are run as usual.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

MAX_BYTES = 3 << 27
"""Outputs kept for all batches together."""

_WATCHED_IMAGES = 2
"""Run to see which outputs are written to later."""

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """When a module ran, in steps of the pass, and what keeping its output costs and saves."""

    start: int
    end: int
    seconds: float
    size_bytes: int
    """0 where the output is no tensor and cannot be kept."""
    changed_later: bool
    """Whether the output is written to after the module has returned it."""


@dataclass
class PrefixCache:
    """Outputs of a network's modules on fixed batches, valid for one state of its layers."""

    network: nn.Module
    layers: tuple[str, ...]
    """Names of the layers that may change."""
    batches: Sequence[Tensor]
    max_bytes: int = MAX_BYTES
    _calls: dict[str, Call] = field(default_factory=dict)
    _kept: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    """Outputs by batch, for each module whose outputs are to be kept."""

    @torch.no_grad()
    def __post_init__(self) -> None:
        few = self.batches[0][:_WATCHED_IMAGES]
        rewritten = _rewritten(self.network, self.layers, few)
        passes = [_recorded(self.network, self.layers, batch, rewritten) for batch in self.batches]
        orders = [{name: (call.start, call.end) for name, call in one.items()} for one in passes]
        if all(order == orders[0] for order in orders):
            self._calls = passes[0]  # the first batch is as large as any
            budget = self.max_bytes / len(self.batches)
            names = _worth_keeping(self.network, self.layers, self._calls, budget)
            self._kept = {name: {} for name in names}

    @torch.no_grad()
    def outputs(self, changed: Collection[str]) -> Iterator[Tensor]:
        """Yields the network's output for each batch, as plain calls would give it.

        `changed` names every layer that is not as it was when the state was settled last.
        """
        cut = self._cut(changed)
        for index, batch in enumerate(self.batches):
            with _patched(self._forwards(cut, index)):
                output = self.network(batch)
            yield output

    def settle(self, changed: Collection[str]) -> None:
        """Makes the present layers the state: outputs that these changes have outdated are forgotten."""
        cut = self._cut(changed)
        for name, kept in self._kept.items():
            if self._calls[name].end > cut:
                kept.clear()

    def _cut(self, changed: Collection[str]) -> float:
        """Returns the step at which the first changed layer starts; 0 where that is not known."""
        return min((self._calls[n].start if n in self._calls else 0 for n in changed), default=float("inf"))

    def _forwards(self, cut: float, index: int) -> dict[nn.Module, Forward]:
        """Returns what to run in place of the usual, for one batch."""
        found: dict[nn.Module, Forward] = {}
        for name, kept in self._kept.items():
            if self._calls[name].end < cut:
                module = self.network.get_submodule(name)
                found[module] = _keeping(module.forward, kept, index, self._calls[name].changed_later)
        for name, module in _running_chains(self.network, self._calls, cut):
            found[module] = self._shortened(name, module, cut, index)
        return found

    def _shortened(self, name: str, chain: nn.Sequential, cut: float, index: int) -> Forward:
        """Returns the forward of a chain from its last finished layer whose output is there."""
        children = _children(name, chain)
        done = list(takewhile(lambda n: n in self._calls and self._calls[n].end < cut, children))
        first = max((i for i, n in enumerate(done) if index in self._kept.get(n, ())), default=0)

        def forward(x: Any) -> Any:  # noqa: ANN401 - whatever the layers of the chain pass on
            for child in list(chain)[first:]:
                x = child(x)
            return x

        return forward


def _keeping(forward: Forward, kept: dict[int, Tensor], index: int, changed_later: bool) -> Forward:
    def run(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the signature of any module
        if index not in kept:
            output = forward(*args, **options)
            kept[index] = output.clone() if changed_later else output
            return output
        return kept[index].clone() if changed_later else kept[index]

    return run


@contextmanager
def _patched(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Gives modules another forward for a while. Not by hooks: torch's own attention minds those."""
    own = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, before in own.items():
            vars(module).pop("forward", None)
            if before is not None:
                vars(module)["forward"] = before


def _children(name: str, module: nn.Module) -> list[str]:
    return [f"{name}.{child}" if name else child for child, _ in module.named_children()]


def _is_chain(name: str, module: nn.Module, calls: Mapping[str, Call]) -> bool:
    """Whether a module does nothing but pass its input through its children, each once."""
    plain = type(module).forward is nn.Sequential.forward
    return plain and all(child in calls for child in _children(name, module))


def _running_chains(
    network: nn.Module, calls: Mapping[str, Call], cut: float
) -> Iterator[tuple[str, nn.Sequential]]:
    """Yields the sequential containers that have started but not finished at a step."""
    for name, call in calls.items():
        if call.start < cut < call.end:
            module = network.get_submodule(name)
            if isinstance(module, nn.Sequential) and _is_chain(name, module, calls):
                yield name, module


def _recorded(
    network: nn.Module, layers: Collection[str], batch: Tensor, rewritten: Collection[str]
) -> dict[str, Call]:
    """Runs one batch and returns the modules that ran exactly once; nothing inside `layers` counts."""
    runs: dict[str, list[Call]] = {}
    clock = iter(range(1, 1 << 62))

    def recording(name: str, forward: Forward) -> Forward:
        def run(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the signature of any module
            start, begun = next(clock), time.perf_counter()
            output = forward(*args, **options)
            size = output.untyped_storage().nbytes() if isinstance(output, Tensor) else 0
            call = Call(start, next(clock), time.perf_counter() - begun, size, name in rewritten)
            runs.setdefault(name, []).append(call)
            return output

        return run

    with _patched({m: recording(name, m.forward) for name, m in _modules(network, layers).items()}):
        network(batch)
    return {name: found[0] for name, found in runs.items() if len(found) == 1}


def _rewritten(network: nn.Module, layers: Collection[str], images: Tensor) -> set[str]:
    """Returns the modules whose outputs are written to after they have returned them.

    All outputs have to be held until the end of the pass to see that, so there should be few images.
    """
    held: list[tuple[str, Tensor, int]] = []

    def holding(name: str, forward: Forward) -> Forward:
        def run(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - the signature of any module
            output = forward(*args, **options)
            if isinstance(output, Tensor):
                held.append((name, output, output._version))
            return output

        return run

    with _patched({m: holding(name, m.forward) for name, m in _modules(network, layers).items()}):
        network(images)
    return {name for name, output, version in held if output._version != version}


def _modules(network: nn.Module, layers: Collection[str]) -> dict[str, nn.Module]:
    """Returns all modules but those inside `layers`."""
    return {n: m for n, m in network.named_modules() if n and not _is_inside(n, layers)}


def _is_inside(name: str, layers: Collection[str]) -> bool:
    return any(name.startswith(f"{layer}.") for layer in layers)


def _worth_keeping(
    network: nn.Module, layers: Collection[str], calls: Mapping[str, Call], budget: float
) -> list[str]:
    """Returns the modules whose outputs save most time per byte, within a budget of bytes."""
    cuts = sorted(calls[name].start for name in layers if name in calls)
    gains = {name: _gain(network, name, calls, cuts) for name, call in calls.items() if call.size_bytes}
    chosen: list[str] = []
    for name in sorted(gains, key=lambda n: gains[n] / calls[n].size_bytes, reverse=True):
        if gains[name] > 0 and calls[name].size_bytes <= budget:
            chosen.append(name)
            budget -= calls[name].size_bytes
    return chosen


def _gain(network: nn.Module, name: str, calls: Mapping[str, Call], cuts: Sequence[int]) -> float:
    """Returns the seconds an output saves, summed over all layers that could be the first to change.

    It is asked for while its parent runs; in a chain only until the next of its siblings has finished.
    """
    parent = _caller(name, calls)
    until = calls[parent].end if parent else float("inf")
    seconds = calls[name].seconds
    if parent and _is_chain(parent, network.get_submodule(parent), calls):
        siblings = _children(parent, network.get_submodule(parent))
        place = siblings.index(name)
        seconds = sum(calls[n].seconds for n in siblings[: place + 1])
        until = calls[siblings[place + 1]].end if place + 1 < len(siblings) else until
    return seconds * (bisect_left(cuts, until) - bisect_right(cuts, calls[name].end))


def _caller(name: str, calls: Mapping[str, Call]) -> str:
    """Returns the nearest module around this one that runs, or an empty name for the network itself."""
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            return name
    return name
