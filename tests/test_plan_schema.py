"""The published schema of plan.json is the one the package writes."""

import json
from pathlib import Path

from edgecompress.core.types import Plan

SCHEMA = Path(__file__).parents[1] / "docs" / "plan.schema.json"


def test_the_published_schema_is_current():
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == Plan.model_json_schema()


def test_a_plan_of_another_version_is_refused_by_the_schema():
    assert Plan.model_json_schema()["properties"]["format_version"]["const"] == 1
