"""Enlarged parts and mixtures of images."""

import pytest
import torch

from edgecompress.errors import ConfigError
from edgecompress.train.variations import mixture, parse_variations, zoom


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_part_of_a_ramp_is_a_flatter_ramp_within_it():
    ramp = torch.linspace(0, 1, 32).expand(16, 1, 32, 32)
    found = zoom(ramp, dice(), least=0.25)
    assert found.shape == ramp.shape
    slopes = (found[:, 0, 16, -2] - found[:, 0, 16, 1]) * 31 / 29
    assert float(slopes.max()) <= 1.01 and 0.3 < float(slopes.min()) < 0.7
    assert float(found.min()) >= 0 and float(found.max()) <= 1


def test_the_same_dice_give_the_same_images():
    images = torch.randn(4, 3, 8, 8)
    assert torch.equal(zoom(images, dice(1), least=0.5), zoom(images, dice(1), least=0.5))
    assert not torch.equal(mixture(images, dice(1)), mixture(images, dice(2)))


def test_mixtures_lie_between_two_images():
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 2, 2)
    found = mixture(images, dice())
    assert float(found.min()) >= 0 and float(found.max()) <= 4
    assert not torch.equal(found, images)


def test_words_are_read_and_mixtures_left_out_where_labels_count():
    assert len(parse_variations("zoom30,flip,mix", (32, 32), labels=False)) == 3
    assert len(parse_variations("zoom30,flip,mix", (32, 32), labels=True)) == 2
    assert parse_variations("none", (32, 32), labels=False) == ()


@pytest.mark.parametrize("text", ["zoom0", "zoom100", "spin", "mix2"])
def test_other_words_are_refused(text):
    with pytest.raises(ConfigError, match="--augment"):
        parse_variations(text, (32, 32), labels=False)
