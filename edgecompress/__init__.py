"""Makes PyTorch vision models smaller and faster on edge CPUs.

`compress`, `prune`, `recover`, `synthesize`, `topology`, `resume`, `inspect`, `bench` and `quickstart` are
the commands of the same name, `search_plan`, `train_model` and `export_model` are the commands `search`,
`train` and `export`, `export_sizes` is `export --sizes`; `load` turns a run directory back into a network.
`PUGDRTS` is an optimiser for training loops of your own.
Importing the package costs nothing: torch comes with first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# onnxruntime reports its use over the network, and keeps a number of this machine for it, unless told not to
# before it is loaded. Nothing leaves the machine here that nobody asked for.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from edgecompress.nets.artefact import load
    from edgecompress.pipeline.bench import bench
    from edgecompress.pipeline.compress import compress
    from edgecompress.pipeline.elastic import export_sizes
    from edgecompress.pipeline.export import export as export_model
    from edgecompress.pipeline.inspect import inspect
    from edgecompress.pipeline.prune import prune
    from edgecompress.pipeline.quickstart import quickstart
    from edgecompress.pipeline.recover import recover
    from edgecompress.pipeline.resume import resume
    from edgecompress.pipeline.search import search as search_plan
    from edgecompress.pipeline.synthesize import synthesize
    from edgecompress.pipeline.topology import topology
    from edgecompress.pipeline.train import train as train_model
    from edgecompress.train.optimisers.pugd import PUGDRTS

__version__ = "0.1.0"
__all__ = [
    "PUGDRTS",
    "__version__",
    "bench",
    "compress",
    "export_model",
    "export_sizes",
    "inspect",
    "load",
    "prune",
    "quickstart",
    "recover",
    "resume",
    "search_plan",
    "synthesize",
    "topology",
    "train_model",
]

_HOMES = {
    "PUGDRTS": ("edgecompress.train.optimisers.pugd", "PUGDRTS"),
    "bench": ("edgecompress.pipeline.bench", "bench"),
    "compress": ("edgecompress.pipeline.compress", "compress"),
    # not `export`: that is the package of exporters
    "export_model": ("edgecompress.pipeline.export", "export"),
    "export_sizes": ("edgecompress.pipeline.elastic", "export_sizes"),
    "inspect": ("edgecompress.pipeline.inspect", "inspect"),
    "load": ("edgecompress.nets.artefact", "load"),
    "prune": ("edgecompress.pipeline.prune", "prune"),
    "quickstart": ("edgecompress.pipeline.quickstart", "quickstart"),
    "recover": ("edgecompress.pipeline.recover", "recover"),
    "resume": ("edgecompress.pipeline.resume", "resume"),
    # not `search`: that is the package of searches
    "search_plan": ("edgecompress.pipeline.search", "search"),
    "synthesize": ("edgecompress.pipeline.synthesize", "synthesize"),
    "topology": ("edgecompress.pipeline.topology", "topology"),
    # not `train`: that is the package of training
    "train_model": ("edgecompress.pipeline.train", "train"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgecompress' has no attribute {name!r}")
    from importlib import import_module

    module, function = _HOMES[name]
    return getattr(import_module(module), function)
