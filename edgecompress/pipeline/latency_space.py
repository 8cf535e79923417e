"""The networks a table is built for: their layers, what may replace these, and plans drawn at random."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from edgecompress import methods as package
from edgecompress.core.plugins import discover
from edgecompress.core.types import Block, Candidate, Layer, ModelRef, Size
from edgecompress.errors import ConfigError, ModelError
from edgecompress.latency.lookup import Lookup
from edgecompress.latency.space import Space, make_space, unit_space, width_space
from edgecompress.methods.contract import Method
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.fingerprint import fingerprint
from edgecompress.nets.modules import find_layers
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.nets.units import find_units
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search.sensitivity import layer_candidates

WIDTHS, DIMENSIONS = "widths", "dimensions"
"""Names beside those of methods: layers with fewer channels; MLPs and attention with fewer dimensions."""
METHODS = ("lowrank", "branches")
PARTS = (*METHODS, WIDTHS, DIMENSIONS)
"""What a table holds unless less is asked for."""
DENSE_SHARE = 0.25
"""Of the layers of a plan drawn at random."""
FEWEST_PLANS = 3
"""Per network, to fit or to judge a table on."""

Change = tuple[Layer, Block]


@dataclass(frozen=True)
class Network:
    """A network and everything that may replace its layers."""

    loaded: LoadedModel
    layers: tuple[Layer, ...]
    candidates: dict[str, tuple[Candidate, ...]]
    """By name of the layer."""
    narrowed: Space
    """Layers and units with fewer channels."""

    @property
    def ref(self) -> ModelRef:
        """Where it comes from."""
        return self.loaded.ref

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Of the layers that may be replaced, in forward order."""
        return tuple(layer.name for layer in self.layers)

    @property
    def name(self) -> str:
        """Its source, which tables know it by."""
        return self.loaded.ref.source

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of what it consists of."""
        return fingerprint(self.loaded.module, self.ref.input_shape)


def load_network(
    source: str,
    parts: Sequence[str] = PARTS,
    *,
    layers: str = "paper",
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
) -> Network:
    """Loads a network and lists what may replace its layers, chosen as for `compress`.

    Raises:
        EdgeCompressError: it cannot be loaded, or there is nothing to measure.
    """
    chosen = _methods(parts)
    torch.manual_seed(0)  # weights do not matter here, but files should be the same every time
    loaded = load_model(source, input_size=input_size, channels=channels, classes=classes)
    targets, _ = find_layers(loaded.module, chosen_layers(loaded, layers), loaded.ref.input_shape)
    found = {layer.name: layer_candidates(layer, chosen, ())[0] for layer in targets}
    narrowed = _narrowed(loaded, parts)
    if not any(found.values()) and not narrowed.curves:
        raise ModelError(f"{source}: no layer can be replaced by {', '.join(parts)}; nothing to measure")
    return Network(loaded, targets, found, narrowed)


def _methods(parts: Sequence[str]) -> list[Method]:
    methods = discover(package, Method)
    known = sorted({*methods, WIDTHS, DIMENSIONS})
    unknown = [repr(name) for name in parts if name not in known]
    if unknown or not parts:
        wrong = f"{', '.join(unknown)} is not known" if unknown else "names nothing"
        raise ConfigError(f"--parts: {wrong}; known are: {', '.join(known)}")
    return [methods[name] for name in parts if name in methods]


def every_method() -> tuple[str, ...]:
    """Returns the names of all parts that plans are drawn from."""
    return tuple(discover(package, Method))


def _narrowed(loaded: LoadedModel, parts: Sequence[str]) -> Space:
    space, shape = Space({}, {}), loaded.ref.input_shape
    if WIDTHS in parts:
        space |= width_space(find_layers(loaded.module, chosen_layers(loaded, "all"), shape)[0])
    if DIMENSIONS in parts:
        rewritten = copy.deepcopy(loaded.module)
        rewrite_attention_(rewritten, shape)
        space |= unit_space((unit.ops, unit.in_size) for unit in find_units(rewritten, shape))
    return space


def space_of(networks: Sequence[Network]) -> Space:
    """Returns everything a table must hold for these networks."""
    space = make_space([(layer, one.candidates[layer.name]) for one in networks for layer in one.layers])
    for one in networks:
        space |= one.narrowed
    return space


def check_plans(plans: int) -> None:
    """Does nothing where so many random plans are enough.

    Raises:
        ConfigError: they are not.
    """
    if plans < FEWEST_PLANS:
        raise ConfigError(f"--plans {plans}: is too few; give at least {FEWEST_PLANS}")


def random_plans(network: Network, lookup: Lookup, seeds: range) -> dict[str, list[Change]]:
    """Returns plans drawn at random, one per seed, by name."""
    return {f"random {seed}": random_changes(network, lookup, seed=seed) for seed in seeds}


def random_changes(network: Network, lookup: Lookup, *, seed: int) -> list[Change]:
    """Returns what a plan drawn at random replaces, each faster than its layer by the table.

    All families are equally likely, and within one all its ranks: a search may end anywhere. Plans of a
    user's own file are the same wherever it lies.
    """
    rng = random.Random(f"{Path(network.name).name} {seed}")
    found = []
    for layer in network.layers:
        dense_ms = lookup.ms(Block(branches=((layer.op,),)), layer.in_size)
        families: dict[str, list[Block]] = {}
        for candidate in network.candidates[layer.name]:
            (block,) = candidate.blocks
            if lookup.ms(block, layer.in_size) < dense_ms:
                families.setdefault(candidate.family, []).append(block)
        if families and rng.random() >= DENSE_SHARE:
            found.append((layer, rng.choice(families[rng.choice(sorted(families))])))
    return found


def plan_blocks(network: Network, changes: Sequence[Change]) -> list[tuple[Block, Size]]:
    """Returns the blocks of all layers under a plan, with the sizes of their inputs."""
    changed = {layer.name: block for layer, block in changes}
    return [
        (changed.get(layer.name, Block(branches=((layer.op,),))), layer.in_size) for layer in network.layers
    ]
