"""What does a step of the gradient search cost, beside a plain pass and the published search?

    python benchmarks/bench_search_cost.py > search_cost.jsonl
    python benchmarks/bench_search_cost.py --table search_cost.jsonl

  plain      forward and backward of the dense network, all weights frozen: gradients of the input
  weights    the same, with gradients of the target layers' weights
  ours       a step of the gradient search: all ranks of up to 4 families per layer, 100 candidates or more
  ours-2     the same with up to 2 families, which is what is left of wide layers once their errors are known
  published  a step of the paper's search: two candidates per layer, every family, costs in steps of 5 %

Cost does not depend on values, so weights and factors are random. Times: all cases in turns, in random order
within a round, in one process; ratios are trimmed means over rounds with a 99 % interval. Memory: each case
in a process of its own; the peak of resident memory from the first step on, less what the process had after
importing everything, and the whole of it. Prints a JSON line per network and case.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import importlib
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from search_cost_cases import BATCHES, CASES, Subject, make_subjects

from edgecompress.core.measurement import Burst
from edgecompress.core.statistics import compare

# Time


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(subjects: dict[str, Subject], rounds: int, seed: int, clock: str) -> dict[str, list[Burst]]:
    """Runs all cases in turns; a burst is one step after one that does not count."""
    order, now = random.Random(seed), CLOCKS[clock]
    begin = now()
    bursts: dict[str, list[Burst]] = {case: [] for case in subjects}
    for subject in subjects.values():
        subject.run()
    for _ in range(rounds):
        for case in order.sample(list(subjects), len(subjects)):
            subjects[case].run()  # another case has been in the caches
            start = now()
            subjects[case].run()
            bursts[case].append(one_run(start - begin, 1e3 * (now() - start)))
    return bursts


def one_run(started_s: float, ms: float) -> Burst:
    """Returns a burst of a single run."""
    return Burst(
        started_s=started_s, runs=1, samples_ms=(ms,), median_ms=ms, mean_ms=ms, min_ms=ms, max_ms=ms
    )


def ratio(base: Sequence[Burst], other: Sequence[Burst]) -> list[float]:
    """Returns how many times as long `other` takes, with the ends of the interval."""
    found = compare(base, other, names=("base", "other"), paired=True)
    return [round(1 / x, 3) for x in (found.speedup, found.interval.high, found.interval.low)]


# Memory


def peak_memory(net: str, case: str) -> dict[str, float]:
    """Measures a case in a process of its own."""
    command = [sys.executable, __file__, "--memory", net, case]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def print_memory(net: str, case: str) -> None:
    """Prints the peak of resident memory over three steps, and that of a process with torch alone."""
    importlib.import_module("torch._dynamo")  # some cases need it, 70 MB of it; what is imported is no step
    imported = _status_mb("VmRSS")
    (subject,) = make_subjects(net, [case]).values()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    for _ in range(3):
        subject.run()
    print(json.dumps({"peak_mb": _status_mb("VmHWM"), "imported_mb": imported}))


def _status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


# Output


def rows(net: str, rounds: int, seed: int, clock: str) -> Iterator[dict[str, object]]:
    """Measures a network and yields one line per case."""
    memory = {case: peak_memory(net, case) for case in CASES}
    subjects = make_subjects(net, CASES)
    bursts = measure(subjects, rounds, seed, clock)
    for case in CASES:
        own, plain = memory[case], memory["plain"]
        samples = [burst.mean_ms for burst in bursts[case]]
        yield {
            "date": datetime.date.today().isoformat(),
            "machine": processor(),
            "threads": torch.get_num_threads(),
            "clock": clock,
            "load": round(os.getloadavg()[0], 1),
            "net": net,
            "batch": BATCHES[net],
            "case": case,
            "least_candidates": min(subjects[case].candidates, default=None),
            "families": subjects[case].families,
            "median_ms": round(sorted(samples)[len(samples) // 2], 2),
            "to_plain": ratio(bursts["plain"], bursts[case]),
            "to_weights": ratio(bursts["weights"], bursts[case]),
            "peak_mb": round(own["peak_mb"], 1),
            "memory_to_plain": round(own["peak_mb"] / plain["peak_mb"], 3),
            "memory_without_torch_to_plain": round(
                (own["peak_mb"] - own["imported_mb"]) / (plain["peak_mb"] - plain["imported_mb"]), 3
            ),
            "samples_ms": [round(ms, 2) for ms in samples],
        }


def processor() -> str:
    """Returns the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (s.partition(":")[2].strip() for s in lines if s.startswith("model name")), platform.machine()
    )


def table(path: Path) -> str:
    """Returns the figures as Markdown."""
    lines = [
        "| network, batch | step | ms | time / plain | time / weights | memory / plain | without torch |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in map(json.loads, path.read_text().splitlines()):
        times = [f"{r[0]:.2f} ({r[1]:.2f}-{r[2]:.2f})" for r in (row["to_plain"], row["to_weights"])]
        memory = [f"{row[f'memory_{part}to_plain']:.2f}" for part in ("", "without_torch_")]
        cells = [f"{row['net']}, {row['batch']}", row["case"], f"{row['median_ms']:.0f}", *times, *memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, or shows what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", default="resnet20,resnet18", help=f"some of {','.join(BATCHES)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: for busy machines, 1 thread"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, metavar="JSONL")
    parser.add_argument("--memory", nargs=2, metavar=("NET", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        print_memory(*args.memory)
    elif args.table:
        print(table(args.table))
    else:
        for net in args.nets.split(","):
            for row in rows(net, args.rounds, args.seed, args.clock):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
