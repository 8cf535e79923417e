"""The licences of what this package needs: all are listed, and none asks more than the LGPL."""

import re
import tomllib
from pathlib import Path

import pytest
from licences import Package, needed_packages, objections
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def packages():
    return needed_packages()


def test_every_dependency_is_looked_at(packages):
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {canonicalize_name(Requirement(one).name) for one in asked}
    assert names < {one.name for one in packages}  # and what those need


def test_every_dependency_is_on_the_list(packages):
    listed = re.findall(
        r"^\| ([\w.-]+) \| [^|]+ \| [\w.-]+ \|$", (ROOT / "docs/licences.md").read_text(), re.M
    )
    assert {one.name for one in packages} <= set(listed), "renew the table: python tests/licences.py"


def test_no_licence_is_unknown_or_goes_further_than_the_lgpl(packages):
    assert objections(packages) == []


@pytest.mark.parametrize(
    ("licence", "is_fine"),
    [
        ("GPL-3.0-or-later", False),
        ("AGPL-3.0", False),
        ("GNU General Public License v2 (GPLv2)", False),
        ("GNU Affero General Public License v3", False),
        ("SSPL-1.0", False),
        ("unknown", False),
        ("LGPL-2.1-only", True),
        ("GNU Lesser General Public License v3 (LGPLv3)", True),
        ("MPL-2.0 AND MIT", True),
        ("GPL-2.0 OR MIT", True),
    ],
)
def test_what_is_objected_to(licence, is_fine):
    assert (objections([Package("it", licence, "us")]) == []) == is_fine
