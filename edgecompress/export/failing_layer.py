"""Finds the layer a converter gave up on: users know their layers, not the operators of a traced graph."""

from __future__ import annotations

import traceback

import torch
from torch import nn

from edgecompress.core.quiet import quiet

FORWARD = "the network's forward"
"""What messages call the place of what is in no layer."""


def layer_running(model: nn.Module, error: BaseException) -> str | None:
    """Returns the dotted name of the innermost module that was running when an error rose, if one was."""
    names = {id(module): name for name, module in model.named_modules()}
    found, cause = None, error.__cause__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # whatever a forward calls it, in torch's frames the module is `self`
        found = names.get(id(frame.f_locals.get("self")), found)
    inner = None if cause is None else layer_running(model, cause)
    return inner or (FORWARD if found == "" else found)


def layer_calling(program: torch.export.ExportedProgram, operator: str) -> str | None:
    """Returns the dotted name of the innermost module that calls an operator, as `aten.relu`, if one does.

    Converters split operators in their own ways before they give up, so the operator may be part of
    one, or called a little differently.
    """
    for node in (*_split_up(program).graph.nodes, *program.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and _bare(schema.name.replace("::", ".")) == _bare(operator):
            stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values() if path]
            return stack[-1] if stack else FORWARD
    return None


def _split_up(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    try:
        with quiet():
            split: torch.export.ExportedProgram = program.run_decompositions()
    except RuntimeError:  # what cannot be split is looked for as it is
        return program
    return split


def _bare(operator: str) -> str:
    """Returns a name without namespace and underscores: `prims.erf_inv` is what becomes of `aten.erfinv`."""
    return operator.rpartition(".")[2].replace("_", "")
