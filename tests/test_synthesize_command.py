"""`edgecompress synthesize` as a user meets it: runs, what uses them, kills, many processes, refusals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from PIL import Image

import edgecompress
from edgecompress.core.runs import read_run
from edgecompress.core.store import read_record
from edgecompress.core.synthesis_results import SynthesisResult
from edgecompress.core.types import Preprocess
from edgecompress.data.sources import open_source

MODEL = """
import torch
from torch import nn


class Small(nn.Sequential):
    def __init__(self, shift=0.3):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        )
        for norm in (self[1], self[4]):
            norm.running_mean.fill_(shift)


def fresh():
    return Small(shift=0.0)


def unusable():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
"""
SMALL = ("small.py:Small", "--input-size", "8x8")
QUICK = ("--images", 10, "--batch-images", 4, "--iterations", 5)
SHARDS = ("images-000.safetensors", "images-001.safetensors", "images-002.safetensors")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model and a finished run of it."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run("synthesize", *SMALL, *QUICK, "--name", "whole")
        assert done.exit_code == 0, done.stderr
        (folder / "shown.txt").write_text(done.stdout)
    return folder


def test_the_command_to_go_on_with_is_told_of_the_input(home):
    shown = "".join((home / "shown.txt").read_text().splitlines())
    assert "small.py:Small --input-size 8x8 --data runs/whole" in shown.replace("  ", " ")


@pytest.fixture(autouse=True)
def folder(home, monkeypatch):
    monkeypatch.chdir(home)
    return home


def shards_of(name):
    return [(Path("runs") / name / file).read_bytes() for file in SHARDS]


def test_a_run_holds_images_a_sheet_and_what_was_done():
    directory = Path("runs/whole")
    result = read_record(directory / "synthesis.json", SynthesisResult)
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        ("contact-sheet.png", "run.json", "synthesis.json", *SHARDS)
    )
    assert [shard.images for shard in result.shards] == [4, 4, 2]
    assert all(shard.end_loss < shard.start_loss for shard in result.shards)
    assert (result.norms, result.images, result.settings.iterations) == (2, 10, 5)
    assert result.warnings == () and result.seconds > 0
    with Image.open(directory / "contact-sheet.png") as picture:
        assert picture.size == (10 * 66 - 2, 64)
    recorded = read_run(directory)
    assert (recorded.command, recorded.options["images"], recorded.seed) == ("synthesize", 10, 0)
    assert recorded.inputs[result.model.source] == result.model_sha256


def test_the_run_is_a_source_of_images():
    preprocess = Preprocess(size=(8, 8), resize=8)
    source = open_source("runs/whole", preprocess)
    assert len(source.pool) == 10
    assert source.pool.labels().tolist() == [0, 1, 2, 3] * 2 + [0, 1]


def test_the_run_calibrates_a_compression():
    done = run("compress", *SMALL, "--data", "runs/whole", "--report-images", 2, "--name", "c", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["split"]["source"] == "runs/whole"


def test_a_missing_shard_is_noticed(tmp_path):
    for file in Path("runs/whole").iterdir():
        if file.name != SHARDS[1]:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    done = run("compress", *SMALL, "--data", tmp_path)
    check_one_line_error(done, "6 of 10 images")


def test_the_same_seed_gives_the_same_files_and_more_images_begin_with_them():
    result = edgecompress.synthesize(
        "small.py:Small", input_size=(8, 8), images=12, batch_images=4, iterations=5, name="longer"
    )
    assert [shard.images for shard in result.shards] == [4, 4, 4]
    assert shards_of("longer")[:2] == shards_of("whole")[:2]
    assert (
        open_source("runs/longer", result.model.preprocess)
        .pool.images([9])
        .equal(open_source("runs/whole", result.model.preprocess).pool.images([9]))
    )


def test_a_table_tells_how_it_went_and_json_is_the_record():
    done = run("synthesize", *SMALL, *QUICK, "--seed", 1, "--name", "other")
    told = " ".join(done.stdout.split())  # long paths break lines
    for part in ("10 images from 2 batch norms", "images-002", "contact-sheet.png", "runs/other"):
        assert part in told
    assert shards_of("other")[0] != shards_of("whole")[0]
    again = run("synthesize", *SMALL, *QUICK, "--name", "other", "--overwrite", "--json")
    assert json.loads(again.stdout)["images"] == 10
    assert shards_of("other") == shards_of("whole")


def test_a_run_can_be_repeated_from_its_settings():
    assert run("synthesize", "small.py:Small", "--config", "runs/whole", "--name", "repeated").exit_code == 0
    assert shards_of("repeated") == shards_of("whole")


def test_runs_lists_it_without_complaint():
    listed = json.loads(run("runs", "--json").stdout)["runs"]
    (line,) = [one for one in listed if one["name"] == "whole"]
    assert line["command"] == "synthesize" and line["problem"] is None


KILLED_AT_THE_SECOND = """
import os, signal
from edgecompress.cli.main import main
from edgecompress.train.synthesis import ImageBatch

