"""The command `export`: networks as files other runtimes read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show


def export(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A run or a model source; the latest run when not given."),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX.")] = False,
    tflite: Annotated[bool, typer.Option("--tflite", help="Write TFLite.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Also with float16 weights.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also in int8: weights per channel, ranges from images.")
    ] = False,
    converter: Annotated[
        str,
        typer.Option(
            metavar="auto|NAME",
            help="To TFLite; auto keeps the right and fastest. See `edgecompress list converters`.",
        ),
    ] = "auto",
    dense: Annotated[bool, typer.Option(help="Of a run, export the dense network as well.")] = True,
    atol: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="Largest difference to PyTorch of float32 outputs; 1e-4 of the largest output by default.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="SHARE", help="Images with the same answer in float16 and int8; 0.95, 0.85."
        ),
    ] = None,
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch", help="ONNX that takes any number of images at once.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Images to calibrate and compare with; the run's by default."),
    ] = None,
    report_data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Other images to compare with.")
    ] = None,
    calibration_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For int8; 256, or 2/5 of a small set.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="To compare with; 200, or 2/5 of a small set.")
    ] = None,
    weights: opt.Weights = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to write; in the run by default."),
    ] = None,
    runs_dir: opt.RunsDir = Path("runs"),
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Write MODEL as ONNX and TFLite, and prove that the files compute the same.

    Every file is read back, run on images and compared with PyTorch; one that differs is not
    kept. Without --onnx or --tflite both are written. ONNX files take images as (1, channels,
    height, width), TFLite files as (1, height, width, channels); values are normalised as for
    the network, in float32 for every precision.

    \b
    Examples:
      edgecompress export --tflite
      edgecompress export runs/compress-resnet20-001 --onnx --tflite --int8
      edgecompress export zoo:efficientnet_lite0 --tflite --int8 --data photos/
    """
    with running() as progress:
        from edgecompress.pipeline.export import FORMATS
        from edgecompress.pipeline.export import export as run

        asked = [name for name, wanted in (("onnx", onnx), ("tflite", tflite)) if wanted]
        result = run(
            model,
            formats=asked or FORMATS,
            precisions=[name for name, wanted in (("fp16", fp16), ("int8", int8)) if wanted],
            converter=converter,
            dense=dense,
            atol=atol,
            min_agreement=min_agreement,
            dynamic_batch=dynamic_batch,
            data=data,
            report_data=report_data,
            calibration_images=calibration_images,
            images=images,
            weights=weights,
            input_size=opt.parse_size(input_size),
            channels=channels,
            classes=classes,
            output=output,
            runs_dir=runs_dir,
            progress=progress,
        )
    show(result, as_json=as_json)
