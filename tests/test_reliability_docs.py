"""What docs/reliability.md promises is what is tested."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PAGE = (HOME / "docs" / "reliability.md").read_text("utf-8")
MAKEFILE = (HOME / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z0-9-]+)", PAGE))))
def test_make_targets_of_the_page_exist(target):
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
    assert f"# make {target} " in MAKEFILE, "its head says what it does"


@pytest.mark.parametrize("file", sorted(set(re.findall(r"\b(test_\w+\.py)", PAGE))))
def test_tests_of_the_page_exist(file):
    assert (HOME / "tests" / file).is_file()
