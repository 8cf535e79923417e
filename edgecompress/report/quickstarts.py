"""What `quickstart` shows in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from edgecompress.core.loop_results import QuickstartResult
from edgecompress.report.benches import bench_text
from edgecompress.report.exports import files_table
from edgecompress.report.figures import where_written
from edgecompress.report.searches import search_summary
from edgecompress.report.tables import title


def quickstart_text(result: QuickstartResult) -> RenderableType:
    """Returns the figures before and after, how the exported files agree, and what this machine says."""
    run = result.search.run
    return Group(
        search_summary(result.search),
        Text(),
        title("Exported files", "against PyTorch on the same images"),
        files_table(result.export),
        Text(),
        bench_text(result.bench),
        Text(f"\n{result.seconds:.0f} s in all"),
        where_written(run),
        *([] if result.report is None else [Text.assemble("open in a browser: ", (result.report, "bold"))]),
        Text(f"next: edgecompress search --help; your phone: edgecompress bench {run} --device adb"),
    )
