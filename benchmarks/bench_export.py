"""Do exported files compute what the network computes, and are they as fast as converters make them?

    python benchmarks/bench_export.py --cifar CIFAR --cifar-weights WEIGHTS \\
        --imagenet-calibration CALIB --imagenet-report VAL > export.jsonl
    python benchmarks/bench_export.py --table export.jsonl

Every network is compressed a little, exported dense and compressed as ONNX and TFLite, and compared with
PyTorch on images. The dense TFLite file is then measured in turns with what the two converters make of the
unprepared network. Networks of torchvision have random weights (export_nets.py); the others are trained and
are also written in float16 and int8.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgecompress.core.presets import PRESETS
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.quiet import quiet
from edgecompress.core.statistics import compare
from edgecompress.devices import local_litert
from edgecompress.devices.contract import Options
from edgecompress.devices.files import load_device
from edgecompress.devices.protocol import measure
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.export import export

NETS = Path(__file__).with_name("export_nets.py")
PARITY_IMAGES = 200


@dataclass(frozen=True)
class Case:
    """One network."""

    name: str
    source: str
    weights: str | None = None
    data: str | None = None
    report_data: str | None = None
    trained: bool = False


def cases(args: argparse.Namespace) -> list[Case]:
    """Returns the networks whose data was given."""
    found = [Case(name, f"zoo:{name}", trained=True) for name in ("fashion_resnet", "fashion_vit")]
    if args.cifar and args.cifar_weights:
        for name in ("resnet20", "resnet56"):
            weights = next(Path(args.cifar_weights).glob(f"{name}-*"))
            found.append(Case(name, f"zoo:{name}", str(weights), args.cifar, trained=True))
    if args.imagenet_calibration and args.imagenet_report:
        images = {"data": args.imagenet_calibration, "report_data": args.imagenet_report}
        found.append(Case("efficientnet_lite0", "zoo:efficientnet_lite0", trained=True, **images))
        for name in ("mobilenet_v2", "resnet18", "efficientnet_b0", "swin_t", "vit_b_16"):
            found.append(Case(name, f"{NETS}:{name}", **images))
    return [case for case in found if not args.only or case.name in args.only]


def exported_rows(case: Case, directory: Path, images: int, converter: str) -> Iterator[dict[str, Any]]:
    """Compresses and exports a network; yields a row per file."""
    start = time.perf_counter()
    made = compress(
        case.source,
        weights=case.weights,
        data=case.data,
        budget="macs=70%",
        rank_selection="uniform",
        factors="plain",
        refit=False,
        local_search=False,
        batch_norm="keep",
        report_images=0,
        selection_images=0,
        runs_dir=directory,
        name=case.name,
    )
    compressed_s = time.perf_counter() - start
    result = export(
        made.run,
        precisions=("fp16", "int8") if case.trained else (),
        data=case.data,
        report_data=case.report_data,
        images=images,
        converter=converter,
        min_agreement=0.0,
    )
    for one in result.files:
        yield {
            "model": case.name,
            "network": one.network,
            "file": one.file,
            "format": one.format,
            "precision": one.precision,
            "converter": one.converter,
            "images": one.parity.images,
            "max_rel_diff": one.parity.max_rel_diff,
            "top1_agreement": one.parity.top1_agreement,
            "transposes": one.graph.transposes,
            "outside_delegate": one.graph.outside_delegate,
            "operators": sum(one.graph.operators.values()),
            "size_bytes": one.size_bytes,
            "seconds": one.seconds,
            "compress_seconds": round(compressed_s, 1),
            "notes": one.notes,
        }


def plain_files(case: Case, directory: Path) -> dict[str, Path]:
    """Converts the unprepared dense network with both converters, as their manuals say."""
    loaded = load_model(case.source, weights=case.weights)
    image = torch.zeros(1, *loaded.ref.input_shape)
    direct = directory / "plain-litert-torch.tflite"
    with quiet():
        litert_torch = import_module("litert_torch")
        litert_torch.convert(loaded.module, (image,)).export(str(direct))
        torch.backends.mha.set_fastpath_enabled(False)
        program = torch.onnx.export(loaded.module, (image,), opset_version=20, dynamo=True, verbose=False)
        assert program is not None
        program.save(str(directory / "plain.onnx"))
    return {"litert-torch": direct, **_by_onnx2tf(directory)}


def _by_onnx2tf(directory: Path) -> dict[str, Path]:
    name = "calibration_image_sample_data_20x128x128x3_float32.npy"
    np.save(directory / name, np.zeros((20, 128, 128, 3), dtype=np.float32))
    command = "import onnx2tf; onnx2tf.main()"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [sys.executable, "-c", command, "-i", "plain.onnx", "-o", "plain", "-n"],
        cwd=directory,
        env={"PATH": path, "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    file = directory / "plain" / "plain_float32.tflite"
    return {"onnx2tf": file} if done.returncode == 0 and file.is_file() else {}


def speed_rows(case: Case, directory: Path, preset: str) -> Iterator[dict[str, Any]]:
    """Measures our dense TFLite file in turns with the converters' plain ones."""
    ours = directory / case.name / "exports" / "dense.tflite"
    plain = plain_files(case, directory)
    with local_litert.DRIVER.open(load_device("local"), Options(threads=1)) as session:
        files = [(path, session) for path in (ours, *plain.values())]
        found = measure(files, PRESETS[preset], seed=0, profile=False, progress=NO_PROGRESS)
    for name, other in zip(plain, found[1:], strict=True):
        result = compare(other.bursts, found[0].bursts, names=(f"plain {name}", "ours"), paired=True)
        yield {
            "model": case.name,
            "plain": name,
            "plain_ms": other.summary.median_ms,
            "ours_ms": found[0].summary.median_ms,
            "speedup": result.speedup,
            "interval": [result.interval.low, result.interval.high],
            "verdict": result.verdict,
            "valid": found[0].validity.valid and other.validity.valid,
        }


