"""The run that is recovered: where it is, and the dense network it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgecompress.core.runs import RUN_FILE, read_run, resolve_run
from edgecompress.core.types import Plan
from edgecompress.errors import ArtefactError, ModelError
from edgecompress.nets.artefact import PLAN_FILE, WEIGHTS_FILE
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.sources import LoadedModel, load_model


def run_meant(run: str | None, runs_dir: Path) -> Path:
    """Returns the directory of a run or artefact.

    Raises:
        ArtefactError: there is none, it holds no network, or nothing was compressed.
    """
    named = None if run is None else Path(run)
    if named is not None and (named / PLAN_FILE).is_file():
        path = named
    else:
        path = resolve_run(run, runs_dir, containing=PLAN_FILE)
    if not (path / PLAN_FILE).is_file():
        raise ArtefactError(f"{path}: holds no {PLAN_FILE}; it has no network that could be recovered")
    if (path / RUN_FILE).is_file() and read_run(path).command == "train":
        raise ArtefactError(
            f"{path}: was made by train, so compression cost it nothing; name another run, or train on with "
            f"--weights {path / WEIGHTS_FILE}"
        )
    return path


def dense_network(plan: Plan, weights: str | None, path: Path) -> LoadedModel:
    """Loads the network a run started from, as the plan wants it.

    Raises:
        ModelError: there was none, or it cannot be found.
        ArtefactError: it is no longer the one the run started from.
    """
    ref, asked = plan.model, plan.model.preprocess
    if ref.source.startswith("cells:") and ref.weights is None:
        raise ModelError(f"{path}: was not made from a trained network, so nothing can be won back; train it")
    loaded = load_model(
        ref.source,
        weights=weights or ref.weights,
        classes=ref.classes,
        input_size=asked.size,
        channels=len(asked.mean),
        mean=asked.mean,
        std=asked.std,
    )
    if loaded.ref.weights_sha256 != ref.weights_sha256:
        raise ArtefactError(
            f"{weights or ref.weights or ref.source}: is not the checkpoint {path} was made from: it "
            "changed, or is of another model; pass the right one as --weights"
        )
    if plan.attention_rewritten:
        rewrite_attention_(loaded.module, ref.input_shape)
    return replace(loaded, module=loaded.module.eval().requires_grad_(False), ref=ref)
