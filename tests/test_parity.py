"""The parity check: differences measured at any scale, and nothing wrong gets through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from edgecompress.core.results import ParityResult
from edgecompress.errors import ExportError
from edgecompress.export.contract import Format
from edgecompress.export.parity import LIMITS, Limits, check_parity, outputs


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def returning(found: torch.Tensor) -> Format:
    """A format whose files always compute these outputs."""
    return Format("fixed", "", ".fixed", "NCHW", lambda file, images: found, lambda file: None, {})


def check(found: torch.Tensor, expected: torch.Tensor, **limits: float) -> ParityResult:
    return check_parity(
        returning(found), Path("model.fixed"), expected, images(len(expected)), limits=Limits(**limits)
    )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_parity_measures_the_largest_difference_whatever_the_scale(scale):
    model = small_network()
    with torch.no_grad():
        model[-1].weight *= scale
        model[-1].bias *= scale
    expected = outputs(model, images(4))
    largest, found = float(expected.abs().max()), expected.clone()
    found[2, 1] += 0.01 * largest
    result = check(found, expected, rtol=0.011)
    assert (result.file, result.format, result.images) == ("model.fixed", "fixed", 4)
    assert result.max_abs_diff == pytest.approx(0.01 * largest, rel=1e-4)
    assert result.max_rel_diff == pytest.approx(0.01, rel=1e-4)
    with pytest.raises(ExportError, match=r"^model\.fixed: .*1\.0e-02.*9\.0e-03.*not faithful"):
        check(found, expected, rtol=0.009)


def test_an_absolute_limit_looks_at_the_difference_itself():
    expected = torch.tensor([[1000.0, 0.0]])
    assert check(expected + 0.5, expected, atol=0.6).max_abs_diff == 0.5
    with pytest.raises(ExportError, match=r"5\.0e-01.*4\.0e-01 is allowed"):
        check(expected + 0.5, expected, atol=0.4)


def test_parity_counts_images_with_another_arg_max():
    expected = outputs(small_network(), images(4))
    found = expected.clone()
    found[1:] = found[1:].flip(1)
    assert check(found, expected, agreement=0.25).top1_agreement == 0.25
    with pytest.raises(ExportError, match=r"25\.0% of 4 images, 26% is asked for.*--min-agreement"):
        check(found, expected, agreement=0.26)
    with pytest.raises(ExportError, match="is asked for"):  # or it would let everything through
        check(found, expected, agreement=float("nan"))


@pytest.mark.parametrize("limits", [*LIMITS.values(), Limits()])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_outputs_that_are_no_numbers_never_agree(value, limits):
    numbers, nothing = torch.ones(2, 2), torch.full((2, 2), float(value))
    for found, expected in ((nothing, numbers), (numbers, nothing), (nothing, nothing)):
        with pytest.raises(ExportError, match="not faithful"):
            check_parity(returning(found), Path("model"), expected, images(2), limits=limits)


def test_outputs_of_another_shape_are_of_another_network():
    with pytest.raises(ExportError, match=r"\(4, 3\).*\(4, 2\).*another network"):
        check(torch.zeros(4, 3), torch.zeros(4, 2), agreement=0.0)


def test_a_network_that_answers_zero_is_compared_by_the_difference():
    assert check(torch.zeros(2, 2), torch.zeros(2, 2), rtol=0.0).max_rel_diff == 0
    with pytest.raises(ExportError, match="not faithful"):
        check(torch.full((2, 2), 0.1), torch.zeros(2, 2), rtol=0.01)


def test_outputs_do_not_depend_on_how_images_are_batched():
    model, batch = small_network(), images(70)
    apart = torch.cat([outputs(model, image) for image in batch.split(1)])
    torch.testing.assert_close(outputs(model, batch), apart)


def test_outputs_need_an_image_and_a_network_that_is_ready():
    with pytest.raises(ExportError, match="at least one"):
        outputs(small_network(), images(0))
    with pytest.raises(ExportError, match="training mode"):
        outputs(small_network().train(), images(1))
