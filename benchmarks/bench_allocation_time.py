"""How long does it take to factorise and allocate ResNet-18, all families and ranks, on this machine?

    python benchmarks/bench_allocation_time.py --images DIR

DIR holds at least 512 images. Weights do not matter for the time, so without --weights they are random.
Prints one JSON object: seconds per stage, peak memory, how many candidates, and the front at 32 budgets.
SVD-NAS needed 8.66 GPU hours for one operating point and 6.6 GB for the candidates' weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from dataclasses import replace

import numpy as np
import torch

from edgecompress.core.progress import terminal_progress
from edgecompress.core.types import Metric
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.evaluate import batch_size
from edgecompress.pipeline.preparation import Recipe, Setting, prepare
from edgecompress.search.contract import shape_costs
from edgecompress.search.ranks.exact import problem_front


def main() -> None:
    """Prepares ResNet-18 and sweeps every budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", required=True)
    parser.add_argument("--weights")
    parser.add_argument("--count", type=int, default=512)
    args = parser.parse_args()
    loaded = load_model("zoo:resnet18", weights=args.weights)
    shape = loaded.ref.input_shape
    splits = make_splits(
        open_source(args.images, loaded.ref.preprocess), calibration=args.count, selection=0, report=0, seed=0
    )
    total: dict[Metric, float] = {
        "macs": total_macs(profile(loaded.module, shape)),
        "params": total_params(loaded.module),
    }
    layers, _ = find_layers(loaded.module, loaded.targets, shape)
    batches = [images for images, _ in splits.calibration.batches(batch_size(shape))]
    setting = Setting(loaded.module, layers, shape_costs(total), batches)
    with terminal_progress() as progress:
        prepared = prepare(setting, replace(Recipe(), refit="none"), progress)
    start = time.perf_counter()
    front = problem_front(prepared.problem("macs", total["macs"]))
    seconds = dict(prepared.seconds) | {"allocation, every budget": time.perf_counter() - start}
    points = np.linspace(0, len(front.costs) - 1, 32).astype(int)
    fixed = total["macs"] - sum(float(prepared.problem("macs", 1).dense_cost(one)) for one in layers)
    result = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "images": args.count,
        "layers": len(layers),
        "families": sum(len({c.family for c in o.candidates}) for o in prepared.options),
        "candidates": sum(len(o.candidates) for o in prepared.options),
        "seconds": seconds,
        "total_s": sum(seconds.values()),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "front": [((float(front.costs[i]) + fixed) / total["macs"], float(front.errors[i])) for i in points],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
