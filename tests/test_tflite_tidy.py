"""Transposes that move nothing are taken out of files, others stay, and files compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgecompress.devices.litert_graph import count_operators
from edgecompress.export import tflite_litert_torch
from edgecompress.export.tflite_format import run


class Pooled(nn.Module):
    """Ends as many CNNs do: a map of `side` x `side` that is flattened for the classifier."""

    def __init__(self, side: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.side = side
        self.head = nn.Linear(4 * side * side, 5)

    def forward(self, x):
        x = nn.functional.avg_pool2d(torch.relu(self.conv(x)), 8 // self.side)
        return self.head(x.flatten(1))


@pytest.mark.parametrize(("side", "left"), [(1, 0), (2, 1)])
def test_only_transposes_that_move_data_stay(side, left, tmp_path):
    network, file = Pooled(side).eval(), tmp_path / "model.tflite"
    tflite_litert_torch.convert(network, (3, 8, 8), file)
    assert count_operators(file).get("TRANSPOSE", 0) == left
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)
