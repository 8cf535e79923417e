"""Images of a training: every one is seen, chance follows from seed and step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trainings import split_of, training_images

from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError, DataError
from edgecompress.train.images import TrainingImages, crop, erase, mirror, parse_changes, step_indices


def noise(count=6, side=8, channels=2):
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(count=st.integers(1, 40), size=st.integers(1, 50), turns=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_every_image_is_seen_equally_often(count, size, turns):
    size = min(size, count)
    steps = turns * count  # of size images each: every image comes turns x size times
    seen = torch.cat([step_indices(count, size, step, 3) for step in range(steps)])
    assert torch.equal(seen.bincount(minlength=count), torch.full((count,), turns * size))


def test_a_step_gives_the_same_images_every_time_and_another_seed_others():
    changes = parse_changes("crop2,flip,erase10", (8, 8))
    one, same = (training_images(changes=changes).batch(5) for _ in range(2))
    other = training_images(changes=changes, seed=1).batch(5)
    assert torch.equal(one.images, same.images) and torch.equal(one.labels, same.labels)
    assert not torch.equal(one.images, other.images)
    assert (one.whole, one.step) == (16, 5)


def test_labels_stay_with_their_images():
    images = training_images()
    batch = images.batch(2)
    everything, labels = images.split.tensors()
    for image, label in zip(batch.images, batch.labels, strict=True):
        place = int((everything - image).abs().flatten(1).sum(1).argmin())
        assert torch.equal(everything[place], image) and labels[place] == label


def test_mirrored_images_are_the_images_or_their_mirror_images():
    images = noise(20)
    changed = mirror(images, generator())
    same = (changed == images).flatten(1).all(1)
    flipped = (changed == images.flip(3)).flatten(1).all(1)
    assert bool((same | flipped).all()) and 2 < int(flipped.sum()) < 18


def test_cropped_images_are_moved_by_at_most_the_margin():
    images = noise(12)
    changed = crop(images, generator(), margin=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="reflect")
    places = set()
    for one, wide in zip(changed, padded, strict=True):
        found = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(wide[:, y : y + 8, x : x + 8], one)
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) > 4


def test_erasing_blanks_a_square_of_the_share_asked_for():
    images = noise(40) + 10
    changed = erase(images, generator(), share=0.25)
    blanked = (changed == 0).all(1).flatten(1).sum(1)
    assert set(blanked.tolist()) == {0, 16}
    assert torch.equal(changed[changed != 0], images[changed != 0])


@pytest.mark.parametrize("text", ["turn", "crop", "crop0", "crop8", "erase0", "erase80", "flip2"])
def test_changes_that_are_not_understood_are_named(text):
    with pytest.raises(ConfigError, match=f"--augment '{text}'"):
        parse_changes(text, (8, 8))
    assert parse_changes("none", (8, 8)) == ()


def test_no_images_is_an_error_and_few_make_a_small_batch():
    with pytest.raises(DataError, match="no images are left"):
        TrainingImages(Split(split_of(3).images, (), "calibration"), 4, (), 0)
    few = TrainingImages(split_of(3), 16, (), 0)
    assert (few.size, few.steps_per_epoch) == (3, 1)
