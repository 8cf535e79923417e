"""Libraries below us tell nobody that they are used, and leave nothing behind for it."""

import os
import subprocess
import sys

from bench_files import onnx

MEASURE = """
from edgecompress.devices import local_ort
import onnxruntime

onnxruntime.InferenceSession({file!r}, providers=["CPUExecutionProvider"])
"""


def test_onnxruntime_reports_nothing(tmp_path):
    """Where it does, it keeps a number of the machine and a session in files."""
    onnx(tmp_path / "a.onnx")
    places = {name: tmp_path / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    for place in places.values():
        place.mkdir()
    environment = os.environ | {name: str(place) for name, place in places.items()}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    code = MEASURE.format(file=str(tmp_path / "a.onnx"))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not [one for place in places.values() for one in place.rglob("*") if one.is_file()]
