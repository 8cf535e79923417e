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
        typer.Argument(metavar="RUN", help="Run to start from, by name or path; the latest by default."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="none, stats, refit, mimic, synthetic, distill or full; by default the highest the images "
            "allow. Levels below come first.",
        ),
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="This level alone, not those below it.")] = False,
    minutes: Annotated[
        float, typer.Option(min=0, metavar="N", help="For all levels that train, together.")
    ] = 10.0,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="In place of minutes, for equal runs anywhere.")
    ] = None,
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="Settings of these levels: ours, svd-nas, few-sample, thesis.")
    ] = "ours",
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="sgd, adamw, pugd, sam, ...; that of the preset.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Largest learning rate; that of the preset.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="At which answers are compared.")
    ] = None,
    batch_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Per step, all processes.")
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="How images are varied: crop4, flip, erase10, zoom30, mix or none."),
    ] = None,
    precision: opt.Precision = "float32",
    synthetic: Annotated[
        str | None, typer.Option(metavar="RUN", help="Images of `edgecompress synthesize`, for that level.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Checkpoint of the dense network, where it has moved."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Images to learn from; those of the run by default."),
    ] = None,
    report_data: opt.ReportData = None,
    training_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="To learn from; all that are left by default.")
    ] = None,
    selection_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="That choose; a tenth, at most 2000.")
    ] = None,
    report_images: opt.ReportImages = None,
    select_on_test: Annotated[
        bool,
        typer.Option(
            "--select-on-test",
            help="Choose with a tenth of the test images, which the dense network has not learnt.",
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
    distillation, labels. Each starts from the best network so far and is kept if images that nothing
    learns from say so. Prints what each level gained and how long it took, and writes a new run.

    \b
    Examples:
      edgecompress recover                                  the latest run, as far as its images allow
      edgecompress recover compress-resnet20-001 --minutes 90 --select-on-test
      edgecompress recover --level mimic --data photos/     no labels needed
      edgecompress recover --level synthetic --synthetic runs/synthesize-resnet20-001
      edgecompress recover --preset svd-nas --optimizer pugd
    Killed? edgecompress resume goes on.
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
