"""The commands about finished runs: `report` and `runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show
from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from edgecompress.core.report_results import ReportResult

PAGE = "report.html"

OpenPage = Annotated[bool, typer.Option("--open", help="Open the page in your browser.")]


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Names or paths; by default the latest run.",
            autocompletion=lambda incomplete: _runs_beginning(incomplete),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page; by default report.html in the run, or here for several runs.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown as well.")] = False,
    png: Annotated[
        bool, typer.Option("--png", help="Also write the main figures as a picture beside the page.")
    ] = False,
    networks: Annotated[
        bool, typer.Option(help="Load the networks, for singular values and for layers of pruned networks.")
    ] = True,
    open_page: OpenPage = False,
    runs_dir: opt.RunsDir = Path("runs"),
    as_json: opt.AsJson = False,
) -> None:
    """Write a self-contained HTML report about one or more runs.

    Shows before and after, accuracy against milliseconds, what became of every layer and
    where the time went, what was rejected, and how to repeat it. Several runs are
    shown side by side.

    \b
    Examples:
      edgecompress report
      edgecompress report search-resnet20-001 --open
      edgecompress report runs/a runs/b -o compared.html --png
      edgecompress report --markdown >> $GITHUB_STEP_SUMMARY
    """
    with running() as progress:
        if markdown and as_json:
            raise ConfigError("--markdown and --json: stdout holds only one of them; pass one")
        from edgecompress.pipeline.report import report as gather

        found = gather(runs or (), networks=networks, runs_dir=runs_dir, progress=progress)
        result = write_report(found, output, png=png)
    if markdown:
        from edgecompress.report.markdown import report_markdown

        typer.echo(report_markdown(result), nl=False)
    else:
        show(result, as_json=as_json)
    if open_page:
        open_in_browser(Path(result.written[0]))


def _runs_beginning(incomplete: str) -> list[str]:
    """Returns names a shell may complete to."""
    found = (path.parent.name for path in Path("runs").glob("*/run.json"))
    return sorted(name for name in found if name.startswith(incomplete))


def write_report(result: ReportResult, output: Path | None = None, *, png: bool = False) -> ReportResult:
    """Writes the page, and the picture where it is wanted; returns the record with their names.

    Raises:
        ConfigError: the page cannot have that name.
        ArtefactError: it could not be written.
    """
    from edgecompress.core.store import replacing, write_text
    from edgecompress.report.html import report_page

    page = _page_file(result, output)
    written = [page]
    write_text(page, report_page(result))
    if png:
        from edgecompress.report.picture import report_picture

        written.append(page.with_suffix(".png"))
        with replacing(written[-1]) as temporary:
            temporary.write_bytes(report_picture(result))
    return result.model_copy(update={"written": tuple(map(str, written))})


def _page_file(result: ReportResult, output: Path | None) -> Path:
    if output is None:
        return Path(result.runs[0].path, PAGE) if len(result.runs) == 1 else Path(PAGE)
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a directory; give the name of a file, as {output / PAGE}")
    if output.suffix not in (".html", ".htm"):
        raise ConfigError(
            f"--output {output}: a page must end in .html; for other formats use --markdown or --png"
        )
    return output


def open_in_browser(page: Path) -> None:
    """Opens a page, or says that there is nothing to open it with."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"edgecompress: no browser found; open {page} yourself", err=True)


def runs_(runs_dir: opt.RunsDir = Path("runs"), as_json: opt.AsJson = False) -> None:
    """List runs with their main figures, the oldest first.

    Milliseconds that were not measured are marked: e is emulated, p is predicted.

    \b
    Examples:
      edgecompress runs
      edgecompress runs --runs-dir elsewhere --json
    """
    with running():
        from edgecompress.pipeline.run_list import list_runs

        result = list_runs(runs_dir=runs_dir)
    show(result, as_json=as_json)
