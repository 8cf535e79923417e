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
        str, typer.Option(metavar="NAME", help="Training method; see `edgecompress list methods`.")
    ] = "plain",
    weights: opt.Weights = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from random weights, even if the model has trained ones.")
    ] = False,
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Images with labels; see `edgecompress list data`.")
    ] = None,
    report_data: opt.ReportData = None,
    epochs: Annotated[
        float, typer.Option(metavar="N", help="Passes over the images; 0.5 is half a pass.")
    ] = 10.0,
    batch_images: Annotated[
        int, typer.Option(min=1, metavar="N", help="Images per step, over all processes.")
    ] = 128,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="See `edgecompress list optimisers`.")
    ] = "sgd",
    lr: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Peak learning rate; by default the optimizer's.")
    ] = None,
    momentum: Annotated[
        float, typer.Option(min=0, max=1, metavar="X", help="Momentum of sgd, pugd and sam.")
    ] = 0.9,
    weight_decay: Annotated[
        float, typer.Option(min=0, metavar="X", help="Weight decay, not on biases and norms.")
    ] = 5e-4,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="cosine, linear, constant, steps:0.5,0.75:0.1, plateau:10:0.1:0.1."
        ),
    ] = "cosine",
    warmup: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of all steps over which the learning rate rises.")
    ] = 0.05,
    augment: Annotated[
        str, typer.Option(metavar="A,B", help="Data augmentation: crop4, flip, erase10 or none.")
    ] = "none",
    smoothing: Annotated[float, typer.Option(metavar="X", help="Label smoothing.")] = 0.0,
    ema: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Decay of a moving average of the weights, such as 0.999; it is then kept."
        ),
    ] = None,
    clip_norm: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="Largest gradient norm.")
    ] = None,
    precision: opt.Precision = "float32",
    norms: Annotated[
        str,
        typer.Option(
            metavar="train|frozen", help="Batch norms: update their statistics, or keep and use them."
        ),
    ] = "train",
    teacher: Annotated[
        str | None, typer.Option(metavar="MODEL|RUN", help="Distil from this network as well as from labels.")
    ] = None,
    teacher_weight: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the distillation loss; the rest is labels.")
    ] = 0.5,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Temperature of the teacher's answers.")
    ] = 4.0,
    radius: Annotated[
        str | None, typer.Option(metavar="R", help="pugd, sam, asam: radius, such as 1 or cos:1.5:0.5.")
    ] = None,
    scale: Annotated[str | None, typer.Option(metavar="S", help="pugd: scale of the first gradient.")] = None,
    timing: Annotated[
        str, typer.Option(metavar="none|variance|gap|at:X", help="pugd: when the second pass begins.")
    ] = "none",
    factors: Annotated[int, typer.Option(min=1, metavar="N", help="lorita: factors per weight.")] = 2,
    mode: Annotated[
        str, typer.Option(metavar="channel|spatial", help="decomposable, trp: how kernels are split.")
    ] = "channel",
    smallest: Annotated[
        float,
        typer.Option(metavar="SHARE", help="decomposable: smallest share of singular values in a step."),
    ] = 0.01,
    largest: Annotated[
        float, typer.Option(metavar="SHARE", help="decomposable: largest share of singular values in a step.")
    ] = 0.25,
    low_rank_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="X", help="decomposable: share of the low-rank loss.")
    ] = 0.5,
    low_rank_images: Annotated[
        float, typer.Option(metavar="SHARE", help="decomposable: share of a batch for the low-rank loss.")
    ] = 1.0,
    energy: Annotated[float, typer.Option(metavar="SHARE", help="trp: energy kept by a truncation.")] = 0.995,
    nuclear: Annotated[
        float, typer.Option(min=0, metavar="X", help="trp: weight of the sum of singular values.")
    ] = 3e-4,
    least_rank: Annotated[
        int, typer.Option(min=1, metavar="N", help="decomposable: least rank of any layer.")
    ] = 5,
    refresh: Annotated[
        int, typer.Option(min=1, metavar="N", help="decomposable, trp: steps between decompositions.")
    ] = 10,
    orthonormal: Annotated[
        float, typer.Option(min=0, metavar="X", help="bsconv-s: weight of the orthonormality penalty.")
    ] = 0.1,
    middle: Annotated[
        float, typer.Option(metavar="SHARE", help="bsconv-s: share of channels in the middle.")
    ] = 0.25,
    training_images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Most training images; by default all that are not set aside."),
    ] = None,
    selection_images: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Images to choose the best epoch with; a tenth, at most 2,000."
        ),
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
    """Train a model for accuracy, or so that it is easy to compress.

    Keeps the epoch that is best on the selection images. If killed, continue with
    `edgecompress resume`. On several machines, start it with torchrun. The run loads,
    exports and is measured like any other; pass its weights.safetensors to other
    commands as --weights.

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
