import json
import multiprocessing
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edgecompress.core.runs import (
    Run,
    check_name,
    create_run,
    installed_versions,
    latest_run,
    read_run,
    resolve_run,
)
from edgecompress.core.store import write_record
from edgecompress.errors import ArtefactError, ConfigError

OPTIONS = {"model": "zoo:resnet20", "budget": "macs=50%", "input_size": (32, 32), "data": None}


def make_run(runs_dir, *, name=None, files=("plan.json",), **more):
    options = more.pop("options", OPTIONS)
    with create_run(
        runs_dir, command="compress", name=name, options=options, seed=3, inputs={"a.pth": "ab" * 32}, **more
    ) as run:
        for file in files:
            (run.directory / file).parent.mkdir(parents=True, exist_ok=True)
            (run.directory / file).write_text("{}")
    return run.path


def write_run(runs_dir, name, *, created, files=()):
    run = Run(
        name=name,
        command="compress",
        options={},
        seed=0,
        created=created,
        versions={},
        inputs={},
        outputs=files,
    )
    write_record(runs_dir / name / "run.json", run)
    for file in files:
        (runs_dir / name / file).write_text("{}")


def test_a_run_says_how_it_was_made(tmp_path):
    path = make_run(tmp_path, name="mine", files=("plan.json", "export/model.onnx"))
    run = read_run(path)
    assert (run.name, run.command, run.seed) == ("mine", "compress", 3)
    assert run.options == {
        "model": "zoo:resnet20",
        "budget": "macs=50%",
        "input_size": [32, 32],
        "data": None,
    }
    assert run.inputs == {"a.pth": "ab" * 32}
    assert run.outputs == ("export/model.onnx", "plan.json")
    assert run.versions == installed_versions()
    assert {"python", "edgecompress", "torch"} <= set(run.versions)
    assert abs(datetime.now(UTC) - run.created) < timedelta(minutes=1)


def test_options_that_say_where_a_run_goes_are_not_recorded(tmp_path):
    where = {"name": "mine", "runs_dir": tmp_path, "overwrite": True}
    path = make_run(tmp_path, name="mine", options=OPTIONS | where)
    assert set(read_run(path).options) == set(OPTIONS)


def test_paths_are_recorded_as_text(tmp_path):
    path = make_run(tmp_path, options={"model": "zoo:a", "data": Path("photos/train")})
    assert read_run(path).options["data"] == str(Path("photos/train"))


def test_automatic_names_are_readable_and_count_up(tmp_path):
    names = [make_run(tmp_path).name for _ in range(2)]
    assert names == ["compress-resnet20-001", "compress-resnet20-002"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("path/to/my net.py:build", "compress-my-net-001"),
        ("path/to/file.py", "compress-file-001"),
        ("python:pkg.mod:factory", "compress-factory-001"),
        ("runs/earlier/", "compress-earlier-001"),
        ("...", "compress-001"),
        ("", "compress-001"),
    ],
)
def test_automatic_names_are_valid_for_any_model(tmp_path, model, name):
    path = make_run(tmp_path, options={"model": model})
    assert path.name == name
    check_name(path.name)


def _make_several(runs_dir, count):
    for _ in range(count):
        make_run(Path(runs_dir))


def test_processes_at_the_same_time_get_different_names(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_make_several, args=(str(tmp_path), 10)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"compress-resnet20-{number:03d}" for number in range(1, 21)
    ]


def test_a_name_being_written_is_not_given_out_again(tmp_path):
    with create_run(tmp_path, command="compress", options=OPTIONS, seed=0, inputs={}) as unfinished:
        other = make_run(tmp_path)
        assert unfinished.path.name == "compress-resnet20-001"
        assert not unfinished.path.exists()
    assert other.name == "compress-resnet20-002"


def test_a_claim_left_by_a_killed_process_is_nobodys(tmp_path):
    (tmp_path / ".compress-resnet20-001.claim").touch()
    assert make_run(tmp_path).name == "compress-resnet20-001"
    assert not list(tmp_path.glob(".*"))


def test_a_failed_run_leaves_nothing(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        create_run(tmp_path, command="compress", options=OPTIONS, seed=0, inputs={}) as run,
    ):
        (run.directory / "plan.json").write_text("{")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        create_run(tmp_path, command="compress", name="mine", options=OPTIONS, seed=0, inputs={}),
    ):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_is_refused_before_any_work(tmp_path):
    make_run(tmp_path, name="mine")
    with pytest.raises(ArtefactError, match="--overwrite"):
        make_run(tmp_path, name="mine", files=("other.json",))
    assert read_run(tmp_path / "mine").outputs == ("plan.json",)


def test_overwrite_replaces_the_whole_run(tmp_path):
    make_run(tmp_path, name="mine")
    path = make_run(tmp_path, name="mine", files=("other.json",), overwrite=True)
    assert sorted(file.name for file in path.iterdir()) == ["other.json", "run.json"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "../up", "-x", "a b", "a\n", "x" * 101]
)
def test_names_that_cannot_be_a_directory_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="run name"):
        make_run(tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []


def test_a_runs_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ArtefactError, match="--runs-dir"):
        make_run(tmp_path / "runs")


def test_the_latest_run_is_the_one_completed_last_whatever_its_name(tmp_path):
    now = datetime.now(UTC)
    write_run(tmp_path, "z", created=now - timedelta(hours=2))
    write_run(tmp_path, "a", created=now)
    write_run(tmp_path, "m", created=now - timedelta(hours=1))
    assert latest_run(tmp_path) == tmp_path / "a"


def test_the_latest_run_may_have_to_contain_a_file(tmp_path):
    now = datetime.now(UTC)
    write_run(tmp_path, "old", created=now - timedelta(hours=1), files=("plan.json",))
    write_run(tmp_path, "new", created=now)
    assert latest_run(tmp_path) == tmp_path / "new"
    assert latest_run(tmp_path, containing="plan.json") == tmp_path / "old"


def test_damaged_hidden_and_foreign_entries_do_not_count(tmp_path):
    now = datetime.now(UTC)
    write_run(tmp_path, "good", created=now - timedelta(hours=1))
    write_run(tmp_path, ".hidden", created=now)
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "run.json").write_text((tmp_path / "good" / "run.json").read_text()[:40])
    (tmp_path / "file").write_text("")
    newer = json.loads((tmp_path / "good" / "run.json").read_text()) | {"format_version": 2}
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "run.json").write_text(json.dumps(newer))
    assert latest_run(tmp_path) == tmp_path / "good"


@pytest.mark.parametrize("place", [".", "not_there"])
def test_without_a_run_the_message_says_how_to_make_one(tmp_path, place):
    with pytest.raises(ArtefactError, match="edgecompress compress"):
        latest_run(tmp_path / place)


def test_a_run_is_found_by_name_by_path_and_by_default(tmp_path):
    first = make_run(tmp_path, name="first")
    time.sleep(0.001)
    second = make_run(tmp_path, name="second")
    assert resolve_run("first", tmp_path) == first
    assert resolve_run(str(first), tmp_path / "elsewhere") == first
    assert resolve_run(None, tmp_path) == second


def test_an_unknown_run_lists_the_known_ones(tmp_path):
    make_run(tmp_path, name="first")
    make_run(tmp_path, name="second")
    with pytest.raises(ArtefactError, match="first, second"):
        resolve_run("third", tmp_path)


def test_a_damaged_run_names_its_file(tmp_path):
    path = make_run(tmp_path, name="mine")
    (path / "run.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"run\.json"):
        read_run(path)
