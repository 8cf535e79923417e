"""What commands return that go through the whole loop: search, export, measure."""

from __future__ import annotations

from edgecompress.core.measurement import BenchResult
from edgecompress.core.results import ExportResult
from edgecompress.core.search_results import SearchResult
from edgecompress.core.types import Record


class QuickstartResult(Record):
    """The before and after of a network that comes along."""

    search: SearchResult
    export: ExportResult
    """The TFLite files of both networks."""
    bench: BenchResult
    """Both, measured in turns on this machine."""
    seconds: float
    report: str | None = None
    """The page about it, where one was written."""
