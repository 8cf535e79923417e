"""The three parts share no image, whatever is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_files import RAW_GREY, RAW_RGB, noise, save_png

from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.sources import Source, open_source
from edgecompress.data.splits import Splits, check_labels, make_splits, usual_counts
from edgecompress.errors import ConfigError, DataError

counts = st.integers(0, 12)
seeds = st.integers(0, 2**32)


@dataclass(frozen=True)
class Numbers:
    """Images that show their own number, so that a picture tells where it comes from."""

    name: str
    first: int
    count: int
    classes: int | None = None

    def __len__(self) -> int:
        return self.count

    def labels(self) -> torch.Tensor:
        return torch.arange(self.first, self.first + self.count)

    def images(self, indices: Sequence[int]) -> torch.Tensor:
        return torch.tensor([self.first + i for i in indices], dtype=torch.float32).view(-1, 1, 1, 1)


def pictures(splits: Splits) -> list[float]:
    parts = [splits.calibration, splits.selection, *([splits.report] if splits.report else [])]
    return [value for part in parts for value in part.tensors()[0].flatten().tolist()]


@given(calibration=counts, selection=counts, report=counts, spare=counts, seed=seeds)
def test_parts_of_a_pool_are_disjoint_and_as_large_as_asked(calibration, selection, report, spare, seed):
    source = Source("pool", pool=Numbers("pool", 0, calibration + selection + report + spare))
    splits = make_splits(source, calibration=calibration, selection=selection, report=report, seed=seed)
    seen = pictures(splits)
    assert len(set(seen)) == len(seen) == calibration + selection + report
    assert (len(splits.calibration), len(splits.selection)) == (calibration, selection)
    assert (splits.report is None) == (report == 0)


@given(calibration=counts, selection=counts, report=st.none() | counts, seed=seeds, other=seeds)
def test_test_images_that_choose_are_always_the_same_and_not_reported_on(
    calibration, selection, report, seed, other
):
    source = Source("two", train=Numbers("train", 0, 12), test=Numbers("test", 100, 24))
    ask = {"calibration": calibration, "selection": selection, "report": report, "select_on_test": True}
    one, two = (make_splits(source, **ask, seed=number) for number in (seed, other))
    seen = pictures(one)
    assert (
        len(set(seen))
        == len(seen)
        == calibration + selection + (24 - selection if report is None else report)
    )
    assert {*one.selection.tensors()[0].flatten().tolist()} <= {*range(100, 124)}
    assert (one.selection, one.report) == (two.selection, two.report)


def test_without_test_images_none_can_choose():
    with pytest.raises(ConfigError, match="no test images to select on"):
        make_splits(
            Source("p", pool=Numbers("p", 0, 9)), calibration=1, selection=1, seed=0, select_on_test=True
        )
    source = Source("two", train=Numbers("train", 0, 12), test=Numbers("test", 100, 24))
    for selection, report in ((25, None), (10, 15)):
        ask = {"calibration": 1, "selection": selection, "report": report}
        with pytest.raises(DataError, match="ask for fewer"):
            make_splits(source, **ask, seed=0, select_on_test=True)


@given(calibration=counts, selection=counts, report=st.none() | st.integers(1, 12), seed=seeds)
def test_a_division_is_kept(calibration, selection, report, seed):
    source = Source("two", train=Numbers("train", 0, 24), test=Numbers("test", 100, 12))
    splits = make_splits(source, calibration=calibration, selection=selection, report=report, seed=seed)
    seen = pictures(splits)
    assert len(set(seen)) == len(seen)
    assert sum(value >= 100 for value in seen) == len(splits.report) == (12 if report is None else report)


@given(size=st.integers(0, 20), calibration=counts, selection=counts, report=counts)
def test_too_few_images_are_refused_with_the_numbers(size, calibration, selection, report):
    source = Source("pool", pool=Numbers("pool", 0, size))
    if calibration + selection + report > size:
        with pytest.raises(DataError, match=rf"pool: {size} images"):
            make_splits(source, calibration=calibration, selection=selection, report=report, seed=0)
    else:
        splits = make_splits(source, calibration=calibration, selection=selection, report=report, seed=0)
        assert len(pictures(splits)) == calibration + selection + report


@given(seed=seeds, other=seeds, smaller=counts, calibration=counts)
def test_report_does_not_depend_on_the_seed_and_calibration_grows(seed, other, smaller, calibration):
    source = Source("pool", pool=Numbers("pool", 0, 40))
    one = make_splits(source, calibration=calibration, selection=0, report=10, seed=seed)
    two = make_splits(source, calibration=calibration, selection=3, report=10, seed=other)
    few = make_splits(source, calibration=min(smaller, calibration), selection=0, report=10, seed=seed)
    assert one.report.indices == two.report.indices
    assert one.calibration.indices[: len(few.calibration)] == few.calibration.indices


def test_a_longer_report_contains_the_shorter_one():
    source = Source("two", train=Numbers("train", 0, 24), test=Numbers("test", 100, 40))
    short, long = (make_splits(source, calibration=0, selection=0, report=n, seed=0).report for n in (9, 20))
    assert set(short.indices) < set(long.indices)


def test_the_hash_tells_whether_two_runs_used_the_same_images():
    source = Source("pool", pool=Numbers("pool", 0, 40))
    hashes = [make_splits(source, calibration=9, selection=9, seed=seed).summary.sha256 for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_summary_counts_what_was_drawn():
    source = Source("pool", pool=Numbers("pool", 0, 40))
    summary = make_splits(source, calibration=9, selection=8, seed=5).summary
    assert (summary.source, summary.calibration, summary.selection) == ("pool", 9, 8)
    assert (summary.report, summary.seed) == (23, 5)


def test_a_pool_used_up_leaves_no_report():
    source = Source("pool", pool=Numbers("pool", 0, 10))
    with pytest.raises(DataError, match="10 images leave 0 after 10 for calibration and selection"):
        make_splits(source, calibration=6, selection=4, seed=0)


def test_a_negative_count_is_refused():
    with pytest.raises(ConfigError, match="negative"):
        make_splits(Source("pool", pool=Numbers("pool", 0, 10)), calibration=-1, selection=0, seed=0)


@given(size=st.integers(1, 9), count=counts)
def test_batches_are_the_tensors_cut_in_pieces(size, count):
    source = Source("pool", pool=Numbers("pool", 0, 20))
    split = make_splits(source, calibration=count, selection=0, report=1, seed=3).calibration
    images, labels = split.tensors()
    batches = list(split.batches(size))
    assert all(len(part) == size for part, _ in batches[:-1])
    assert [one.item() for part, _ in batches for one in part.flatten()] == images.flatten().tolist()
    assert [one.item() for _, part in batches for one in part] == labels.tolist() == images.flatten().tolist()


def test_another_source_for_the_report_replaces_the_test_part():
    source = Source("two", train=Numbers("train", 0, 24), test=Numbers("test", 100, 12))
    other = Source("other", pool=Numbers("other", 200, 5))
    splits = make_splits(source, calibration=4, selection=4, seed=0, report_source=other)
    assert sorted(splits.report.tensors()[0].flatten().tolist()) == [200, 201, 202, 203, 204]
    assert splits.summary.source == "two, report on other"


def test_a_report_on_calibration_images_is_refused(tmp_path):
    pixels = noise(20, 6, 8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.zeros(20, dtype=int))
    np.savez(tmp_path / "b.npz", x=pixels[::-1], y=np.zeros(20, dtype=int))
    source, same = (open_source(str(tmp_path / name), RAW_GREY) for name in ("a.npz", "b.npz"))
    with pytest.raises(DataError, match="7 of 20 report images are also calibration or selection images"):
        make_splits(source, calibration=4, selection=3, seed=0, report_source=same)


def test_unlabelled_images_are_good_for_calibration_only(tmp_path):
    for i in range(6):
        save_png(tmp_path / f"{i}.png", noise(6, 8, 3, seed=i))
    source = open_source(str(tmp_path), RAW_RGB)
    splits = make_splits(source, calibration=4, selection=0, report=0, seed=0)
    assert splits.calibration.tensors()[1] is None and splits.report is None
    with pytest.raises(DataError, match="image folder without labels"):
        make_splits(source, calibration=4, selection=0, seed=0)


def test_labels_must_be_classes_of_the_model():
    images = ArraySet("a", noise(4, 6, 8), [0, 1, 2, 9], RAW_GREY)
    report = make_splits(Source("a", pool=images), calibration=0, selection=0, seed=0).report
    check_labels(report, 10)
    with pytest.raises(DataError, match="a: label 9 found; the model has 9 classes, 0 to 8"):
        check_labels(report, 9)


def test_class_folders_must_be_the_classes_of_the_model(tmp_path):
    for name in ("cat", "dog"):
        save_png(tmp_path / name / "1.png", noise(6, 8, 3))
    report = make_splits(open_source(str(tmp_path), RAW_RGB), calibration=0, selection=0, seed=0).report
    check_labels(report, 2)
    with pytest.raises(DataError, match="2 class folders, but the model has 1000 classes"):
        check_labels(report, 1000)


@pytest.mark.parametrize(("available", "expected"), [(5000, (512, 512)), (100, (40, 20)), (1, (1, 0))])
def test_usual_counts_leave_images_for_a_report(tmp_path, available, expected):
    file = tmp_path / "few.npz"
    np.savez(file, x=np.zeros((available, 4, 4, 3), np.uint8), y=np.zeros(available, np.int64))

    assert usual_counts(open_source(str(file), Preprocess(size=(4, 4)))) == expected
