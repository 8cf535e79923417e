"""`edgecompress runs`: what runs there are, with the figures that matter most."""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.report_results import RunLine, RunReport, RunsResult
from edgecompress.core.runs import Run, all_runs
from edgecompress.core.unfinished import Begun, unfinished_runs
from edgecompress.errors import ArtefactError
from edgecompress.pipeline.report_reading import read_report

IMAGES_ONLY = "synthesize"
"""Makes images, no network that would have figures."""


def list_runs(*, runs_dir: Path = Path("runs")) -> RunsResult:
    """Lists the runs of a directory, the oldest first, then those that are not finished."""
    finished = (_line(path, run) for path, run in all_runs(runs_dir))
    unfinished = (_begun(one, runs_dir) for one in unfinished_runs(runs_dir))
    return RunsResult(runs_dir=str(runs_dir), runs=(*finished, *unfinished))


def _line(path: Path, run: Run) -> RunLine:
    model = str(run.options.get("model") or "")
    line = RunLine(name=run.name, path=str(path), command=run.command, model=model, created=run.created)
    if run.command == IMAGES_ONLY:
        return line
    try:
        return line.model_copy(update=_figures(read_report(path, run).report))
    except ArtefactError as error:  # one damaged run does not hide the others
        return line.model_copy(update={"problem": str(error)})


def _figures(report: RunReport) -> dict[str, object]:
    before, after = report.dense, report.compressed
    time = report.times[0] if report.times else None
    return {
        "model": report.model,
        "top1": after.accuracy.top1 if after.accuracy else None,
        "top1_before": before.accuracy.top1 if before and before.accuracy else None,
        "after_ms": time.after_ms if time else None,
        "before_ms": time.before_ms if time else None,
        "how_known": time.how_known if time else None,
        "file": time.file if time else None,
        "doubts": time.doubts if time else (),
        "macs": after.macs,
        "macs_before": before.macs if before else None,
        "params": after.params,
        "params_before": before.params if before else None,
    }


def _begun(one: Begun, runs_dir: Path) -> RunLine:
    return RunLine(
        name=one.name,
        path=str(runs_dir / one.name),
        command=one.command,
        model=str(one.options.get("model") or ""),
        finished=False,
        problem=f"unfinished; continue with `edgecompress resume {one.name}`",
    )
