"""Genotypes and search networks to test with."""

import torch

from edgecompress.core.genotype import INPUTS, KINDS, NODES, NONE, OPERATIONS, Cell, Edge, Genotype, edges_of
from edgecompress.nets.cell_edges import Stack
from edgecompress.nets.cell_networks import search_network

IMAGE = (1, 12, 12)


def random_genotype(space: str, seed: int = 0, **more) -> Genotype:
    """Returns a genotype with operations drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    names = [name for name in OPERATIONS[space] if space == "nats" or name != NONE]

    def cell() -> Cell:
        nodes = []
        for node in range(NODES[space]):
            states = torch.randperm(INPUTS[space] + node, generator=generator).tolist()
            kept = sorted(states[:2]) if space == "darts" else sorted(states)
            drawn = [int(torch.randint(len(names), (), generator=generator)) for _ in kept]
            nodes.append(tuple(Edge(state=s, operation=names[d]) for s, d in zip(kept, drawn, strict=True)))
        return Cell(nodes=tuple(nodes))

    cells = [cell() for _ in KINDS[space]]
    fields = {"channels": 4, "cells": 3, "image": IMAGE, "classes": 5} | more
    reduction = cells[1] if len(cells) > 1 else None
    return Genotype(space=space, normal=cells[0], reduction=reduction, **fields)


def one_hot(genotype: Genotype) -> list[torch.Tensor]:
    """Returns the probabilities of a search network that say what a genotype does; other edges are none."""
    names, edges = OPERATIONS[genotype.space], edges_of(genotype.space)
    found = []
    for cell in genotype.kinds():
        rows = torch.zeros(len(edges), len(names))
        chosen = {(edge.state, node): edge.operation for node, edge in cell.edges()}
        for number, pair in enumerate(edges):
            rows[number, names.index(chosen.get(pair, NONE))] = 1.0
        found.append(rows)
    return found


def searched(genotype: Genotype) -> torch.nn.Module:
    """Returns the search network of a genotype's space, its statistics as if it had been trained."""
    torch.manual_seed(0)
    stack = Stack(genotype.channels, genotype.cells, genotype.image[0], genotype.classes, affine=False)
    network = search_network(genotype.space, OPERATIONS[genotype.space], stack)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.3, 2)
    return network.eval()
