"""The parity check: differences measured at any scale, and nothing wrong gets through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from edgecompress.errors import ExportError
from edgecompress.export.contract import Exporter
from edgecompress.export.parity import check_parity


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def returning(outputs: torch.Tensor) -> Exporter:
    """A format whose files always compute these outputs."""
    return Exporter("fixed", "", ".fixed", lambda model, shape, path: None, lambda file, images: outputs)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_parity_measures_the_largest_difference_whatever_the_scale(scale):
    model, batch = small_network(), images(4)
    with torch.no_grad():
        model[-1].weight *= scale
        model[-1].bias *= scale
        expected = model(batch)
    largest, found = float(expected.abs().max()), expected.clone()
    found[2, 1] += 0.01 * largest
    result = check_parity(returning(found), Path("model.fixed"), model, batch, rtol=0.011)
    assert result.max_abs_diff == pytest.approx(0.01 * largest, rel=1e-4)
    assert result.max_rel_diff == pytest.approx(0.01, rel=1e-4)
    with pytest.raises(ExportError, match=r"^model\.fixed: .*1\.0e-02.*9\.0e-03.*not faithful"):
        check_parity(returning(found), Path("model.fixed"), model, batch, rtol=0.009)


def test_parity_counts_images_with_another_arg_max():
    model, batch = small_network(), images(4)
    with torch.no_grad():
        found = model(batch)
    found[1:] = found[1:].flip(1)
    assert check_parity(returning(found), Path("model"), model, batch, rtol=9.0).top1_agreement == 0.25


def test_outputs_that_are_no_numbers_never_agree():
    model, batch = small_network(), images(2)
    nothing = torch.full((2, 2), float("nan"))
    with pytest.raises(ExportError):
        check_parity(returning(nothing), Path("model"), model, batch, rtol=9.0)
    nn.init.constant_(model[-1].bias, float("nan"))
    with pytest.raises(ExportError):
        check_parity(returning(nothing), Path("model"), model, batch, rtol=9.0)


def test_parity_needs_an_image():
    with pytest.raises(ExportError, match="at least one"):
        check_parity(returning(torch.zeros(0, 2)), Path("model"), small_network(), images(0), rtol=9.0)
