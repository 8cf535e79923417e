"""Trains one of the embedded networks on Fashion-MNIST and writes its weights.

    python benchmarks/train_embedded.py --data DIR --model fashion_resnet --out weights.safetensors

DIR holds the four idx files (Debian: package dataset-fashion-mnist). Prints one JSON object per epoch.
The weights are those of the last epoch, not of the best one. The shipped weights come from the recipes
below with seed 0 and one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from edgecompress.core.store import replacing
from edgecompress.data.readers.idx import read_idx
from edgecompress.nets.zoo.embedded import FASHION_MNIST, FASHION_RESNET, FASHION_VIT

ENTRIES = {entry.name: entry for entry in (FASHION_RESNET, FASHION_VIT)}


@dataclass(frozen=True)
class Recipe:
    """How one network is trained."""

    optimiser: str
    epochs: int
    peak_lr: float
    weight_decay: float
    warmup: float
    """Share of all steps."""
    batch: int = 128
    label_smoothing: float = 0.05
    max_grad_norm: float = 5.0


RECIPES = {
    "fashion_resnet": Recipe("sgd", epochs=12, peak_lr=0.15, weight_decay=5e-4, warmup=0.15),
    "fashion_vit": Recipe(
        "adamw", epochs=12, peak_lr=1e-3, weight_decay=0.05, warmup=0.1, batch=64, max_grad_norm=1.0
    ),
}


def main() -> None:
    """Trains, prints a line per epoch, writes the weights of the last one."""
    args = _parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.model]
    if args.epochs is not None:
        recipe = replace(recipe, epochs=args.epochs)
    model = ENTRIES[args.model].build(10)
    heading = {"model": args.model, "params": _count(model), "seed": args.seed}
    print(json.dumps(heading | asdict(recipe)), flush=True)
    fit_(model, _load(args.data, "train"), _load(args.data, "t10k"), recipe)
    with replacing(args.out or Path(f"{args.model}.safetensors")) as file:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="directory with the idx files")
    parser.add_argument("--model", choices=sorted(ENTRIES), required=True)
    parser.add_argument("--out", type=Path, help="default: MODEL.safetensors")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _load(directory: Path, part: str) -> tuple[Tensor, Tensor]:
    images = read_idx(directory / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(directory / f"{part}-labels-idx1-ubyte.gz")
    return torch.tensor(images), torch.tensor(labels, dtype=torch.int64)


def fit_(model: nn.Module, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], recipe: Recipe) -> None:
    """Trains `model` in place and prints the accuracy after every epoch."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third faster on a CPU
    optimiser = _make_optimiser(model, recipe)
    steps_per_epoch = len(train[0]) // recipe.batch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: _lr_factor(step / (recipe.epochs * steps_per_epoch), recipe.warmup)
    )
    for epoch in range(1, recipe.epochs + 1):
        started = time.perf_counter()
        loss = _run_epoch_(model, train, recipe, optimiser, schedule)
        seconds = time.perf_counter() - started
        row = {"epoch": epoch, "loss": round(loss, 4), "seconds": round(seconds, 1)}
        print(json.dumps(row | {"test_top1": measure_top1(model, test)}), flush=True)


def _make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]  # norms and biases
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=recipe.peak_lr)


def _lr_factor(progress: float, warmup: float) -> float:
    if progress < warmup:
        return 0.01 + 0.99 * progress / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))


def _run_epoch_(
    model: nn.Module,
    train: tuple[Tensor, Tensor],
    recipe: Recipe,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LambdaLR,
) -> float:
    model.train()
    total = 0.0
    steps = len(train[0]) // recipe.batch
    batches = torch.randperm(len(train[0]))[: steps * recipe.batch].view(steps, recipe.batch)
    for indices in batches:
        images = _normalise(_augment(train[0][indices])).contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(images), train[1][indices], label_smoothing=recipe.label_smoothing)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimiser.step()
        schedule.step()
        total += loss.item()
    return total / len(batches)


def _augment(images: Tensor) -> Tensor:
    """Shifts every image by up to two pixels and mirrors half of them."""
    count, side = len(images), images.shape[-1]
    padded = F.pad(images, (2, 2, 2, 2))
    along = torch.arange(side)
    rows = torch.randint(0, 5, (count, 1)) + along
    columns = torch.where(torch.rand(count, 1) < 0.5, along.flip(0), along) + torch.randint(0, 5, (count, 1))
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _normalise(images: Tensor) -> Tensor:
    return (images.float().unsqueeze(1) / 255 - FASHION_MNIST.mean[0]) / FASHION_MNIST.std[0]


@torch.inference_mode()
def measure_top1(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """Returns the share of right answers in percent."""
    model.eval()
    right = 0
    for start in range(0, len(test[0]), 500):
        images, labels = (values[start : start + 500] for values in test)
        right += int((model(_normalise(images)).argmax(1) == labels).sum())
    return 100 * right / len(test[0])


if __name__ == "__main__":
    main()
