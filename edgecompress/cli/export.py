"""The command `export`: networks as files other runtimes read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgecompress.cli import options as opt
from edgecompress.cli.running import running, show
from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from edgecompress.core.types import Record


def export(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A run or a model source; by default the latest run."),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX.")] = False,
    tflite: Annotated[bool, typer.Option("--tflite", help="Write TFLite.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Also write files with float16 weights.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write int8 files: per-channel weights, ranges from images.")
    ] = False,
    converter: Annotated[
        str,
        typer.Option(
            metavar="auto|NAME",
            help="See `edgecompress list converters`; auto keeps the fastest correct TFLite file.",
        ),
    ] = "auto",
    dense: Annotated[bool, typer.Option(help="For a run, export the dense network as well.")] = True,
    atol: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="Largest allowed difference to PyTorch in float32; by default 1e-4 of the largest output.",
        ),
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Least share of equal answers in float16 and int8; 0.95 and 0.85 by default.",
        ),
    ] = None,
    dynamic_batch: Annotated[
        bool, typer.Option("--dynamic-batch", help="Write ONNX with a dynamic batch axis.")
    ] = False,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Cut to several sizes, no training: shares of the MACs (0.75,0.5) or 12ms,8ms.",
        ),
    ] = None,
    latency_table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="For sizes in milliseconds; see `latency build`.")
    ] = None,
    rank_selection: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For sizes: global-values, or any of `edgecompress list rank-selections`."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="channel|spatial", help="For sizes: how kernels are split; by default as in training."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="paper|all|PATTERNS", help="For sizes: layers to cut; all for networks trained for it."
        ),
    ] = None,
    norm_images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For sizes: images to recompute batch norms with; 2048."),
    ] = None,
    report_images: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="For sizes: images to report accuracy on.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Images for calibration and checks; by default those of the run."
        ),
    ] = None,
    report_data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Separate images for the checks.")
    ] = None,
    calibration_images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Calibration images for int8; 256, or 2/5 of a small set."),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Images for the checks; 200, or 2/5 of a small set."),
    ] = None,
    weights: opt.Weights = None,
    input_size: opt.InputSize = None,
    channels: opt.Channels = None,
    classes: opt.Classes = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to write; by default into the run."),
    ] = None,
    runs_dir: opt.RunsDir = Path("runs"),
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    """Write MODEL as ONNX and TFLite files, checked against PyTorch.

    Every file is read back, run on images and compared with PyTorch; one that differs is not
    kept. Without --onnx or --tflite both are written. ONNX files take images as (1, channels,
    height, width), TFLite files as (1, height, width, channels). Inputs are normalised as for
    the network, in float32 for every precision.

    With --sizes, MODEL is cut to lower ranks, batch norms are recomputed on training
    images, and every size gets its own directory under sizes/. Best for runs of
    `edgecompress train --method decomposable`.

    \b
    Examples:
      edgecompress export --tflite
      edgecompress export runs/compress-resnet20-001 --onnx --tflite --int8
      edgecompress export zoo:efficientnet_lite0 --tflite --int8 --data photos/
      edgecompress export runs/train-resnet20-001 --sizes 0.75,0.5,0.25 --tflite
    """
    with running() as progress:
        of_sizes = _given_for_sizes(
            sizes,
            latency_table=latency_table,
            rank_selection=rank_selection,
            mode=mode,
            layers=layers,
            norm_images=norm_images,
            report_images=report_images,
        )
        common: dict[str, Any] = {
            "precisions": [name for name, wanted in (("fp16", fp16), ("int8", int8)) if wanted],
            "converter": converter,
            "atol": atol,
            "min_agreement": min_agreement,
            "dynamic_batch": dynamic_batch,
            "data": data,
            "report_data": report_data,
            "calibration_images": calibration_images,
            "images": images,
            "weights": weights,
            "input_size": opt.parse_size(input_size),
            "channels": channels,
            "classes": classes,
            "output": output,
            "runs_dir": runs_dir,
            "progress": progress,
        }
        if onnx or tflite:
            common["formats"] = [name for name, wanted in (("onnx", onnx), ("tflite", tflite)) if wanted]
        result: Record
        if sizes is None:
            from edgecompress.pipeline.export import export as run

            result = run(model, dense=dense, **common)
        else:
            from edgecompress.pipeline.elastic import export_sizes

            result = export_sizes(model, sizes, **of_sizes, **common)
    show(result, as_json=as_json)


def _given_for_sizes(sizes: str | None, **options: str | int | None) -> dict[str, Any]:
    """Returns the options about sizes that were given.

    Raises:
        ConfigError: there are some, and no sizes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if sizes is None and given:
        name, value = next(iter(given.items()))
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{flag} {value}: applies only to cutting a network to sizes; pass --sizes too")
    return given