def table(path: Path) -> str:
    """Returns the rows of a file as Markdown."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [
        "| model | file | converter | off by | same top-1 | transposes | outside XNNPACK | MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if "file" in row):
        outside = row["outside_delegate"]
        left = "-" if outside is None else ", ".join(f"{n} {kind}" for kind, n in outside.items()) or "none"
        cells = [
            row["model"],
            row["file"],
            row["converter"],
            f"{row['max_rel_diff']:.1e}",
            f"{100 * row['top1_agreement']:.1f} % of {row['images']}",
            str(row["transposes"]),
            left,
            f"{row['size_bytes'] / 1e6:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| model | plain file by | plain ms | ours ms | speed-up | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if "plain" in row):
        low, high = row["interval"]
        speed = f"{row['speedup']:.2f}x ({low:.2f} to {high:.2f})"
        cells = [row["model"], row["plain"], f"{row['plain_ms']:.2f}", f"{row['ours_ms']:.2f}", speed]
        lines.append(f"| {' | '.join(cells)} | {row['verdict']} |")
    return "\n".join(lines)


def main() -> None:
    """Prints one JSON object per exported file and per comparison, or a table of such lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cifar")
    parser.add_argument("--cifar-weights")
    parser.add_argument("--imagenet-calibration")
    parser.add_argument("--imagenet-report")
    parser.add_argument("--images", type=int, default=PARITY_IMAGES)
    parser.add_argument("--converter", default="auto", help="to TFLite")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--only", nargs="*", help="names of networks")
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return
    torch.set_num_threads(1)
    for case in cases(args):
        with tempfile.TemporaryDirectory() as name:
            for row in exported_rows(case, Path(name), args.images, args.converter):
                print(json.dumps(row), flush=True)
            if not args.no_speed:
                for row in speed_rows(case, Path(name), args.preset):
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
