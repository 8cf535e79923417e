"""A compressed model on disk: `plan.json` says what was replaced, `weights.safetensors` holds the rest.

Loading needs neither pickle nor the code that searched: the plan spells out every operator.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from edgecompress.core.costs import block_params
from edgecompress.core.store import read_record, write_record
from edgecompress.core.types import Plan
from edgecompress.errors import ArtefactError, ModelError
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.consent import check_consent
from edgecompress.nets.modules import block_module, replace_
from edgecompress.nets.narrowing import narrow_like_
from edgecompress.nets.sources import build_module

PLAN_FILE = "plan.json"
WEIGHTS_FILE = "weights.safetensors"


def save_artefact(directory: Path, plan: Plan, model: nn.Module) -> None:
    """Writes both files; the directory should be one that is renamed when complete.

    Raises:
        ArtefactError: the disk is full.
    """
    write_record(directory / PLAN_FILE, plan)
    state = {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
    try:
        save_file(state, directory / WEIGHTS_FILE)
        (directory / WEIGHTS_FILE).chmod(0o644)  # safetensors lets only the owner read it
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{directory / WEIGHTS_FILE}: could not be written: {error}") from None


def load(path: str | Path, *, model: nn.Module | None = None, trust_code: bool = False) -> nn.Module:
    """Rebuilds the compressed model of a run or artefact directory, in eval mode.

    `model` is the dense network to start from when its source is not at hand; it is changed in place. Without
    it a plan may name a Python file to run: one outside of the current folder, or in the artefact itself, is
    run only with `trust_code`.

    Raises:
        ArtefactError: a file is missing or damaged, the weights do not fit the plan, or it names code that is
            not trusted.
        ModelError: the model's source cannot be found.
    """
    directory = Path(path)
    plan = read_record(directory / PLAN_FILE, Plan)
    if model is None and not trust_code:
        check_consent(plan.model.source, artefact=directory)
    _check_promised(plan, directory / WEIGHTS_FILE)
    network = build_module(plan.model) if model is None else model
    try:
        rewrite_(network, plan)
    except ModelError as error:
        raise ArtefactError(f"{directory / PLAN_FILE}: {error}; is it the plan of another model?") from None
    _fill_(network, directory / WEIGHTS_FILE)
    return network.eval()


def read_plan(directory: Path) -> Plan:
    """Reads the plan of a run or artefact directory, whose network may then be built.

    Raises:
        ArtefactError: there is none, it is damaged, or it names code that is not trusted.
    """
    plan = read_record(directory / PLAN_FILE, Plan)
    check_consent(plan.model.source, artefact=directory)
    return plan


def _check_promised(plan: Plan, file: Path) -> None:
    """Makes sure that blocks are no larger than their file, before memory is taken for them."""
    promised = sum(block_params(block) for choice in plan.choices for block in choice.blocks)
    try:
        size_bytes = file.stat().st_size
    except FileNotFoundError:
        raise ArtefactError(f"{file}: there is no such file") from None
    except OSError as error:
        raise ArtefactError(f"{file}: cannot be read: {error.strerror or error}") from None
    if promised > size_bytes:
        raise ArtefactError(
            f"{file}: does not fit {PLAN_FILE}: {size_bytes} bytes cannot hold {promised} weights; "
            "was one of them replaced?"
        )


def rewrite_(network: nn.Module, plan: Plan) -> None:
    """Takes away what a plan does and puts its blocks in place of layers, with random weights."""
    if plan.attention_rewritten:
        rewrite_attention_(network, plan.model.input_shape)
    narrow_like_(network, plan.narrowings)
    for choice in plan.choices:
        for name, block in zip(choice.layers, choice.blocks, strict=True):
            replace_(network, name, block_module(block))


def _fill_(network: nn.Module, file: Path) -> None:
    try:
        state = load_file(file)
    except FileNotFoundError:
        raise ArtefactError(f"{file}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{file}: cannot be read: {error}") from None
    wanted = network.state_dict()
    odd = sorted(wanted.keys() ^ state.keys())
    odd += sorted(k for k in wanted.keys() & state.keys() if wanted[k].shape != state[k].shape)
    if odd:
        raise ArtefactError(
            f"{file}: does not fit {PLAN_FILE}: {', '.join(odd[:5])}; was one of them replaced?"
        )
    network.load_state_dict(state)
