"""Two processes of torchrun find what one finds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from edgecompress.train import parallel
from edgecompress.train.checkpoint import load_state

SEARCH = """
import json, sys
from pathlib import Path
import torch
from gradient_problems import filling, gradient_problem, unlabelled
from small_nets import small_net
from edgecompress.train import parallel
from edgecompress.search.supernet import GradientSettings, search_by_gradient

torch.set_num_threads(1)
with parallel.process_group():
    model = small_net()
    problem = gradient_problem(model)
    settings = GradientSettings(steps=10, batch_images=9, elasticity=2.0)
    path = Path(sys.argv[1]) / f"theta{parallel.rank()}.safetensors"
    found = search_by_gradient(
        model, problem, filling(problem), unlabelled(), settings, checkpoint=path
    )
    plan = {name: (c.family, c.ranks) for name, c in found.choices.items()}
    told = {"processes": parallel.processes(), "plan": plan, "loss": found.loss}
    (Path(sys.argv[1]) / f"{parallel.rank()}.json").write_text(json.dumps(told))
"""


def start(directory, *launcher):
    script = directory / "search.py"
    script.write_text(SEARCH)
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script), str(directory)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def scores_in(checkpoint):
    with safe_open(checkpoint, framework="pt") as file:
        identity = json.loads(file.metadata()["edgecompress"])["identity"]
    return load_state(checkpoint, identity)["scores"]


def test_two_processes_find_what_one_finds(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    start(tmp_path / "one")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")
    start(tmp_path / "two", *torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    alone = json.loads((tmp_path / "one" / "0.json").read_text())
    both = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert alone["processes"] == 1
    assert both[0] == both[1]
    assert both[0]["processes"] == 2
    assert both[0]["plan"] == alone["plan"]
    assert both[0]["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    scores = [scores_in(tmp_path / name / "theta0.safetensors") for name in ("one", "two")]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-3)
    assert not (tmp_path / "two" / "theta1.safetensors").exists()


def test_one_process_is_the_first_and_has_everything():
    with parallel.process_group():
        assert (parallel.rank(), parallel.processes(), parallel.is_first()) == (0, 1, True)
        assert torch.equal(parallel.own_share(torch.arange(5)), torch.arange(5))
        total = torch.ones(2)
        parallel.add_up_(total)
        assert total.tolist() == [1, 1]
