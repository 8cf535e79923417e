"""The command that wins back what compression lost: `recover`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def recover(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Run to start from, by name or path; by default the latest."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="none, stats, refit, mimic, synthetic, distill or full; by default the highest the images "
            "allow. Lower levels come first.",
        ),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Try this level alone, without the lower ones.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(min=0, metavar="N", help="Time for all levels that train, together.")
    ] = 10.0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Steps instead of minutes, for equal runs on any machine."),
    ] = None,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="Training settings: ours, svd-nas, few-sample or thesis.")
    ] = "ours",
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="sgd, adamw, pugd, sam, ...; by default the preset's.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Peak learning rate; by default the preset's.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, metavar="T", help="Distillation temperature; by default the preset's."),
    ] = None,
    batch_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images per step, over all processes.")
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Data augmentation: crop4, flip, erase10, zoom30, mix or none."),
    ] = None,
    precision: opt.Precision = "float32",
    synthetic: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run of `edgecompress synthesize`, for the level synthetic."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Checkpoint of the dense network, if it has moved."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Training images; by default those of the run."),
    ] = None,
    report_data: opt.ReportData = None,
    training_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Training images; by default all that are left.")
    ] = None,
    selection_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Selection images; a tenth, at most 2000.")
    ] = None,
    report_images: opt.ReportImages = None,
    select_on_test: Annotated[
        bool,
        typer.Option(
            "--select-on-test",
            help="Select with a tenth of the test images, which the dense network was not trained on.",
        ),
    ] = False,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Win back the accuracy that compression cost RUN.

    Tries one level after the other: statistics, least squares, feature mimicking, synthetic images,
    distillation, labels. Each starts from the best network so far and is kept if it is better on
    the selection images. Prints the gain and the time of each level, and writes a new run.

    \b
    Examples:
      edgecompress recover                                  the latest run, as far as its images allow
      edgecompress recover compress-resnet20-001 --minutes 90 --select-on-test
      edgecompress recover --level mimic --data photos/     no labels needed
      edgecompress recover --level synthetic --synthetic runs/synthesize-resnet20-001
      edgecompress recover --preset svd-nas --optimizer pugd
    If killed, continue with edgecompress resume.
    """
    with running() as progress:
        from edgecompress.pipeline.recover import recover as work

        result = work(
            run,
            level=level,
            only=only,
            minutes=minutes,
            steps=steps,
            preset=preset,
            optimizer=optimizer,
            lr=lr,
            temperature=temperature,
            batch_images=batch_images,
            augment=augment,
            precision=precision,
            synthetic=synthetic,
            weights=weights,
            data=data,
            report_data=report_data,
            training_images=training_images,
            selection_images=selection_images,
            report_images=report_images,
            select_on_test=select_on_test,
            seed=seed,
            name=name,
            runs_dir=runs_dir,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
