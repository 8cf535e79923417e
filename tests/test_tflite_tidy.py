"""Transposes a mean can do without are taken out of files, others stay, and files compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgecompress.devices.litert_graph import count_operators
from edgecompress.export import tflite_litert_torch, tflite_signature
from edgecompress.export.tflite_format import run


class Ending(nn.Module):
    """A network that ends as a function says."""

    def __init__(self, end) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.end = end

    def forward(self, x):
        return self.end(torch.relu(self.conv(x)))


ENDS = {
    "global average": (lambda x: x.mean((2, 3)), 0),
    "average over rows": (lambda x: x.mean(2).flatten(1), 1),
    "no average": (lambda x: x.flatten(1), 1),
}


@pytest.mark.parametrize("name", ENDS)
def test_only_transposes_that_are_needed_stay(name, tmp_path, monkeypatch):
    end, left = ENDS[name]
    network, file, untidy = Ending(end).eval(), tmp_path / "model.tflite", tmp_path / "untidy.tflite"
    tflite_litert_torch.convert(network, (3, 8, 8), file)
    monkeypatch.setattr(tflite_signature, "fold_transposes_into_means_", lambda model, schema: 0)
    tflite_litert_torch.convert(network, (3, 8, 8), untidy)
    assert count_operators(untidy)["TRANSPOSE"] == 1
    assert count_operators(file).get("TRANSPOSE", 0) == left
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)
