"""Does the protocol call equal things equal and find a 10 % slow-down on this machine?

    python benchmarks/bench_protocol.py > protocol.jsonl
    python benchmarks/bench_protocol.py --tries 20 --designs interleaved,kept,long,sequence > designs.jsonl

A try measures a network together with three others, and asks of each whether it is slower:
  same     a copy of the file: must not differ
  injected a copy followed by a fixed amount of hashing, 10 % of the network's time on a quiet machine,
           within the timed stretch: the true ratio is known, but hashing is not what networks do
  heavier  the network with three more layers, about 10 % of its work: real, but its true ratio is
           known only by measuring
The network is the embedded ResNet, or `--files BASE HEAVIER` of one format. Designs, all with the counted
time of the preset `quick`: interleaved, the protocol as it is; kept, files are loaded only once; long, a
fifth of the rounds with five times longer bursts; sequence, one file after the other, as is common.
Prints a JSON line per answer, then one with the counts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Comparison, Conditions, Environment, Measurement, OpTime
from edgecompress.core.presets import pick_preset
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.statistics import compare
from edgecompress.devices import local_litert, local_ort
from edgecompress.devices.contract import BurstSize, Loaded, Options, Session
from edgecompress.devices.local_runs import Ready, open_local
from edgecompress.devices.protocol import measure
from edgecompress.export import tflite_litert_torch, to_onnx
from edgecompress.nets.sources import load_model

SLOWDOWN = 0.10
QUICK = pick_preset("quick")
THIS_MACHINE = Device(name="local", title="this machine", drivers=("local-ort", "local-litert"))
MODULES: dict[str, ModuleType] = {".onnx": local_ort, ".tflite": local_litert}
EXPECTED = {"same": "no difference", "injected": "slower", "heavier": "slower"}

Subject = tuple[Path, Session]


@dataclass(frozen=True)
class LoadedOnce:
    """A session that keeps its files where they are."""

    inner: Session
    loaded: dict[Path, Loaded]
    fresh_process = False

    @property
    def conditions(self) -> Conditions:
        """Of the session within."""
        return self.inner.conditions

    def load(self, file: Path) -> Loaded:
        """Loads a file the first time only."""
        if file not in self.loaded:
            self.loaded[file] = self.inner.load(file)
        return self.loaded[file]

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Of the session within."""
        return self.inner.burst(file, size)

    def environment(self) -> Environment:
        """Of the session within."""
        return self.inner.environment()

    def settle(self) -> tuple[str, ...]:
        """Does not wait."""
        return ()

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Of the session within."""
        return self.inner.profile(file)


def interleaved(subjects: Sequence[Subject], seed: int) -> tuple[Measurement, ...]:
    """The protocol as it is."""
    return measure(subjects, QUICK, seed=seed, profile=False, progress=NO_PROGRESS)


def kept(subjects: Sequence[Subject], seed: int) -> tuple[Measurement, ...]:
    """Every file stays loaded."""
    return interleaved([(path, LoadedOnce(session, {})) for path, session in subjects], seed)


def long(subjects: Sequence[Subject], seed: int) -> tuple[Measurement, ...]:
    """Few long bursts instead of many short ones."""
    return measure(
        subjects, replace(QUICK, rounds=QUICK.rounds // 5), seed=seed, profile=False, progress=NO_PROGRESS
    )


def sequence(subjects: Sequence[Subject], seed: int) -> tuple[Measurement, ...]:
    """One file after the other, each loaded once."""
    order = random.Random(seed).sample(range(len(subjects)), len(subjects))
    found = {index: kept([subjects[index]], seed)[0] for index in order}
    return tuple(found[index] for index in range(len(subjects)))


DESIGNS = {one.__name__: one for one in (interleaved, kept, long, sequence)}


@contextlib.contextmanager
def open_subjects(files: dict[str, Path]) -> Iterator[dict[str, Subject]]:
    """Yields the files with their sessions; that of `injected` does some work after each run."""
    module = MODULES[files["base"].suffix]
    options = Options(settle_s=0.0)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(module.DRIVER.open(THIS_MACHINE, options))
        runtime = module.runtime()
        data = work_for(runtime.prepare(files["base"], 1))
        slowed = replace(runtime, prepare=lambda file, n: with_work(runtime.prepare(file, n), data))
        working = stack.enter_context(open_local(slowed, THIS_MACHINE, options))
        yield {name: (path, working if name == "injected" else plain) for name, path in files.items()}


def with_work(ready: Ready, data: bytes) -> Ready:
    """Returns a file whose runs take longer, by a fixed amount of work and not of time: interruptions
    must stretch it as they do a network."""

    def run() -> None:
        ready.run()
        hashlib.sha256(data)

    return replace(ready, run=run)


def work_for(ready: Ready) -> bytes:
    """Returns what to hash to make a run 10 % longer; by the fastest of many, which nothing interrupted."""
    probe = bytes(200_000)
    plain_s, longer_s = fastest_s(ready.run), fastest_s(with_work(ready, probe).run)
    return bytes(round(SLOWDOWN * plain_s / (longer_s - plain_s) * len(probe)))


def fastest_s(run: Callable[[], object]) -> float:
    """Returns the shortest of 500 durations."""
    best = float("inf")
    for _ in range(500):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def make_networks(directory: Path, suffix: str) -> tuple[Path, Path]:
    """Writes the embedded ResNet and the same with three more layers, 12 % more multiply-accumulates."""
    convert = to_onnx.convert if suffix == ".onnx" else tflite_litert_torch.convert
    loaded = load_model("zoo:fashion_resnet")
    base, heavier = directory / f"base{suffix}", directory / f"heavier{suffix}"
    convert(loaded.module, loaded.ref.input_shape, base)
    torch.manual_seed(0)
    stage = loaded.module.get_submodule("stage1")
    convolutions = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1)
    extra = [module for one in convolutions for module in (one, nn.ReLU())]
    loaded.module.register_module("stage1", nn.Sequential(stage, *extra).eval())
    convert(loaded.module, loaded.ref.input_shape, heavier)
    return base, heavier


def copies(base: Path, heavier: Path, directory: Path) -> dict[str, Path]:
    """Returns the files of a try by name, each a file of its own."""
    files = {"base": base, "same": base, "injected": base, "heavier": heavier}
    for name, path in files.items():
        shutil.copyfile(path, directory / f"{name}-copy{path.suffix}")
    return {name: directory / f"{name}-copy{path.suffix}" for name, path in files.items()}


def answers(design: str, files: dict[str, Path], seed: int) -> Iterator[dict[str, object]]:
    """Measures all files once and yields what is found of each."""
    with open_subjects(files) as subjects:
        begin = time.perf_counter()
        found = dict(zip(subjects, DESIGNS[design](list(subjects.values()), seed), strict=True))
        seconds = time.perf_counter() - begin
    for case in EXPECTED:
        measured, paired = found[case], design != "sequence"
        result = compare(found["base"].bursts, measured.bursts, names=("base", case), paired=paired)
        yield row(design, case, seed, result, measured) | {"measured_s": round(seconds, 1)}


def row(design: str, case: str, seed: int, result: Comparison, measured: Measurement) -> dict[str, object]:
    """Returns one line of output."""
    shares = [burst.interference or 0.0 for burst in measured.bursts]
    return {
        "design": design,
        "runtime": measured.conditions.runtime,
        "case": case,
        "try": seed,
        "right": result.verdict == EXPECTED[case],
        "verdict": result.verdict,
        "speedup": round(result.speedup, 4),
        "low": round(result.interval.low, 4),
        "high": round(result.interval.high, 4),
        "p_value": result.p_value,
        "median_ms": round(measured.summary.median_ms, 4),
        "valid": measured.validity.valid,
        "interference": round(sum(shares) / len(shares), 3),
        "load": round(measured.after.load or 0.0, 1),
    }


def main() -> None:
    """Runs all tries, designs in turns so that they meet the same disturbances."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--designs", default="interleaved", help=f"some of {','.join(DESIGNS)}")
    parser.add_argument("--runtimes", default=".onnx,.tflite", help="suffixes of the formats")
    parser.add_argument("--files", nargs=2, type=Path, metavar=("BASE", "HEAVIER"))
    args = parser.parse_args()
    right, all_tries = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        suffixes = [args.files[0].suffix] if args.files else args.runtimes.split(",")
        pairs = [tuple(args.files)] if args.files else [make_networks(directory, one) for one in suffixes]
        for seed in range(args.tries):
            for base, heavier in pairs:
                files = copies(base, heavier, directory)
                for design in args.designs.split(","):
                    for line in answers(design, files, seed):
                        key = f"{design} {line['runtime']} {line['case']}"
                        right[key] += bool(line["right"])
                        all_tries[key] += 1
                        print(json.dumps(line), flush=True)
    print(json.dumps({key: f"{right[key]}/{count}" for key, count in all_tries.items()}))


if __name__ == "__main__":
    main()
