"""How much faster are synthetic images made when the network is frozen?

    python benchmarks/bench_synthesis.py > synthesis.jsonl
    python benchmarks/bench_synthesis.py --models resnet20 --rounds 40 > synthesis.jsonl

  frozen     an iteration as `edgecompress synthesize` does it: gradients of the images alone, sums instead of
             variances, batch norms applied on the way
  gradients  the same code, with gradients of all weights left on and computed for nothing
  published  gradients left on, hooks on batch norms and their backward pass, variances by torch.var_mean

Cost does not depend on values, so weights are random. All cases in turns, in random order within a round, in
one process and one thread; ratios are trimmed means over rounds with a 99 % interval. The three cases must
give the same gradient of the images, or nothing is measured. Prints a JSON line per network and case.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from edgecompress.core.measurement import Burst
from edgecompress.core.statistics import compare
from edgecompress.core.synthesis_results import SynthesisSettings
from edgecompress.nets.sources import load_model
from edgecompress.train.norm_statistics import WatchedNetwork
from edgecompress.train.synthesis_loss import image_losses
from edgecompress.train.synthesis_presets import pick_settings

BATCHES = {"resnet20": 32, "mobilenet_v2": 8}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Step = Callable[[Tensor], None]
"""Computes the gradient of images."""


def main() -> None:
    """Prints what every case takes on every network."""
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    for model in args.models:
        cases, images = make_cases(model, args.batch_images or BATCHES.get(model, 8))
        check_same(cases, images)
        bursts = measure(cases, images, args.rounds, args.seed, args.clock)
        for row in rows(bursts):
            told = {"model": model, "batch_images": len(images), "clock": args.clock, **row}
            print(json.dumps(told | {"torch": torch.__version__, "machine": platform.machine()}), flush=True)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(BATCHES), help="of the zoo")
    parser.add_argument("--batch-images", type=int, help="per iteration")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="cpu: of this process alone")
    return parser.parse_args()


def make_cases(model: str, batch_images: int) -> tuple[dict[str, Step], Tensor]:
    """Returns what to measure, and the images."""
    loaded = load_model(f"zoo:{model}")
    settings = pick_settings("paper-resnet18", {})
    watched = WatchedNetwork(loaded.module)
    with_gradients = WatchedNetwork(loaded.module).requires_grad_(True)
    images = torch.randn(
        batch_images, *loaded.ref.input_shape, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    return {
        "frozen": step_of(lambda x: image_losses(watched, x, None, settings).total, watched),
        "gradients": step_of(lambda x: image_losses(with_gradients, x, None, settings).total, with_gradients),
        "published": step_of(published(loaded.module, settings), loaded.module),
    }, images


def step_of(loss: Callable[[Tensor], Tensor], network: nn.Module) -> Step:
    """Returns an iteration without the step of the optimiser, which is the same for all."""

    def step(images: Tensor) -> None:
        images.grad = None
        network.zero_grad(set_to_none=True)
        loss(images).backward()  # type: ignore[no-untyped-call]

    return step


def published(network: nn.Module, settings: SynthesisSettings) -> Callable[[Tensor], Tensor]:
    """Returns the loss as the paper's code computes it."""
    inputs: list[tuple[nn.BatchNorm2d, Tensor]] = []
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda norm, args: inputs.append((norm, args[0])))

    def distance(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        variance, own = torch.var_mean(x, (2, 3))
        difference = (own - mean) ** 2 + ((variance + 1e-6).sqrt() - deviation) ** 2
        return difference.sum(1).mean()

    def loss(images: Tensor) -> Tensor:
        inputs.clear()
        network(images)
        zeros, ones = images.new_zeros(images.shape[1]), images.new_ones(images.shape[1])
        total = settings.input_weight * distance(images, zeros, ones)
        for norm, x in inputs:
            assert norm.running_mean is not None and norm.running_var is not None
            total = total + distance(x, norm.running_mean, (norm.running_var + 1e-6).sqrt())
        return total

    return loss


def check_same(cases: dict[str, Step], images: Tensor) -> None:
    """Stops when a case computes something else; rounding may turn single activations on or off."""
    gradients = {}
    for name, step in cases.items():
        step(images)
        assert images.grad is not None
        gradients[name] = images.grad.clone()
    for name, gradient in gradients.items():
        off = float((gradient - gradients["published"]).norm() / gradients["published"].norm())
        if off > 1e-2:
            sys.exit(f"{name}: its gradient is off by {off:.2g}")


def measure(
    cases: dict[str, Step], images: Tensor, rounds: int, seed: int, clock: str
) -> dict[str, list[Burst]]:
    """Runs all cases in turns; a burst is one iteration."""
    order, now = random.Random(seed), CLOCKS[clock]
    begin = now()
    bursts: dict[str, list[Burst]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in order.sample(list(cases), len(cases)):
            start = now()
            cases[case](images)
            ms = 1e3 * (now() - start)
            bursts[case].append(Burst(started_s=start - begin, runs=1, mean_ms=ms, min_ms=ms, max_ms=ms))
    return bursts


def rows(bursts: dict[str, list[Burst]]) -> Iterator[dict[str, object]]:
    """Yields every raw time, and how many times as fast the frozen network is."""
    for case, own in bursts.items():
        row: dict[str, object] = {"case": case, "ms": [round(burst.center_ms, 2) for burst in own]}
        if case != "frozen":
            found = compare(own, bursts["frozen"], names=(case, "frozen"), paired=True)
            row |= {"frozen_is_faster": round(found.speedup, 3)}
            row |= {"interval": [round(found.interval.low, 3), round(found.interval.high, 3)]}
        yield row


if __name__ == "__main__":
    main()
