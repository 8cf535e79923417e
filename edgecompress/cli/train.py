"""The command that trains: `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def train(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="See `edgecompress list models`.")],
    method: Annotated[
        str, typer.Option(metavar="NAME", help="How; see `edgecompress list methods`.")
    ] = "plain",
    weights: opt.Weights = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from random weights, whatever the model brings.")
    ] = False,
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Images with labels; see `edgecompress list data`.")
    ] = None,
    report_data: opt.ReportData = None,
    epochs: Annotated[float, typer.Option(metavar="N", help="Times through the images; 0.5 is half.")] = 10.0,
    batch_images: Annotated[int, typer.Option(min=1, metavar="N", help="Per step, all processes.")] = 128,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="See `edgecompress list optimisers`.")
    ] = "sgd",
    lr: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Largest learning rate; by the optimizer.")
    ] = None,
    momentum: Annotated[float, typer.Option(min=0, max=1, metavar="X", help="Of sgd, pugd and sam.")] = 0.9,
    weight_decay: Annotated[
        float, typer.Option(min=0, metavar="X", help="On weights; not on biases and norms.")
    ] = 5e-4,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="cosine, linear, constant, steps:0.5,0.75:0.1, plateau:10:0.1:0.1."
        ),
    ] = "cosine",
    warmup: Annotated[
        float, typer.Option(metavar="SHARE", help="Of all steps, for the rate to rise.")
    ] = 0.05,
    augment: Annotated[
        str, typer.Option(metavar="A,B", help="How images are varied: crop4, flip, erase10 or none.")
    ] = "none",
    smoothing: Annotated[float, typer.Option(metavar="X", help="Of labels.")] = 0.0,
    ema: Annotated[
        float | None,
        typer.Option(metavar="X", help="Average the weights, as 0.999; judged and kept instead."),
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(min=0, metavar="X", help="Longest gradient.")] = None,
    precision: opt.Precision = "float32",
    norms: Annotated[
        str, typer.Option(metavar="train|frozen", help="Batch norms: learn statistics, or keep and use them.")
    ] = "train",
    teacher: Annotated[
        str | None, typer.Option(metavar="MODEL|RUN", help="Learn from its answers as well as from labels.")
    ] = None,
    teacher_weight: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the loss; the rest is labels.")
    ] = 0.5,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of the teacher's answers.")] = 4.0,
    radius: Annotated[
        str | None, typer.Option(metavar="R", help="pugd, sam, asam: as 1 or cos:1.5:0.5.")
    ] = None,
    scale: Annotated[str | None, typer.Option(metavar="S", help="pugd: of the first gradient.")] = None,
    timing: Annotated[
        str, typer.Option(metavar="none|variance|gap|at:X", help="pugd: when the second pass begins.")
    ] = "none",
    factors: Annotated[int, typer.Option(min=1, metavar="N", help="lorita: per weight.")] = 2,
    mode: Annotated[
        str, typer.Option(metavar="channel|spatial", help="decomposable, trp: how kernels are split.")
    ] = "channel",
    smallest: Annotated[
        float, typer.Option(metavar="SHARE", help="decomposable: of singular values.")
    ] = 0.01,
    largest: Annotated[float, typer.Option(metavar="SHARE", help="decomposable: of singular values.")] = 0.25,
    low_rank_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="X", help="decomposable: of the loss.")
    ] = 0.5,
    low_rank_images: Annotated[
        float, typer.Option(metavar="SHARE", help="decomposable: of a batch, for the low-rank loss.")
    ] = 1.0,
    energy: Annotated[float, typer.Option(metavar="SHARE", help="trp: kept by a truncation.")] = 0.995,
    nuclear: Annotated[
        float, typer.Option(min=0, metavar="X", help="trp: weight of the sum of singular values.")
    ] = 3e-4,
    least_rank: Annotated[int, typer.Option(min=1, metavar="N", help="decomposable: of any layer.")] = 5,
    refresh: Annotated[
        int, typer.Option(min=1, metavar="N", help="decomposable, trp: steps between decompositions.")
    ] = 10,
    orthonormal: Annotated[
        float, typer.Option(min=0, metavar="X", help="bsconv-s: weight of the penalty.")
    ] = 0.1,
    middle: Annotated[float, typer.Option(metavar="SHARE", help="bsconv-s: channels in the middle.")] = 0.25,
    training_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most; all that are not set aside.")
    ] = None,
    selection_images: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="To choose the best epoch; a tenth, at most 2,000.")
    ] = None,
    report_images: opt.ReportImages = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    classes: opt.Classes = None,
    seed: opt.Seed = 0,
    name: opt.RunName = None,
    runs_dir: opt.RunsDir = Path("runs"),
    overwrite: opt.Overwrite = False,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train a model, so that it is accurate or easy to compress.

    Keeps the epoch that is best on images set aside for choosing. Killed, it goes
    on with `edgecompress resume`. Several machines: start it with torchrun. The
    run loads, exports and measures like any other, and its weights.safetensors is
    what --weights of other commands takes.

    \b
    Examples:
      edgecompress train zoo:fashion_resnet --fresh --epochs 12 --augment crop2,flip
      edgecompress train zoo:resnet20 --data cifar/ --epochs 60 --augment crop4,flip
      edgecompress train zoo:fashion_vit --optimizer adamw --teacher zoo:fashion_resnet
      edgecompress train zoo:fashion_resnet --method lorita --factors 3 --weight-decay 1e-3
      edgecompress train zoo:fashion_resnet --method decomposable --epochs 5
      torchrun --nproc-per-node 2 -m edgecompress train zoo:fashion_resnet --name both
    """
    with running() as progress:
        from edgecompress.pipeline.train import train as run

        result = run(
            model,
            method=method,
            weights=weights,
            fresh=fresh,
            data=data,
            report_data=report_data,
            epochs=epochs,
            batch_images=batch_images,
            optimizer=optimizer,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            schedule=schedule,
            warmup=warmup,
            augment=augment,
            smoothing=smoothing,
            ema=ema,
            clip_norm=clip_norm,
            precision=precision,
            norms=norms,
            teacher=teacher,
            teacher_weight=teacher_weight,
            temperature=temperature,
            radius=radius,
            scale=scale,
            timing=timing,
            factors=factors,
            mode=mode,
            smallest=smallest,
            largest=largest,
            low_rank_share=low_rank_share,
            low_rank_images=low_rank_images,
            energy=energy,
            nuclear=nuclear,
            least_rank=least_rank,
            refresh=refresh,
            orthonormal=orthonormal,
            middle=middle,
            training_images=training_images,
            selection_images=selection_images,
            report_images=report_images,
            input_size=opt.parse_size(input_size),
            channels=channels,
            mean=opt.parse_numbers(mean, flag="--mean"),
            std=opt.parse_numbers(std, flag="--std"),
            classes=classes,
            seed=seed,
            name=name,
            runs_dir=runs_dir,
            overwrite=overwrite,
            progress=progress,
        )
    show(result, as_json=as_json)
