"""The published schemas of records are those the package writes."""

import json
from pathlib import Path

import pytest
from made_benches import bench_of, measurement, result_of

from edgecompress.core.elastic_results import ElasticResult
from edgecompress.core.latency_table import LatencyTable
from edgecompress.core.measurement import BenchResult
from edgecompress.core.prune_results import PruneResult
from edgecompress.core.results import ExportResult
from edgecompress.core.search_results import SearchResult
from edgecompress.core.topology_results import TopologyResult

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = {
    "bench": BenchResult,
    "elastic": ElasticResult,
    "export": ExportResult,
    "latency_table": LatencyTable,
    "prune": PruneResult,
    "search": SearchResult,
    "topology": TopologyResult,
}


def schema(name):
    return json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDS)
def test_the_published_schema_is_current(name):
    assert schema(name) == RECORDS[name].model_json_schema()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_another_version_is_refused_by_the_schema(name):
    assert schema(name)["properties"]["schema_version"]["const"] == 1


def test_every_field_of_a_result_is_in_the_schema():
    written = result_of(bench_of(measurement("a.tflite", 1.0))).model_dump(mode="json")
    published = schema("bench")
    assert set(written) == set(published["properties"])
    measured = written["benches"][0]["measurements"][0]
    assert set(measured) == set(published["$defs"]["Measurement"]["properties"])
