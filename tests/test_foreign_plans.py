"""Plans from elsewhere: code they name runs with consent only, and no path in them leads to another file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench_files import onnx, write_exports
from cli_calls import check_one_line_error, run

import edgecompress
from edgecompress.core.caches import cache_directory
from edgecompress.core.runs import work_directory
from edgecompress.core.store import write_record
from edgecompress.core.types import ModelRef, Plan, Preprocess
from edgecompress.core.unfinished import BEGUN_FILE, Begun
from edgecompress.errors import ArtefactError, ModelError
from edgecompress.nets.artefact import PLAN_FILE, WEIGHTS_FILE, load, read_plan, save_artefact
from edgecompress.nets.consent import TRUST_CODE
from edgecompress.nets.sources import load_model

CODE = """
from pathlib import Path
from torch import nn

Path("ran").touch()


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder, with an artefact in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv(TRUST_CODE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another user's"))
    return folder


def artefact(code: Path, *, source: str | None = None, into: str = "artefact") -> Path:
    """Writes an artefact whose network is made by a file, and forgets that the file was run for it."""
    code.parent.mkdir(parents=True, exist_ok=True)
    code.write_text(CODE)
    network = load_model(f"{code}:model", input_size=(8, 8))
    shutil.rmtree(cache_directory())
    Path(into).mkdir(exist_ok=True)
    ref = ModelRef(source=source or network.ref.source, preprocess=Preprocess(size=(8, 8)))
    save_artefact(Path(into), Plan(model=ref), network.module)
    Path("ran").unlink()
    return Path(into)


def test_a_file_below_the_current_folder_is_run(here):
    load(artefact(here / "nets" / "mine.py"))
    assert Path("ran").exists()


@pytest.mark.parametrize("source", [None, "../elsewhere/theirs.py", "../here/../elsewhere/theirs.py:model"])
def test_a_file_outside_of_it_is_not_run(here, tmp_path, source):
    path = artefact(tmp_path / "elsewhere" / "theirs.py", source=source)
    with pytest.raises(
        ArtefactError, match=r"outside of the current folder; .*EDGECOMPRESS_TRUST_CODE=1"
    ) as error:
        load(path)
    assert "\n" not in str(error.value) and not Path("ran").exists()
    with pytest.raises(ArtefactError, match="outside"):
        read_plan(path)


def test_a_file_the_user_named_before_is_run_wherever_it_lies(here, tmp_path):
    code = tmp_path / "elsewhere" / "mine.py"
    path = artefact(code)
    with pytest.raises(ArtefactError, match="outside"):
        load(path)
    assert run("inspect", f"{code}:model", "--input-size", "8x8").exit_code == 0
    load(path)
    assert run("export", path, "--onnx", "--no-dense").exit_code == 0


def test_what_was_run_because_everything_is_trusted_is_not_remembered(here, tmp_path, monkeypatch):
    code = tmp_path / "elsewhere" / "theirs.py"
    path = artefact(code)
    with monkeypatch.context() as patch:
        patch.setenv(TRUST_CODE, "1")
        load_model(f"{code}:model", input_size=(8, 8))
    with pytest.raises(ArtefactError, match="outside"):
        load(path)


def test_a_home_that_cannot_be_written_is_no_error(here, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code = tmp_path / "elsewhere" / "mine.py"
    code.parent.mkdir()
    code.write_text(CODE)
    load_model(f"{code}:model", input_size=(8, 8))
    assert Path("ran").exists()


def test_a_link_does_not_lead_out(here, tmp_path):
    path = artefact(tmp_path / "elsewhere" / "theirs.py", source="linked.py")
    Path("linked.py").symlink_to(tmp_path / "elsewhere" / "theirs.py")
    with pytest.raises(ArtefactError, match="outside"):
        load(path)


def test_a_file_that_came_along_is_not_run(here):
    path = artefact(here / "artefact" / "net.py")
    with pytest.raises(ArtefactError, match="came along"):
        load(path)
    with contextlib.chdir(path), pytest.raises(ArtefactError, match="came along"):
        load(".")
    assert not Path("ran").exists()


@pytest.mark.parametrize("source", ["python:os:abort", "python:code:interact", "python:os.path:abspath"])
def test_functions_of_python_itself_are_not_called(here, source):
    path = artefact(here / "net.py", source=source)
    with pytest.raises(ArtefactError, match="a module of Python itself"):
        load(path)


def test_consent_is_an_argument_or_a_variable(here, tmp_path, monkeypatch):
    path = artefact(tmp_path / "elsewhere" / "theirs.py")
    load(path, trust_code=True)
    assert Path("ran").exists()
    Path("ran").unlink()
    monkeypatch.setenv(TRUST_CODE, "1")
    load(path)
    assert Path("ran").exists()


def test_a_given_network_needs_no_consent(here, tmp_path):
    path = artefact(tmp_path / "elsewhere" / "theirs.py")
    namespace: dict[str, object] = {}
    exec(CODE.replace('Path("ran").touch()', ""), namespace)
    load(path, model=namespace["model"]())
    assert not Path("ran").exists()


@pytest.mark.parametrize("command", [("export",), ("inspect",), ("export", "--no-dense")])
def test_commands_ask_for_consent_in_one_line(tmp_path, command):
    path = artefact(tmp_path / "elsewhere" / "theirs.py")
    check_one_line_error(run(command[0], path, *command[1:]), "theirs.py:model", f"{TRUST_CODE}=1")
    assert not Path("ran").exists() and not (path / "exports").exists()


def test_a_page_is_made_without_the_network(tmp_path):
    path = artefact(tmp_path / "elsewhere" / "theirs.py")
    from made_reports import written_run
    from test_report import COMPRESS

    plan = read_json(path / PLAN_FILE)
    result = COMPRESS.model_copy(update={"plan": Plan.model_validate(plan)})
    folder = written_run(Path("runs"), "compress", result, file="result.json", name="foreign")
    chosen = {"method": "lowrank", "family": "S2", "ranks": [1], "layers": ["0"], "params": 1, "macs": 1}
    conv = {"kind": "conv2d", "inputs": 3, "outputs": 4}
    plan["choices"] = [chosen | {"blocks": [{"branches": [[conv]]}]}]
    (folder / PLAN_FILE).write_text(json.dumps(plan))
    done = run("report", "foreign", "--json")
    assert done.exit_code == 0 and TRUST_CODE in done.stdout and not Path("ran").exists()


def test_the_environment_of_a_command_gives_consent(tmp_path):
    path = artefact(tmp_path / "elsewhere" / "theirs.py")
    words = [sys.executable, "-m", "edgecompress", "inspect", str(path), "--json"]
    done = subprocess.run(words, env=os.environ | {TRUST_CODE: "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and Path("ran").exists()


@pytest.mark.parametrize("option", ["model", "teacher"])
def test_an_unfinished_run_from_elsewhere_asks_for_consent(tmp_path, option):
    """It says itself where it was begun, and that folder is not the user's."""
    theirs = tmp_path / "elsewhere"
    theirs.mkdir()
    (theirs / "theirs.py").write_text(CODE)
    options = {"model": "zoo:fashion_resnet", option: "theirs.py:model"}
    begin("train", options, directory=theirs)
    check_one_line_error(run("resume", "begun"), "theirs.py:model", f"{TRUST_CODE}=1")
    assert not Path("ran").exists() and not (theirs / "ran").exists()


def test_an_unfinished_recovery_asks_for_consent_to_the_code_of_its_run(tmp_path):
    path = artefact(tmp_path / "elsewhere" / "theirs.py", into=str(tmp_path / "elsewhere" / "their-run"))
    begin("recover", {"run": path.name}, directory=path.parent)
    check_one_line_error(run("resume", "begun"), "theirs.py:model", f"{TRUST_CODE}=1")
    assert not Path("ran").exists() and not (path.parent / "ran").exists()


@pytest.mark.parametrize("source", ["a\0b.py:model", "python:os:getcwd"])
def test_strange_code_of_an_unfinished_run_is_one_line(here, source):
    begin("synthesize", {"model": source}, directory=here)
    check_one_line_error(run("resume", "begun"), TRUST_CODE)


@pytest.mark.parametrize("part", ["source", "directory"])
def test_a_name_too_long_for_a_file_in_an_unfinished_run_is_one_line(here, part):
    long = 5000 * "9"
    source, directory = (long, here) if part == "source" else ("zoo:fashion_resnet", here / long)
    begin("train", {"model": source}, directory=directory)
    check_one_line_error(run("resume", "begun"))


def begin(command, options, *, directory):
    """Writes what a process that was killed leaves behind."""
    work = work_directory(Path("runs"), "begun")
    work.mkdir(parents=True)
    begun = Begun(
        name="begun",
        command=command,
        options=options,
        inputs={},
        version="0",
        directory=str(directory),
        overwrite=False,
    )
    write_record(work / BEGUN_FILE, begun)


def read_json(path):
    return json.loads(path.read_text())


# Memory


def changed(path, change):
    plan = read_json(path / PLAN_FILE)
    change(plan)
    (path / PLAN_FILE).write_text(json.dumps(plan))
    return path


def test_blocks_larger_than_their_file_are_refused_before_they_are_built(here):
    path = artefact(here / "net.py")
    huge = {"kind": "conv2d", "inputs": 2**20, "outputs": 2**20, "kernel": [99, 99]}

    def choose(plan):
        plan["choices"] = [
            {"method": "lowrank", "family": "S2", "ranks": [1], "layers": ["0"], "params": 1, "macs": 1}
            | {"blocks": [{"branches": [[huge]]}]}
        ]

    with pytest.raises(ArtefactError, match="cannot hold"):
        load(changed(path, choose))


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", 10**9), ("classes", 0), ("size", [10**9, 10**9]), ("size", [0, 8]), ("mean", [0.5] * 1000)],
)
def test_sizes_no_network_has_are_refused(here, key, value):
    def change(plan):
        place = plan["model"] if key == "classes" else plan["model"]["preprocess"]
        place[key] = value

    with pytest.raises(ArtefactError, match=key):
        load(changed(artefact(here / "net.py"), change))


# Paths


@pytest.mark.parametrize(
    "weights", ["../../../../etc/passwd", "/dev/zero", "../here", "a\x00b", "x" * 5000 + ".pth"]
)
def test_weights_of_a_plan_lead_to_no_other_kind_of_file(here, weights):
    def change(plan):
        plan["model"]["weights"] = weights

    path = changed(artefact(here / "net.py"), change)
    check_one_line_error(run("export", path, "--onnx"), "--no-dense")
    assert not (path / "exports").exists()


@pytest.mark.parametrize(
    "name", ["../secret.onnx", "/etc/passwd", "..", ".hidden.onnx", "a/b.onnx", "a\\b.onnx"]
)
def test_files_of_an_export_lie_beside_its_record(here, name):
    onnx(here / "secret.onnx")
    path = write_exports(here / "exported", ["dense.onnx"])
    record = path / "export.json"
    exported = read_json(record)
    exported["files"][0]["file"] = name
    record.write_text(json.dumps(exported))
    check_one_line_error(run("bench", path, "--device", "local"), "export.json", "files.0.file")


@pytest.mark.parametrize(
    "name", ["../out", "/tmp/out", "..", ".hidden", "a/b", "-rf", "a b", "a;b", "$(x)", "a\nb", ""]
)
def test_names_of_runs_stay_within_their_folder(here, name):
    check_one_line_error(run("compress", "zoo:fashion_resnet", "--name", name), "not usable")
    assert list(here.parent.iterdir()) == [here] and not (here / "runs").exists()


def test_weights_of_another_size_are_found(here):
    path = artefact(here / "net.py")
    (path / WEIGHTS_FILE).write_bytes(b"")
    with pytest.raises(ArtefactError, match=WEIGHTS_FILE):
        load(path)


def test_typed_sources_need_no_consent(tmp_path):
    """What a user names himself is his own decision."""
    code = tmp_path / "elsewhere" / "mine.py"
    code.parent.mkdir()
    code.write_text(CODE)
    assert run("inspect", f"{code}:model", "--input-size", "8x8").exit_code == 0
    with pytest.raises(ModelError):
        edgecompress.inspect("python:os:getcwd")
