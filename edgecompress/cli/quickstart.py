"""The tour: `quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.report import OpenPage, open_in_browser, write_report
from edgecompress.cli.running import running, show
from edgecompress.errors import EdgeCompressError

if TYPE_CHECKING:
    from edgecompress.core.loop_results import QuickstartResult


def quickstart(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="An embedded network, with its weights and data.")
    ] = "zoo:fashion_resnet",
    latency_table: opt.LatencyTable = "pixel4.json",
    target_speedup: opt.TargetSpeedup = None,
    budget: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Instead of a speed-up, such as ms=60% or macs=50%.")
    ] = None,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    open_page: OpenPage = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Tour: make an embedded network faster and measure it.

    Searches, exports dense and compressed to TFLite, checks their outputs, measures
    both on this machine and writes a report page. Needs no download and takes
    a few minutes.

    \b
    Examples:
      edgecompress quickstart
      edgecompress quickstart --model zoo:fashion_vit --target-speedup 1.2
    """
    with running() as progress:
        from edgecompress.pipeline.quickstart import quickstart as run

        result = run(
            model=model,
            latency_table=latency_table,
            target_speedup=target_speedup,
            budget=budget,
            seed=seed,
            runs_dir=runs_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
        result = _with_page(result, runs_dir)
    show(result, as_json=as_json)
    if open_page and result.report is not None:
        open_in_browser(Path(result.report))


def _with_page(result: QuickstartResult, runs_dir: Path) -> QuickstartResult:
    """Writes the page about a run; without one the result, which took long, is still shown."""
    from edgecompress.pipeline.report import report

    try:
        written = write_report(report([result.search.run], runs_dir=runs_dir)).written
    except EdgeCompressError as error:
        typer.echo(f"edgecompress: no page: {error}", err=True)
        return result
    return result.model_copy(update={"report": written[0]})
