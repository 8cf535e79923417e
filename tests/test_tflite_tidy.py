"""Transposes a mean can do without and clamps XNNPACK does not know go; files compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgecompress.devices.litert_graph import count_operators, operators_outside_delegate
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


class Padded(nn.Module):
    """Paddings of what is not a convolution's output, unequal on all sides; one map is read twice."""

    def __init__(self, *, ends_padded: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last, self.ends_padded = nn.Conv2d(3, 4, 3), nn.Conv2d(8, 4, 3), ends_padded
        self.pad = nn.ZeroPad2d((1, 2, 3, 4))

    def forward(self, x):
        maps = self.conv(x)
        both = torch.cat([torch.sigmoid(maps), torch.relu(maps)], 1)
        pooled = nn.functional.max_pool2d(self.pad(both), 3)
        if self.ends_padded:
            return self.pad(both).flatten(1)
        return torch.cat([pooled.mean((2, 3)), self.last(both).mean((2, 3))], 1)


@pytest.mark.parametrize(("ends_padded", "left"), [(False, 0), (True, 1)])
def test_transposes_around_a_padding_go_unless_the_output_needs_one(ends_padded, left, tmp_path, monkeypatch):
    network, file = Padded(ends_padded=ends_padded).eval(), tmp_path / "model.tflite"
    untidy = tmp_path / "untidy.tflite"
    tflite_litert_torch.convert(network, (3, 8, 9), file)
    monkeypatch.setattr(tflite_signature, "cancel_transposes_", lambda model, schema: 0)
    tflite_litert_torch.convert(network, (3, 8, 9), untidy)
    assert count_operators(untidy)["TRANSPOSE"] >= 1
    assert count_operators(file).get("TRANSPOSE", 0) == left
    image = torch.randn(1, 3, 8, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)


class Clamped(nn.Module):
    """A network with clamps to 0..1 in its middle and at its end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        maps = 3 * self.conv(x)
        return torch.clamp((maps * torch.clamp(maps, 0.0, 1.0)).mean((2, 3)), 0.0, 1.0)


def test_clamps_are_written_in_operators_xnnpack_knows(tmp_path):
    network, file = Clamped().eval(), tmp_path / "model.tflite"
    tflite_litert_torch.convert(network, (3, 8, 8), file)
    found = count_operators(file)
    assert "RELU_0_TO_1" not in found
    assert (found["RELU"], found["MINIMUM"]) == (2, 2)
    assert operators_outside_delegate(file) == {}
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)
