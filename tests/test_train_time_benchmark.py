"""The benchmark of training for compression: jobs done once, settings, equal passes, tables."""

import argparse
import importlib
import sys
from pathlib import Path

import pytest
import torch
from made_trainings import split_of
from torch import nn

from edgecompress.core.plugins import discover
from edgecompress.errors import ConfigError, ModelError
from edgecompress.train import optimisers
from edgecompress.train.images import TrainingImages
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def found_by_name():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def bench(found_by_name):
    return importlib.import_module("bench_train_time")


def job_of(bench, done, **key):
    def rows():
        done.append(key)
        return [{"top1": 90.0}, {"top1": 80.0}]

    return bench.Job(key, rows)


def test_a_job_whose_rows_are_there_is_not_done_again(bench, tmp_path):
    done, output = [], tmp_path / "rows.jsonl"
    for seed in (0, 1, 0, 1):
        bench.run(job_of(bench, done, part="lorita", name="2 factors", seed=seed, rates=(0.1, 0.2)), output)
    assert [key["seed"] for key in done] == [0, 1]
    assert [row["seed"] for row in bench.rows_of(output)] == [0, 0, 1, 1]


def test_a_training_that_diverged_is_a_row_and_is_told(bench, tmp_path):
    def fails():
        raise ModelError("the loss is not finite")

    output = tmp_path / "rows.jsonl"
    bench.run(bench.Job({"part": "bsconv", "name": "plain", "seed": 4, "lr": 9.0}, fails), output)
    assert "plain, seed 4: the loss is not finite" in bench.markdown(bench.rows_of(output))


def test_settings_are_changed_for_their_part_only_and_keep_their_kind(bench):
    lorita = bench.train_time_lorita
    options = argparse.Namespace(set=["lorita.steps=7", "lorita.lr=1e-3", "bsconv.steps=5"])
    found = bench.train_time_lorita.settings_of(options, "lorita", lorita.Settings())
    assert (found.steps, found.lr, found.batch) == (7, 1e-3, lorita.Settings().batch)
    for text in ("lorita.colour=red", "lorita.steps=many"):
        with pytest.raises(ConfigError, match=text):
            lorita.settings_of(argparse.Namespace(set=[text]), "lorita", lorita.Settings())


@pytest.mark.parametrize(
    ("name", "timing"), [("sgd", "none"), ("sam", "none"), ("pugd", "none"), ("pugd", "variance:100")]
)
def test_all_optimisers_get_as_many_passes(bench, name, timing):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    optimizer = discover(optimisers, Optimiser)[name].make(network, OptimiserSettings(timing=timing))
    told = bench.train_time_optimisers.train_(network, optimizer, TrainingImages(split_of(40), 8, (), 0), 60)
    assert told["passed"] == pytest.approx(60, abs=1)
    least, most = {"sgd": (60, 60), "sam": (30, 30), "pugd": (30, 30)}[name] if timing == "none" else (31, 59)
    assert least <= told["steps"] <= most
    assert optimizer.param_groups[0]["lr"] < 0.1 * 0.02  # the rate falls to its end whatever a step costs


def test_tables_tell_mean_spread_and_number_of_seeds(bench):
    rows = [
        {
            "part": "bsconv",
            "name": "plain",
            "seed": seed,
            "lr": 0.1,
            "params": 1000,
            "macs": 2e6,
            "top1": top1,
        }
        for seed, top1 in enumerate((90.0, 91.0, 92.0))
    ]
    assert "| plain | lr 0.1 | 3 | 1,000 | 2.00 | 91.00 ± 1.00 |" in bench.markdown(rows)
    piloted = [*rows, rows[0] | {"pilot": True, "top1": 50.0}]
    assert "**bsconv**, pilot" in bench.markdown(piloted)
    assert "91.00 ± 1.00" in bench.markdown(piloted)  # what a pilot found is not mixed with it


def test_every_part_has_a_table(bench):
    tables = importlib.import_module("train_time_tables")
    assert set(tables.TABLES) == set(bench.PARTS)
