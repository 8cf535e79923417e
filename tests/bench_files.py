"""What tests of `bench` measure: small files, runs with exports, and a preset that takes a second."""

import shutil
from pathlib import Path

from onnx_files import write_net

from edgecompress.core.presets import Preset
from edgecompress.core.results import ExportedFile, ExportResult, GraphFacts, ParityResult
from edgecompress.core.runs import create_run
from edgecompress.core.store import sha256_of, write_record
from edgecompress.core.types import ModelRef, Preprocess

FILES = Path(__file__).parent / "files"
SHORT = Preset(
    "quick",
    "for tests",
    min_runs=8,
    min_seconds=0.004,
    rounds=4,
    process_rounds=3,
    warmup_seconds=0.01,
    score="median",
)
MODEL = ModelRef(source="zoo:fashion_resnet", preprocess=Preprocess(size=(28, 28), mean=(0.5,), std=(0.5,)))


def tflite(path, source="small.tflite"):
    """Copies one of the networks of tests/files."""
    return Path(shutil.copy(FILES / source, path))


def onnx(path):
    """Writes a small network."""
    return write_net(path)


def exported_run(runs_dir, names, *, name="small"):
    """Makes a run whose `exports` hold files called `NETWORK[.PRECISION].FORMAT`."""
    with create_run(runs_dir, command="compress", name=name, options={}, seed=0, inputs={}) as made:
        write_exports(made.directory / "exports", names)
    return made.path


def write_exports(directory, names):
    """Writes files and the `export.json` that lists them."""
    directory.mkdir(parents=True)
    files = []
    for name in names:
        path = directory / name
        (onnx if path.suffix == ".onnx" else tflite)(path)
        files.append(_described(path))
    record = ExportResult(
        directory=str(directory), model=MODEL, files=tuple(files), parity_images="200 images", versions={}
    )
    write_record(directory / "export.json", record)
    return directory


def _described(path):
    network, *precision, kind = path.name.split(".")
    parity = ParityResult(
        file=path.name, format=kind, images=200, max_abs_diff=0, max_rel_diff=0, top1_agreement=1
    )
    graph = GraphFacts(
        operators={}, transposes=0, outside_delegate=None, input_shape=(1, 16, 16, 3), input_type="float32"
    )
    return ExportedFile(
        file=path.name,
        network=network,
        format=kind,
        precision=precision[0] if precision else "fp32",
        converter="torch",
        layout="NHWC" if kind == "tflite" else "NCHW",
        size_bytes=path.stat().st_size,
        sha256=sha256_of(path),
        parity=parity,
        graph=graph,
        seconds=0.1,
    )
