"""The published schemas of records are those the package writes."""

import json
from pathlib import Path

import pytest
from made_benches import bench_of, measurement, result_of

from edgecompress.core.latency_table import LatencyTable
from edgecompress.core.measurement import BenchResult
from edgecompress.core.results import ExportResult
from edgecompress.core.search_results import SearchResult

DOCS = Path(__file__).parents[1] / "docs"
PUBLISHED = pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("bench", BenchResult),
        ("export", ExportResult),
        ("latency_table", LatencyTable),
        ("search", SearchResult),
    ],
)


@PUBLISHED
def test_the_published_schema_is_current(file, kind):
    text = (DOCS / f"{file}.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == kind.model_json_schema()


@PUBLISHED
def test_a_record_of_another_version_is_refused_by_the_schema(file, kind):
    assert kind.model_json_schema()["properties"]["schema_version"]["const"] == 1


def test_every_field_of_a_result_is_in_the_schema():
    written = result_of(bench_of(measurement("a.tflite", 1.0))).model_dump(mode="json")
    schema = json.loads((DOCS / "bench.schema.json").read_text(encoding="utf-8"))
    assert set(written) == set(schema["properties"])
    measured = written["benches"][0]["measurements"][0]
    assert set(measured) == set(schema["$defs"]["Measurement"]["properties"])