generator = ImageBatch.generator


def dies(self):
    if self.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return generator(self)


ImageBatch.generator = dies
main()
"""
COMMAND = [sys.executable, "-m", "edgecompress", "synthesize", *map(str, (*SMALL, *QUICK))]


def test_killed_it_goes_on_and_gives_the_same_files():
    work = Path("runs/.killed.work")
    process = subprocess.run(
        [sys.executable, "-c", KILLED_AT_THE_SECOND, *COMMAND[3:], "--name", "killed"],
        timeout=600,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    assert not Path("runs/killed").exists() and not (work / SHARDS[1]).exists()
    untouched, first = (work / SHARDS[0]).stat().st_mtime_ns, (work / SHARDS[0]).stat().st_ino
    done = run("resume", "killed")
    assert done.exit_code == 0, done.stderr
    assert shards_of("killed") == shards_of("whole")
    kept = Path("runs/killed") / SHARDS[0]
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == (untouched, first), "it was made again"
    assert not work.exists()


def test_two_processes_make_the_same_files():
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    command = [sys.executable, *torchrun, *rendezvous, *COMMAND[1:], "--name", "two", "--json"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["shards"]) == 3, "the first process alone prints"
    assert shards_of("two") == shards_of("whole")


def test_a_model_without_batch_norms_is_refused_with_what_still_works():
    done = run("synthesize", "small.py:unusable", "--input-size", "8x8")
    check_one_line_error(done, "batch norm", "refit, mimic, distill and full")


def test_a_preset_for_another_network_is_refused():
    done = run("synthesize", *SMALL, "--preset", "paper-efficientnet")
    check_one_line_error(done, "batch norm 48", "--preset ours")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preset", "mine"), "paper-resnet18"),
        (("--statistics", "photo"), "--statistics 'photo'"),
        (("--learning-rate", -1), "--learning-rate"),
        (("--weights", "absent.pth"), "absent.pth"),
    ],
)
def test_wrong_options_are_one_line(flags, said):
    check_one_line_error(run("synthesize", *SMALL, *flags), said)


def test_random_weights_and_fresh_statistics_are_said():
    fresh = ("small.py:fresh", "--input-size", "8x8", *QUICK, "--name", "fresh", "--json")
    assert "never saw an image" in json.loads(run("synthesize", *fresh).stdout)["warnings"][0]
    random = ("zoo:resnet20", "--images", 1, "--iterations", 1, "--name", "random", "--json")
    assert "random" in json.loads(run("synthesize", *random).stdout)["warnings"][0]


def test_divergence_is_said():
    done = run("synthesize", *SMALL, *QUICK, "--learning-rate", 1e9, "--name", "diverged", "--json")
    result = json.loads(done.stdout)
    assert {shard["stopped"] for shard in result["shards"]} == {"diverged"}
    assert "--learning-rate" in result["warnings"][-1]
