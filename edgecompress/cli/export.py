"""The command `export`: networks as files other runtimes read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show
from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from edgecompress.core.types import Record


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
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="In several sizes, no training: shares of the MACs, as 0.75,0.5, or 12ms,8ms."
        ),
    ] = None,
    latency_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="For sizes in milliseconds; see `latency build`.")
    ] = None,
    rank_selection: Annotated[
        str,
        typer.Option(metavar="NAME", help="For sizes; see `edgecompress list rank-selections`."),
    ] = "global-values",
    mode: Annotated[
        str | None,
        typer.Option(metavar="channel|spatial", help="For sizes: how kernels are split; as in training."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="paper|all|PATTERNS", help="For sizes: layers to cut; all of networks trained for it."
        ),
    ] = None,
    norm_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For sizes: to renew batch norms with; 2048.")
    ] = None,
    report_images: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="For sizes: to report accuracy on.")
    ] = None,
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

    With --sizes, MODEL is cut to lower ranks, batch norms are renewed on training
    images, and every size is a directory of its own under sizes/. Best for runs of
    `edgecompress train --method decomposable`.

    \b
    Examples:
      edgecompress export --tflite
      edgecompress export runs/compress-resnet20-001 --onnx --tflite --int8
      edgecompress export zoo:efficientnet_lite0 --tflite --int8 --data photos/
      edgecompress export runs/train-resnet20-001 --sizes 0.75,0.5,0.25 --tflite
    """
    with running() as progress:
        from edgecompress.pipeline.export import FORMATS
        from edgecompress.pipeline.export import export as run

        formats = [name for name, wanted in (("onnx", onnx), ("tflite", tflite)) if wanted] or FORMATS
        precisions = [name for name, wanted in (("fp16", fp16), ("int8", int8)) if wanted]
        result: Record
        if sizes is None:
            _refuse_without_sizes(latency_table, mode, layers, norm_images, report_images)
            result = run(
                model,
                formats=formats,
                precisions=precisions,
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
        else:
            from edgecompress.pipeline import elastic

            result = elastic.export_sizes(
                elastic.Model(model, runs_dir, weights, opt.parse_size(input_size), channels, classes),
                sizes,
                cutting=elastic.Cutting(rank_selection, _mode(mode), layers, latency_table),
                images=elastic.ElasticImages(data, report_data, norm_images, report_images),
                files=elastic.Files(
                    formats,
                    precisions,
                    converter,
                    atol,
                    min_agreement,
                    dynamic_batch,
                    calibration_images,
                    images,
                ),
                output=output,
                progress=progress,
            )
    show(result, as_json=as_json)


def _refuse_without_sizes(
    latency_table: str | None,
    mode: str | None,
    layers: str | None,
    norm_images: int | None,
    report_images: int | None,
) -> None:
    given = {
        "--latency-table": latency_table,
        "--mode": mode,
        "--layers": layers,
        "--norm-images": norm_images,
        "--report-images": report_images,
    }
    for flag, value in given.items():
        if value is not None:
            raise ConfigError(f"{flag} {value}: is about cutting a network to sizes; pass --sizes too")


def _mode(text: str | None) -> Literal["channel", "spatial"] | None:
    known: dict[str | None, Literal["channel", "spatial"] | None]
    known = {None: None, "channel": "channel", "spatial": "spatial"}
    if text in known:
        return known[text]
    raise ConfigError(f"--mode {text!r}: not understood; write channel or spatial")
