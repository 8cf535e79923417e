"""Damaged files of every format are read or refused in one line; `make fuzz` tries very many more."""

from __future__ import annotations

import pytest
from fuzz.contract import folder_of, outcome
from fuzz.formats import FORMATS, count_outcomes
from hypothesis import HealthCheck, Phase, given, settings

from edgecompress.errors import EdgeCompressError


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_damaged_files_are_read_or_refused(kind, tmp_path):
    seen = []
    with folder_of(kind, tmp_path) as folder:

        @settings(
            max_examples=kind.quick,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(kind.damaged())
        def read_all(content):
            seen.append(outcome(kind, folder, content))

        read_all()
    assert len(seen) >= kind.quick and set(seen) <= {"read", "refused"}


def test_formats_have_different_names():
    assert len({kind.name for kind in FORMATS}) == len(FORMATS)


def test_a_reader_that_crashes_is_found(tmp_path):
    """The loop itself: errors of ours are counted, all others are kept with an input that does it."""
    (kind,) = (one for one in FORMATS if one.name == "settings-json")

    def fail_now_and_then(folder):
        content = (folder / kind.file).read_bytes()
        if len(content) % 2:
            raise EdgeCompressError("odd")
        if len(content) % 3:
            raise ZeroDivisionError

    broken = type(kind)(kind.name, kind.file, kind.damaged, fail_now_and_then)
    found = count_outcomes(broken, tmp_path, 60, 0)
    (crash,) = found.crashes
    assert found.refused > 0 and crash.startswith("ZeroDivisionError at test_fuzz.py")
