"""How large is the page of a run, and how soon is it there?

    python benchmarks/bench_report.py runs/search-resnet18-001 --times 10

Makes the page anew, opens it so many times in headless Chromium, each time in a new browser with an empty
profile, and prints its size, the first paint after navigation began, what the browser's console said and what
the page asked for.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgecompress.pipeline.report import report
from edgecompress.report.html import report_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium_page import browser  # type: ignore[import-not-found]  # of the tests

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
NEXT_FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))"


def main() -> None:
    """Prints one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(report_page(report(options.runs)), encoding="utf-8")
        seen = [_opened(page) for _ in range(options.times)]
        found = {"runs": options.runs, "bytes": page.stat().st_size, "times": options.times}
    paints = [one["paint_ms"] for one in seen]
    found |= {
        "first_paint_ms": {
            "median": round(statistics.median(paints), 1),
            "worst": round(max(paints), 1),
        },
        "console_messages": sum(one["messages"] for one in seen),
        "requests_besides_the_page": sum(one["requests"] for one in seen),
    }
    print(json.dumps(found | _machine()))


def _opened(page: Path) -> dict[str, Any]:
    with browser() as tab:
        tab.open(page, width=1600)
        tab.value(NEXT_FRAME)
        paint = tab.value(PAINT)
        others = [url for url in tab.requests if not url.endswith(page.name)]
        return {"paint_ms": paint, "messages": len(tab.messages), "requests": len(others)}


def _machine() -> dict[str, Any]:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "load": round(os.getloadavg()[0], 1),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


if __name__ == "__main__":
    main()
