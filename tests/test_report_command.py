"""`edgecompress report`, from runs on disk to files."""

import json
import tomllib
import webbrowser
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from made_benches import bench_of, measurement, result_of
from made_reports import three_runs, written_run
from test_report import COMPRESS, EXPORT
from test_search_report import FOUND
from test_topology import SMALL, write_images
from tiny_zoo import entry, in_zoo

from edgecompress.core.measurement import Validity
from edgecompress.core.store import write_record
from edgecompress.core.toml_text import toml_table
from edgecompress.nets.families import family_named, to_matrices
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.report import report
from edgecompress.pipeline.report_networks import MOST_VALUES
from edgecompress.pipeline.run_list import list_runs
from edgecompress.pipeline.topology import topology
from edgecompress.report.html import report_page


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    three_runs(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A real run of `compress`, of a network made small and on few images."""
    with in_zoo(entry("tiny", tmp_path_factory.mktemp("zoo"))):
        yield _compressed(tmp_path_factory)


def _compressed(tmp_path_factory):
    result = compress(
        "zoo:tiny",
        calibration_images=32,
        selection_images=32,
        report_images=64,
        local_search=False,
        batch_norm="keep",
        runs_dir=tmp_path_factory.mktemp("runs"),
        name="real",
    )
    return Path(result.run)


def test_the_latest_run_is_reported_into_its_own_directory(runs_dir):
    result = run("report", "--no-networks")
    assert result.exit_code == 0, result.stderr
    assert "found" in result.stdout and "written to runs/found/report.html" in result.stdout
    assert (runs_dir / "found" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_several_runs_become_one_page_here_with_a_picture(runs_dir):
    result = run("report", "shrunk", "runs/narrowed", "--no-networks", "--png", "--json")
    written = json.loads(result.stdout)
    assert [one["name"] for one in written["runs"]] == ["shrunk", "narrowed"]
    assert written["written"] == ["report.html", "report.png"]
    assert Path("report.png").read_bytes().startswith(b"\x89PNG")
    assert "2 runs side by side" in Path("report.html").read_text(encoding="utf-8")
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_markdown_goes_to_stdout_alone(runs_dir):
    result = run("report", "found", "--no-networks", "--markdown")
    assert result.stdout.startswith("## torchvision:mobilenet_v2: found\n")
    assert "| round |" in result.stdout and "written to" not in result.stdout


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["nothing"], ["'nothing'", "found", "narrowed", "shrunk"]),
        (["found", "runs/found"], ["named twice"]),
        (["--markdown", "--json"], ["--markdown", "--json"]),
        (["-o", "page.txt"], ["page.txt", ".html"]),
        (["-o", "."], ["is a directory"]),
    ],
)
def test_what_cannot_be_is_one_line(runs_dir, args, parts):
    check_one_line_error(run("report", "--no-networks", *args), *parts)
    assert not list(Path().glob("**/*.html"))


def test_without_runs_it_says_how_to_make_one(tmp_path):
    check_one_line_error(run("report", "--runs-dir", tmp_path), "edgecompress compress")


def test_a_damaged_result_is_one_line(runs_dir):
    (runs_dir / "found" / "search.json").write_text('{"schema_version": 1}')
    check_one_line_error(run("report", "found", "--no-networks"), "search.json")
    (runs_dir / "found" / "search.json").unlink()
    check_one_line_error(run("report", "found", "--no-networks"), "has no result")


def test_a_network_that_is_gone_costs_its_sections_only(runs_dir):
    write_record(runs_dir / "shrunk" / "plan.json", COMPRESS.plan)
    plan = json.loads((runs_dir / "shrunk" / "plan.json").read_text())
    plan["model"]["source"] = "gone.py:build"
    plan["choices"] = [
        {
            "method": "lowrank",
            "family": "S2",
            "ranks": [1],
            "layers": ["a"],
            "blocks": [{"branches": [[{"kind": "conv2d", "inputs": 1, "outputs": 1}]]}],
            "params": 1,
            "macs": 1,
        }
    ]
    (runs_dir / "shrunk" / "plan.json").write_text(json.dumps(plan))
    (found,) = report(["shrunk"]).runs
    assert found.spectra == () and len(found.layers) == 1
    assert "could not be read from the network" in found.notes[-1] and "gone.py" in found.notes[-1]


def test_the_page_is_opened_where_there_is_a_browser(runs_dir, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or len(opened) == 1)
    assert run("report", "found", "--no-networks", "--open").stderr == ""
    assert opened == [(runs_dir / "found" / "report.html").resolve().as_uri()]
    assert "no browser" in run("report", "found", "--no-networks", "--open").stderr


def test_measurements_and_files_of_a_run_are_in_its_report(runs_dir):
    home = runs_dir / "found"
    (home / "exports").mkdir()
    write_record(home / "exports" / "export.json", EXPORT)
    bench = result_of(bench_of(measurement("dense.tflite", 2.0), measurement("compressed.tflite", 1.25)))
    write_record(home / "bench-local.json", bench)
    (found,) = report(["found"], networks=False).runs
    emulated, predicted, measured = found.times
    assert [one.how_known for one in found.times] == ["emulated", "predicted", "measured"]
    assert emulated.goal and not predicted.goal and measured.speedup == pytest.approx(1.6, rel=0.01)
    assert measured.before_interval.low <= measured.before_ms <= measured.before_interval.high
    assert len(found.files) == len(EXPORT.files)
    assert found.commands[0] == "edgecompress search --config runs/found"
    assert found.commands[1].startswith("edgecompress export runs/found --")
    assert found.commands[2] == "edgecompress bench runs/found --device local --preset quick --seed 0"


def test_what_bench_does_not_believe_is_doubted_in_the_report(runs_dir):
    doubted = Validity(valid=False, reasons=("other programs use 100 % of the cores",))
    files = [measurement(name, 2.0, validity=doubted) for name in ("dense.tflite", "compressed.tflite")]
    write_record(runs_dir / "found" / "bench-local.json", result_of(bench_of(*files)))
    (found,) = report(["found"], networks=False).runs
    assert [one.doubts for one in found.times] == [(), (), doubted.reasons]


def test_what_a_search_does_not_believe_of_its_own_measurement_is_doubted_in_the_report(runs_dir):
    reason = "bursts scatter by 14 % (at most 10 %)"
    latency = FOUND.latency.model_copy(update={"doubts": (reason,)})
    write_record(runs_dir / "found" / "search.json", FOUND.model_copy(update={"latency": latency}))
    (found,) = report(["found"], networks=False).runs
    assert [(one.how_known, one.doubts) for one in found.times] == [
        ("emulated", (reason,)),
        ("predicted", ()),
    ]
    (line,) = [one for one in list_runs().runs if one.name == "found"]
    assert line.doubts == (reason,) and line.after_ms == FOUND.latency.measured_ms


def test_a_search_from_before_doubts_were_written_is_read(runs_dir):
    file = runs_dir / "found" / "search.json"
    old = json.loads(file.read_text())
    del old["latency"]["doubts"]
    for one in old["latency"]["rounds"]:
        del one["doubts"]
    file.write_text(json.dumps(old))
    (found,) = report(["found"], networks=False).runs
    assert all(not one.doubts for one in (*found.times, *found.rounds))


def test_the_headline_is_of_the_tflite_file_where_there_are_two(runs_dir):
    files = [measurement("dense.onnx", 4.0), measurement("compressed.onnx", 2.0)]
    files += [measurement("compressed.tflite", 1.0)]
    write_record(runs_dir / "shrunk" / "bench-local.json", result_of(bench_of(*files)))
    (found,) = report(["shrunk"], networks=False).runs
    assert [one.file for one in found.times] == ["compressed.tflite", "compressed.onnx"]


def test_layers_and_the_rest_add_up_to_what_the_table_says(runs_dir):
    (found,) = report(["found"], networks=False).runs
    timed = [one for one in found.layers if one.before_ms is not None]
    assert sum(one.before_ms for one in timed) + found.rest_ms == pytest.approx(found.dense_cost)
    assert sum(one.after_ms for one in timed) + found.rest_after_ms == pytest.approx(found.cost)


@pytest.mark.parametrize(
    "listed",
    [
        [["bn", 1.5, 0.2], ["kd", 2.0, 30]],
        [
            {"level": "bn", "gain": 1.5, "minutes": 0.2, "images": 7},
            {"level": "kd", "gain": 2, "minutes": 30},
        ],
    ],
)
def test_another_command_may_list_what_won_accuracy_back(tmp_path, listed):
    path = written_run(tmp_path, "polish", COMPRESS, file="result.json", name="won")
    raw = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(raw | {"recovery": [*listed, 7, [None] * 3]}))
    (found,) = report(["won"], runs_dir=tmp_path, networks=False).runs
    assert [(one.level, one.gain, one.minutes) for one in found.recovery] == [("bn", 1.5, 0.2), ("kd", 2, 30)]
    assert found.compressed == COMPRESS.compressed and found.command == "polish"


def test_spectra_are_those_of_the_dense_weights(real):
    (found,) = report([str(real)]).runs
    changed = [one for one in found.layers if one.family != "dense"]
    assert [one.layer for one in found.spectra] == [one.name for one in changed]
    dense = load_model("zoo:tiny").module
    for one, layer in zip(found.spectra, changed, strict=True):
        kernel = dense.get_submodule(one.layer).weight.detach().double()
        matrices = to_matrices(family_named(one.family), kernel)
        squares = matrices.svd().S.square().mean(0)
        assert (one.rank,) == layer.ranks and one.max_rank == min(matrices.shape[1:])
        assert one.energy_kept == pytest.approx(float(squares[: one.rank].sum() / squares.sum()), abs=1e-6)
        assert len(one.values) == min(one.max_rank, MOST_VALUES) and one.values[0] == 1
        assert list(one.values) == sorted(one.values, reverse=True)


def test_the_settings_on_the_page_do_the_run_again(real, tmp_path):
    (found,) = report([str(real)], networks=False).runs
    read = tomllib.loads(toml_table(found.command, found.options))["compress"]
    assert read == {key: value for key, value in found.options.items() if value not in (None, [])}
    (tmp_path / "run.toml").write_text(toml_table(found.command, found.options))
    again = run("compress", "--config", tmp_path / "run.toml", "--runs-dir", tmp_path, "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["compressed"] == found.compressed.model_dump(mode="json")


def test_cells_that_were_found_are_reported_without_a_before(tmp_path):
    path = topology(**SMALL, data=write_images(tmp_path), runs_dir=tmp_path, name="cells").run
    (found,) = report([path]).runs
    assert found.dense is None and found.spectra == () and found.compressed.macs > 0
    edges = [edge for cell in found.cells for edge in cell.probabilities]
    assert edges and all(len(edge) == len(found.operations) for edge in edges)
    page = report_page(report([path]))
    assert "The cells that were found" in page and found.cells[0].nodes[0] in page
    shown = run("report", path)
    assert shown.exit_code == 0, shown.stderr
    assert (Path(path) / "report.html").is_file()
