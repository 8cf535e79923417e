"""A compressed model on disk comes back bit by bit, or says in one line why it does not."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_nets import INPUT_SHAPE, images, same_state, small_net, state_of

from edgecompress.core.types import Block, Candidate, ModelRef, Plan, Preprocess
from edgecompress.errors import ArtefactError, ModelError
from edgecompress.methods import tucker2
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.artefact import PLAN_FILE, WEIGHTS_FILE, load, read_plan, rewrite_, save_artefact
from edgecompress.nets.families import Family
from edgecompress.nets.modules import Sum, find_layers

TESTS = Path(__file__).parent
SOURCE = f"{TESTS / 'small_nets.py'}:small_net"


def choices_of(net):
    """Returns a pair, a chain of three and a block of two branches."""
    narrow, wide, biased, hidden = find_layers(net, ["narrow", "wide", "biased", "hidden"], INPUT_SHAPE)[0]
    parts = [pair_candidate(biased, Family(kind), 2) for kind in ("S2", "S5")]
    last = parts[1].blocks[0].branches[0][1].model_copy(update={"bias": False})
    branches = (parts[0].blocks[0].branches[0], (parts[1].blocks[0].branches[0][0], last))
    two = Candidate(
        method="branches",
        family="S2+S5(1)",
        ranks=(2, 2),
        layers=("biased",),
        blocks=(Block(branches=branches),),
        params=parts[0].params + parts[1].params,
        macs=parts[0].macs + parts[1].macs,
    )
    three = next(iter(tucker2.METHOD.candidates(wide)))
    return pair_candidate(narrow, Family("S4", 2), 3), three, two, pair_candidate(hidden, Family("S4"), 4)


@pytest.fixture(scope="module")
def plan():
    ref = ModelRef(source=SOURCE, preprocess=Preprocess(size=INPUT_SHAPE[1:]))
    return Plan(model=ref, choices=choices_of(small_net()))


@pytest.fixture
def saved(plan, tmp_path):
    """Returns a directory and the network that was written there."""
    torch.manual_seed(1)
    network = small_net(seed=5)
    rewrite_(network, plan)
    save_artefact(tmp_path, plan, network)
    return tmp_path, network.eval()


def error_of(directory, kind=ArtefactError, **options):
    """Returns the one line that loading ends with."""
    with pytest.raises(kind) as error:
        load(directory, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def edit(directory, change):
    """Edits the plan as JSON."""
    file = directory / PLAN_FILE
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_a_model_comes_back_bit_by_bit(saved, plan):
    directory, network = saved
    again = load(directory)
    assert same_state(again, state_of(network))
    assert not again.training
    assert not any(module.training for module in again.modules())
    with torch.no_grad():
        assert torch.equal(again(images(3)), network(images(3)))
    assert isinstance(again.biased, Sum)
    assert read_plan(directory) == plan


def test_a_given_network_is_used_in_place_of_the_source(saved, plan):
    directory, network = saved
    edit(directory, lambda content: content["model"].update(source="nowhere.py:net"))
    given = small_net(seed=3)
    again = load(str(directory), model=given)
    assert again is given
    assert same_state(again, state_of(network))
    assert "nowhere.py" in error_of(directory, ModelError)


def test_saving_leaves_the_network_alone_and_writes_two_files(plan, tmp_path):
    network = small_net()
    rewrite_(network, plan)
    before, twin = state_of(network), copy.deepcopy(network)
    save_artefact(tmp_path / "new", plan, network)
    assert same_state(network, before)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [PLAN_FILE, WEIGHTS_FILE]
    stored = load_file(tmp_path / "new" / WEIGHTS_FILE)
    assert all(torch.equal(stored[name], value) for name, value in twin.state_dict().items())


def test_a_plan_without_choices_is_the_dense_model(tmp_path):
    dense = small_net(seed=7)
    ref = ModelRef(source=SOURCE, preprocess=Preprocess(size=INPUT_SHAPE[1:]))
    save_artefact(tmp_path, Plan(model=ref), dense)
    assert same_state(load(tmp_path), state_of(dense))


def test_weights_that_share_memory_or_are_not_contiguous_can_be_saved(tmp_path):
    dense = small_net()
    dense.hidden.weight.data = dense.hidden.weight.data.T.contiguous().T
    dense.norm1.bias = dense.norm1.weight
    ref = ModelRef(source=SOURCE, preprocess=Preprocess(size=INPUT_SHAPE[1:]))
    save_artefact(tmp_path, Plan(model=ref), dense)
    assert same_state(load(tmp_path), state_of(dense))


@pytest.mark.parametrize("missing", [PLAN_FILE, WEIGHTS_FILE])
def test_a_missing_file_is_named(saved, missing):
    (saved[0] / missing).unlink()
    assert f"{missing}: there is no such file" in error_of(saved[0])


def test_a_directory_that_is_not_there_is_named(tmp_path):
    assert "nowhere" in error_of(tmp_path / "nowhere")


@pytest.mark.parametrize("damaged", [PLAN_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("keep", [0, 1, 100, 2000, -1])
def test_a_cut_off_file_is_named(saved, damaged, keep):
    file = saved[0] / damaged
    file.write_bytes(file.read_bytes().rstrip()[:keep])
    assert damaged in error_of(saved[0])


@pytest.mark.parametrize("damaged", [PLAN_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("content", [b"\x80\x04\x95pickle", b"PK\x03\x04", b"\x00" * 64, b"\xff" * 64, b"{}"])
def test_a_file_of_another_kind_is_named(saved, damaged, content):
    (saved[0] / damaged).write_bytes(content)
    assert damaged in error_of(saved[0])


@pytest.mark.parametrize("damaged", [PLAN_FILE, WEIGHTS_FILE])
def test_a_directory_in_the_place_of_a_file_is_named(saved, damaged):
    (saved[0] / damaged).unlink()
    (saved[0] / damaged).mkdir()
    assert damaged in error_of(saved[0])


def first_op(content):
    return content["choices"][0]["blocks"][0]["branches"][0][0]


EDITS = {
    "another format": lambda plan: plan.update(format_version=2),
    "an unknown key": lambda plan: plan.update(colour="red"),
    "no model": lambda plan: plan.pop("model"),
    "a layer less": lambda plan: plan["choices"].pop(),
    "a layer that is not there": lambda plan: plan["choices"][0].update(layers=["nowhere"]),
    "a layer without a name": lambda plan: plan["choices"][0].update(layers=[""]),
    "another layer": lambda plan: plan["choices"][0].update(layers=["head"]),
    "a layer twice": lambda plan: plan["choices"].append(plan["choices"][0] | {"layers": ["narrow.1"]}),
    "two names for one block": lambda plan: plan["choices"][0].update(layers=["narrow", "wide"]),
    "no block": lambda plan: plan["choices"][0].update(blocks=[]),
    "no branch": lambda plan: plan["choices"][0]["blocks"][0].update(branches=[]),
    "an empty branch": lambda plan: plan["choices"][0]["blocks"][0].update(branches=[[]]),
    "more channels": lambda plan: first_op(plan).update(outputs=8),
    "groups that do not divide": lambda plan: first_op(plan).update(groups=5),
    "a kernel of nothing": lambda plan: first_op(plan).update(kernel=[0, 0]),
    "a larger kernel": lambda plan: first_op(plan).update(kernel=[5, 5]),
    "negative padding": lambda plan: first_op(plan).update(padding=[-1, 0]),
    "text for a number": lambda plan: first_op(plan).update(inputs="many"),
    "an unknown operator": lambda plan: first_op(plan).update(kind="conv3d"),
    "a bias more": lambda plan: first_op(plan).update(bias=True),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_plan_is_found_out(saved, change):
    edit(saved[0], change)
    assert PLAN_FILE in error_of(saved[0])


def test_weights_of_another_plan_do_not_fit(saved):
    file = saved[0] / WEIGHTS_FILE
    state = load_file(file)
    for odd in ("more", "fewer", "shape"):
        changed = dict(state)
        if odd == "more":
            changed["extra.weight"] = torch.zeros(2)
        elif odd == "fewer":
            changed.pop("narrow.0.weight")
        else:
            changed["narrow.0.weight"] = torch.zeros(2)
        save_file(changed, file)
        assert f"does not fit {PLAN_FILE}" in error_of(saved[0])


def python(code, *args, **options):
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        **options,
    )


LOAD = """
import pickle, sys
def refuse(*args, **kwargs):
    raise AssertionError("unpickled")
