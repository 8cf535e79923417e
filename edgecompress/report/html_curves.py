"""Sections about trainings: epochs, and the sizes one network was cut to."""

from __future__ import annotations

from functools import partial

from edgecompress.core.elastic_results import ElasticResult, ElasticSize, SizeFigures
from edgecompress.core.report_results import RunReport, TrainingView
from edgecompress.report.curves import epochs_chart, ordered_sizes, sizes_chart
from edgecompress.report.html_parts import Section, figure, folded, table
from edgecompress.report.markup import Markup, el, join
from edgecompress.report.numbers import change, count, megabytes


def sizes_section(run: RunReport) -> Section | None:
    """Returns the sizes of a network: what each costs and how good it is."""
    sizes = run.elastic
    if sizes is None:
        return None
    chart = figure(partial(sizes_chart, sizes)) or Markup("")
    timed = sizes.full.predicted_ms is not None
    headers = (
        "Size",
        "Network of",
        "MACs",
        "",
        "Parameters",
        *(["ms"] if timed else []),
        "Selection",
        "Report",
    )
    whole = ("whole", "", *_cells(sizes, sizes.full))
    rows = (whole, *(_row(sizes, one) for one in ordered_sizes(sizes)))
    listed = table(headers, rows, label="Sizes of the network", left=2)
    body = join([el("p", sizes_words(sizes)), chart, listed, _files(sizes)])
    return Section("sizes", "One network in several sizes", body)


def sizes_words(sizes: ElasticResult) -> str:
    """Returns how sizes were made and judged, in words."""
    said = [f"Cut to lower ranks by {sizes.rank_selection} in {sizes.mode} mode, without training."]
    if sizes.norms is not None:
        said.append(f"Batch norms were renewed {sizes.norms} on {sizes.norm_images:,} training images.")
    score = "right answers" if sizes.score == "top-1" else "answers as of the whole network"
    said.append(f"Selection: {score} on images for choosing; a size has the best network that fits it.")
    if sizes.full.accuracy is not None:
        said.append("Report: top-1 on images that were used for nothing else.")
    if sizes.device is not None:
        said.append(f"Milliseconds are predicted for {sizes.device} ({sizes.provenance}).")
    said += [f"{text[:1].upper()}{text[1:]}." for text in sizes.warnings]
    return " ".join(said)


def _row(sizes: ElasticResult, one: ElasticSize) -> tuple[str, ...]:
    own = "its own" if one.network == one.name else one.network
    return one.name, own, *_cells(sizes, one.offered)


def _cells(sizes: ElasticResult, one: SizeFigures) -> list[str]:
    time = [] if one.predicted_ms is None else [f"{one.predicted_ms:.4g}"]
    reported = "" if one.accuracy is None else f"{one.accuracy.top1:.2f} %"
    macs = [count(one.macs), change(sizes.full.macs, one.macs) if one is not sizes.full else ""]
    return [*macs, count(one.params), *time, f"{one.score:.2f} %", reported]


def _files(sizes: ElasticResult) -> Markup:
    rows = (
        (
            f"{size.name}/exports/{one.file}",
            one.converter,
            megabytes(one.size_bytes),
            f"{one.parity.max_rel_diff:.1e}",
        )
        for size in ordered_sizes(sizes)
        for one in size.files
    )
    listed = table(("File", "Made by", "Size", "Off by"), rows, label="Files of every size", left=2)
    return folded(f"Files, in {sizes.directory}", listed)


def training_section(run: RunReport) -> Section | None:
    """Returns a training: epochs, the one that was kept, and how much of their rank layers use."""
    training = run.training
    if training is None:
        return None
    chart = figure(partial(epochs_chart, training)) or Markup("")
    headers = ("Epoch", "Steps", "Loss", "Selection", "Rate", "Seconds")
    rows = (
        (
            str(one.epoch),
            f"{one.steps:,}",
            f"{one.loss:.4f}",
            "" if one.score is None else f"{one.score:.2f} %",
            f"{one.lr:.2g}",
            f"{one.seconds:.1f}",
        )
        for one in training.epochs
    )
    listed = folded("All epochs", table(headers, rows, label="Epochs of the training"))
    return Section("training", "How it was trained", join([el("p", training_words(training)), chart, listed]))


def training_words(training: TrainingView) -> str:
    """Returns a training in words."""
    kept, epochs = training.best_epoch, len(training.epochs)
    which = "the last one" if kept is None else "the network from before" if kept == 0 else f"number {kept}"
    word = "epoch" if epochs == 1 else "epochs"
    said = [f"By {training.method} with {training.optimiser}; of {epochs} {word} {which} was kept."]
    if training.stopped is not None:
        said.append(f"It ended early: {training.stopped}.")
    used = f"{training.values_used} of {training.values}"
    said.append(f"Singular values above 1 % of the largest of their layer: {used}.")
    return " ".join(said)
