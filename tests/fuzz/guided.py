"""Lets coverage lead the damage, with atheris, where it pays: in readers that are Python code of our own.

    pip install atheris
    python tests/fuzz/guided.py --runs 20000

The other formats are read by pydantic, PIL, torch and safetensors, into which atheris does not see; `run.py`
damages those blindly. Exits with 1 where one input was neither read nor refused in one line.
"""

# ruff: noqa: T201  what it prints is its result

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
os.environ.setdefault("OMP_NUM_THREADS", "1")

OURS = (
    "benchmark_model-output",
    "board-runner-output",
    "phone-facts",
    "board-facts",
    "adb-devices",
    "genotype-code",
    "latency-journal",
    "labels.txt",
    "idx",
    "tflite",
)
SEEDS = 30
LONGEST_BYTES = 4096
"""Of what atheris gives, from which hypothesis makes a damaged file."""


def main() -> int:
    """Fuzzes formats one after the other, each in a process of its own, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000, help="of each format")
    parser.add_argument("--only", nargs="*", help="formats; all of them by default")
    parser.add_argument("--inside", help="used by itself: the format of this process")
    asked = parser.parse_args()
    if asked.inside:
        _fuzz(asked.inside, asked.runs)
    codes = {name: _called(name, asked.runs) for name in OURS if not asked.only or name in asked.only}
    for name, code in codes.items():
        print(f"{name:34}{asked.runs:>8}{'  FAILED' if code else ''}")
    return int(any(codes.values()))


def _called(name: str, runs: int) -> int:
    words = [sys.executable, __file__, "--inside", name, "--runs", str(runs)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    print(done.stdout[-2000:] + done.stderr[-6000:] if done.returncode else f"{name}: fine", file=sys.stderr)
    return done.returncode


def _fuzz(name: str, runs: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["edgecompress"]):
        from fuzz.contract import folder_of, outcome
        from fuzz.formats import FORMATS

    from hypothesis import HealthCheck, given, settings

    (kind,) = (one for one in FORMATS if one.name == name)
    with tempfile.TemporaryDirectory() as base, folder_of(kind, Path(base)) as folder:

        @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(kind.damaged())
        def read(content: bytes) -> None:
            outcome(kind, folder, content)

        options = [f"-runs={runs}", f"-max_len={LONGEST_BYTES}", "-rss_limit_mb=6000", "-timeout=60"]
        os.chdir(base)  # where it would leave an input that crashes
        atheris.Setup([sys.argv[0], *options, "-len_control=0", _seeds()], read.hypothesis.fuzz_one_input)
        atheris.Fuzz()


def _seeds() -> str:
    """Writes random bytes to begin with: a damaged file is made of some hundreds of them."""
    rng = random.Random(0)
    Path("seeds").mkdir()
    for number in range(SEEDS):
        (Path("seeds") / str(number)).write_bytes(rng.randbytes(LONGEST_BYTES))
    return "seeds"


if __name__ == "__main__":
    sys.exit(main())