import torch
torch.load = pickle.load = pickle.loads = pickle.Unpickler = refuse
import edgecompress
network = edgecompress.load(sys.argv[1], trust_code=True)
ours = sorted(name for name in sys.modules if name.startswith("edgecompress."))
print([name for name in ours if name.split(".")[1] in ("search", "pipeline", "methods", "factors", "cli")])
print(network(torch.ones(1, 3, 12, 12)).detach().double().sum().item().hex())
"""


def test_loading_needs_neither_pickle_nor_the_code_that_searched(saved, tmp_path_factory):
    directory, network = saved
    moved = tmp_path_factory.mktemp("elsewhere") / "artefact"
    shutil.copytree(directory, moved)
    done = python(LOAD, moved, cwd=moved.parent)
    with torch.no_grad():
        expected = network(torch.ones(1, 3, 12, 12)).double().sum().item().hex()
    assert done.stdout.splitlines() == ["[]", expected]


FULL = """
import resource, sys
from pathlib import Path
from small_nets import small_net
from edgecompress.core.types import ModelRef, Plan, Preprocess
from edgecompress.errors import ArtefactError
from edgecompress.nets.artefact import save_artefact
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
plan = Plan(model=ModelRef(source="a.py:b", preprocess=Preprocess(size=(12, 12))))
try:
    save_artefact(Path(sys.argv[1]), plan, small_net())
except ArtefactError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
def test_weights_that_cannot_be_written_are_one_line(tmp_path):
    lines = python(FULL, tmp_path).stdout.splitlines()
    assert len(lines) == 1
    assert f"{WEIGHTS_FILE}: could not be written" in lines[0]
