"""Who keeps most accuracy at equal milliseconds: ours, or what others do?

    python benchmarks/scoreboard.py --models resnet20 --runtimes pixel4-emulated onnxruntime --points 0.75 \\
        --cifar CIFAR --resnet20-weights FILE --output scoreboard.jsonl --work FOLDER
    python benchmarks/scoreboard.py ... --minutes 3              # the same networks, each trained that long
    python benchmarks/scoreboard.py --markdown scoreboard.jsonl --plot scoreboard.png

A point is a share of the dense network's milliseconds. Every method turns its knob until its network,
exported and timed in turns with the dense one, takes no more than that and hardly less; in the end all files
of a network and runtime are measured together, in turns, in one run. Milliseconds of `pixel4-emulated` are
modelled from counted instructions. Int8 has no knob: its rows have the milliseconds they have. `ours` reads a
latency table (`--table onnxruntime=local.json`, made by `edgecompress latency build`), and rules of others
may read it too.

All see the same 512 training images, of which 64 choose between variants of a method; torch-pruning also
sees their labels. Report images are used for nothing else. With `--minutes` networks are trained alike,
on labels and on the dense network's answers: every way of a method that reaches the point for a quarter of
the minutes of one core by each of two recipes, and the best of these for all of them. A tenth of the test
images, which are never reported on, choose between these, epochs and no training.

Rows that are in the output already are not made again, so a run that was killed goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from scoreboard_contest import Contest
from scoreboard_journal import Journal, read_rows
from scoreboard_names import METHODS
from scoreboard_page import markdown
from scoreboard_plot import write_plot
from scoreboard_scene import MODELS, RUNTIMES, open_scene
from scoreboard_summary import int8_summary, summary


def main() -> None:
    """Runs the contest, or turns its lines into tables and a picture."""
    options = parser().parse_args()
    if options.markdown:
        rows = read_rows(options.markdown)
        print("\n\n".join((summary(rows), int8_summary(rows), markdown(rows))))
        if options.plot:
            write_plot(rows, options.plot)
        return
    torch.set_num_threads(1)
    journal = Journal(options.output)
    for name in options.models:
        scene = open_scene(name, options)
        for runtime in options.runtimes:
            start = time.monotonic()
            Contest(scene, runtime, journal).hold()
            print(f"{name} on {runtime}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """Returns the options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--models", nargs="+", default=["resnet20"], choices=list(MODELS))
    found.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    found.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    found.add_argument("--points", nargs="+", type=float, default=[0.75, 0.6], help="of the dense ms")
    found.add_argument("--minutes", type=float, default=0.0, help="of training; 0: none")
    found.add_argument("--cifar", metavar="DATA")
    found.add_argument("--resnet20-weights", metavar="FILE")
    found.add_argument("--resnet56-weights", metavar="FILE")
    found.add_argument("--imagenet-calibration", metavar="FOLDER")
    found.add_argument("--imagenet-report", metavar="FOLDER")
    found.add_argument("--fashion", metavar="DATA", default="fashion-mnist")
    found.add_argument("--table", action="append", default=[], metavar="RUNTIME=FILE")
    found.add_argument("--variants", type=int, help="at most so many ways to use a method; all when missing")
    found.add_argument("--tries", type=int, default=6, help="of a knob, per variant and point")
    found.add_argument("--paper-steps", type=int, default=100, help="of SVD-NAS as published: 78,125")
    found.add_argument("--report-images", type=int)
    found.add_argument("--preset", default="quick", help="of the measurement in the end")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--work", type=Path, default=Path("scoreboard"), help="for files and runs")
    found.add_argument("--output", type=Path, default=Path("scoreboard.jsonl"))
    found.add_argument("--markdown", nargs="+", type=Path, metavar="JSONL")
    found.add_argument("--plot", type=Path, metavar="FILE", help=".png or .html, with --markdown")
    return found


if __name__ == "__main__":
    main()
