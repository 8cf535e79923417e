"""What a terminal shows of a command's result: each kind of record has a function of its own."""

from __future__ import annotations

import importlib

from rich.console import RenderableType
from rich.text import Text

from edgecompress.core.types import Record

RENDERERS = {
    "InspectResult": "inspections:inspect_text",
    "CompressResult": "compressions:compress_text",
    "PruneResult": "prunes:prune_text",
    "RecoverResult": "recoveries:recover_text",
    "SearchResult": "searches:search_text",
    "SynthesisResult": "syntheses:synthesis_text",
    "TopologyResult": "topology:topology_text",
    "TrainResult": "trainings:train_text",
    "QuickstartResult": "quickstarts:quickstart_text",
    "ExportResult": "exports:export_text",
    "ElasticResult": "elastic:elastic_text",
    "BenchResult": "benches:bench_text",
    "BuildResult": "latency:build_text",
    "Forecast": "latency:forecast_text",
    "TableSummary": "latency:table_text",
    "CheckResult": "latency:check_text",
    "TableDifference": "latency:difference_text",
    "Device": "devices:device_text",
    "DevicePrepared": "devices:prepared_text",
    "DoctorResult": "listings:doctor_text",
    "ListResult": "listings:list_text",
    "ReportResult": "reports:report_text",
    "RunsResult": "reports:runs_text",
    "InitResult": "reports:init_text",
}
"""Module and function by the name of the record; only the one that is needed is imported, as all together
bring every record along."""


def render(result: Record) -> RenderableType:
    """Returns what a terminal shows of a command's result."""
    module, _, function = RENDERERS[type(result).__name__].partition(":")
    show = getattr(importlib.import_module(f"edgecompress.report.{module}"), function)
    found: RenderableType = show(result)
    return Text(found) if isinstance(found, str) else found  # rich would look for markup in a string
