"""Finished steps, kept on disk."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgecompress.core.memo import LONGEST, NO_MEMO, NUMBERS, Memo, file_name
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError
from edgecompress.nets.kept import kept_metrics, kept_tensors
from edgecompress.nets.metric import PLAIN, LayerMetric


class Made(Record):
    value: float


def never():
    raise AssertionError("computed again")


def steps():
    """Yields 1.0, 2.0, ...: what is computed once stays 1.0."""
    return iter(float(number) for number in range(1, 100))


# Numbers


def test_a_number_is_computed_once_and_survives_the_process(tmp_path):
    memo, values = Memo(tmp_path), steps()
    assert [memo.number("a", values.__next__) for _ in range(3)] == [1.0, 1.0, 1.0]
    assert Memo(tmp_path).number("a", never) == 1.0
    assert Memo(tmp_path).number("b", values.__next__) == 2.0


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, -0.0, math.inf, math.nan, 3])
def test_a_number_comes_back_to_the_last_bit(tmp_path, value):
    first = Memo(tmp_path).number("loss 1/2 \n é", lambda: value)
    again = Memo(tmp_path).number("loss 1/2 \n é", never)
    assert repr(first) == repr(again) == repr(float(value))


@pytest.mark.parametrize("keep", range(1, 14))
def test_a_line_cut_off_at_any_place_is_computed_again_and_harms_no_other(tmp_path, keep):
    memo = Memo(tmp_path)
    memo.number("first", lambda: 1.0)
    before = (tmp_path / NUMBERS).read_bytes()
    memo.number("second", lambda: 2.0)
    (tmp_path / NUMBERS).write_bytes((tmp_path / NUMBERS).read_bytes()[: len(before) + keep])
    after = Memo(tmp_path)
    assert after.number("first", never) == 1.0
    assert after.number("second", lambda: 5.0) == 5.0
    assert Memo(tmp_path).number("second", never) == 5.0


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    Memo(tmp_path).number("a", lambda: 1.0)
    with (tmp_path / NUMBERS).open("ab") as stream:
        stream.write(b"\n\xff\xfe\x00")
    assert Memo(tmp_path).number("a", never) == 1.0


def test_what_raised_is_not_kept(tmp_path):
    memo = Memo(tmp_path)
    with pytest.raises(ZeroDivisionError):
        memo.number("a", lambda: 1 / 0)
    assert memo.number("a", lambda: 2.0) == 2.0


def test_a_full_disk_is_an_error_the_user_can_fix(tmp_path):
    memo = Memo(tmp_path)
    (tmp_path / NUMBERS).mkdir()
    with pytest.raises(ArtefactError, match=NUMBERS):
        memo.number("a", lambda: 1.0)


# Records and files


def test_a_record_is_computed_once_and_survives_the_process(tmp_path):
    values = steps()

    def make():
        return Made(value=next(values))

    assert Memo(tmp_path).record("one", Made, make) == Memo(tmp_path).record("one", Made, never)
    assert Memo(tmp_path).record("two", Made, make).value == 2.0


def test_a_file_stands_whole_or_not_at_all(tmp_path):
    memo = Memo(tmp_path)

    def break_off(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memo.file("net.bin", break_off)
    assert list(tmp_path.iterdir()) == []
    assert memo.file("net.bin", lambda path: path.write_text("whole")).read_text() == "whole"
    assert Memo(tmp_path).file("net.bin", never).read_text() == "whole"


def test_without_a_directory_nothing_is_kept():
    values = steps()
    assert [NO_MEMO.number("a", values.__next__) for _ in range(2)] == [1.0, 2.0]
    made = [NO_MEMO.record("a", Made, lambda: Made(value=next(values))).value for _ in range(2)]
    assert made == [3.0, 4.0]
    assert NO_MEMO.file("a", never) is NO_MEMO.path("a") is None


# Names

NAMES = ["errors features/0.conv", "errors ../../up", "a" * 500, ".hidden", "errors é", "a\n", "errors a:b*?"]


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_any_name_are_kept_within_the_directory(tmp_path, name):
    memo = Memo(tmp_path / "work")
    assert memo.record(name, Made, lambda: Made(value=1.0)) == Memo(tmp_path / "work").record(
        name, Made, never
    )
    assert {path.name for path in tmp_path.iterdir()} == {"work"}
    assert len(list((tmp_path / "work").iterdir())) == 1


@given(st.sets(st.text(min_size=1, max_size=300), min_size=2, max_size=5))
def test_different_names_are_different_files(names):
    files = {file_name(f"{name}.json") for name in names}
    assert len(files) == len(names)
    for file in files:
        assert "/" not in file and file.endswith(".json") and len(file.encode()) <= LONGEST + 30


@pytest.mark.parametrize(
    "name", ["statistics.safetensors", "errors layer1.0.conv2.json", "scores 1 0.05.json"]
)
def test_plain_names_stay_as_they_are(name):
    assert file_name(name) == name


# Tensors


def test_tensors_lie_in_memory_alike_whether_computed_or_read(tmp_path):
    value = torch.arange(12, dtype=torch.float64).reshape(3, 4).t()
    made = kept_tensors(Memo(tmp_path), "t", lambda: {"a": value})
    read = kept_tensors(Memo(tmp_path), "t", never)
    for one in (made["a"], read["a"]):
        assert torch.equal(one, value) and one.is_contiguous() and one.data_ptr() % 64 == 0


def test_metrics_come_back_and_plain_ones_stay_plain(tmp_path):
    metrics = {
        "both/1": LayerMetric(torch.eye(2), torch.eye(3)),
        "in": LayerMetric(torch.eye(4)),
        "plain": PLAIN,
    }
    kept_metrics(Memo(tmp_path), "m", list(metrics), lambda: metrics)
    read = kept_metrics(Memo(tmp_path), "m", list(metrics), never)
    assert read["plain"] is PLAIN and read["in"].output is None
    assert torch.equal(read["both/1"].output, torch.eye(3)) and torch.equal(read["in"].input, torch.eye(4))
    assert kept_metrics(NO_MEMO, "m", list(metrics), lambda: metrics)["plain"] is PLAIN
