"""`edgecompress report`: everything that is known of runs, gathered from their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.report_results import ReportResult, RunReport
from edgecompress.core.runs import read_run, resolve_run
from edgecompress.errors import ConfigError, EdgeCompressError
from edgecompress.pipeline.report_networks import pruned_layers, spectra_of_plan
from edgecompress.pipeline.report_reading import read_report


def report(
    runs: Sequence[str] = (),
    *,
    networks: bool = True,
    runs_dir: Path = Path("runs"),
    progress: Progress = NO_PROGRESS,
) -> ReportResult:
    """Gathers what a page shows of runs; of the latest one where none is named.

    Args:
        runs: Names or paths of runs, in the order in which they are shown.
        networks: Also load the networks, for singular values and for the layers of pruned ones.
        runs_dir: Where runs are kept.
        progress: Shows how far it is.

    Raises:
        ConfigError: a run is named twice.
        ArtefactError: there is no such run, or its files are damaged.
    """
    paths = [resolve_run(text, runs_dir) for text in runs] or [resolve_run(None, runs_dir)]
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"report {path}: named twice; give every run once")
    found = (_report_of(path, networks=networks) for path in progress.track(paths, "reading runs"))
    return ReportResult(runs=tuple(found))


def _report_of(path: Path, *, networks: bool) -> RunReport:
    run = read_run(path)
    reading = read_report(path, run)
    plan = reading.plan
    if not networks or plan is None:
        return reading.report
    try:
        spectra = spectra_of_plan(plan)
        layers = reading.report.layers or pruned_layers(path, plan)
    except EdgeCompressError as error:  # the rest of the page needs no network
        note = f"singular values and layers could not be read from the network: {error}"
        return reading.report.model_copy(update={"notes": (*reading.report.notes, note)})
    return reading.report.model_copy(update={"spectra": spectra, "layers": layers})
