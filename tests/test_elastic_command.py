"""The command `export --sizes`: milliseconds by a shipped table, refusals in one line, what is shown."""

import json
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from made_elastic import NAME, entry, save_divided
from tiny_zoo import in_zoo

import edgecompress
from edgecompress.core.elastic_results import ElasticResult
from edgecompress.nets.artefact import read_plan
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.latency_costs import read_clock

RESNET = "zoo:fashion_resnet"
FEW = ("--norm-images", 16, "--report-images", 10, "--images", 4, "--onnx")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    place = tmp_path_factory.mktemp("command")
    data = save_divided(place / "images.npz", train=120, test=20)
    with in_zoo(entry(data)), pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield place


@pytest.fixture(scope="module")
def trained(home):
    options = {"method": "decomposable", "epochs": 1, "batch_images": 32, "name": "elastic"}
    return edgecompress.train_model(f"zoo:{NAME}", least_rank=2, **options)


def test_milliseconds_come_from_a_table_and_need_no_device(home):
    done = run("export", RESNET, "--sizes", "1.8ms", "--latency-table", "pixel4", *FEW, "--json")
    assert done.exit_code == 0, done.stderr
    result = ElasticResult.model_validate_json(done.stdout)
    (timed,) = result.sizes
    assert timed.found.predicted_ms <= 1.8 < result.full.predicted_ms
    assert (result.device, result.provenance) == ("emulated-a76", "emulated")
    clock = read_clock("pixel4", load_model(RESNET), ())
    costs, plan = clock.costs(), read_plan(Path(result.directory) / "1.8ms")
    whole = {layer.name: layer for layer in clock.layers}
    saved = sum(costs.layer(whole[one.layers[0]]) - costs.candidate(one) for one in plan.choices)
    assert saved > 0 and timed.offered.predicted_ms == pytest.approx(clock.dense_ms - saved)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--sizes", "half"), ("--sizes 'half'", "12ms")),
        (("--sizes", "1.6ms"), ("pass --latency-table",)),
        (("--sizes", "0.5", "--latency-table", "pixel5"), ("'pixel5'", "pixel4.json")),
        (("--sizes", "0.5", "--mode", "sideways"), ("--mode 'sideways'", "channel or spatial")),
        (("--sizes", "0.5", "--rank-selection", "lucky"), ("'lucky'", "global-values")),
        (("--sizes", "0.5", "--layers", "nose*"), ("'nose*'", "stem")),
        (("--sizes", "0.5", "--dynamic-batch", "--tflite"), ("--dynamic-batch", "--onnx")),
        (("--sizes", "0.5", "--converter", "lucky"), ("'lucky'",)),
        (("--latency-table", "pixel4"), ("--latency-table pixel4", "pass --sizes too")),
        (("--rank-selection", "exact"), ("--rank-selection exact", "pass --sizes too")),
        (("--mode", "channel"), ("--mode channel", "pass --sizes too")),
        (("--layers", "all"), ("--layers all", "pass --sizes too")),
        (("--norm-images", 9), ("--norm-images 9", "pass --sizes too")),
        (("--report-images", 0), ("--report-images 0", "pass --sizes too")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_written(trained, options, parts):
    there = set(Path().rglob("*"))
    check_one_line_error(run("export", "elastic", *options), *parts)
    assert set(Path().rglob("*")) == there


def test_a_table_of_other_networks_is_refused(trained):
    done = run("export", "elastic", "--sizes", "0.8", "--latency-table", "pixel4", "--onnx")
    check_one_line_error(done, f"zoo:{NAME}")


def test_the_tables_name_every_size_its_figures_and_what_to_do_next(trained):
    done = run("export", "elastic", "--sizes", "1,0.8", "--report-images", 5, "--images", 4, "--onnx")
    assert done.exit_code == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert f"zoo:{NAME} in 2 sizes by global-values, channel mode; trained by decomposable" in shown
    for part in ("whole", "1.00", "0.80", "batch norms recomputed in sequence", "108 training images"):
        assert part in shown
    assert "edgecompress bench runs/elastic/sizes/1.00/exports/compressed.onnx" in done.stdout.replace(
        "\n", ""
    )
    told = json.loads(Path("runs/elastic/sizes/elastic.json").read_text())
    assert [one["name"] for one in told["sizes"]] == ["1.00", "0.80"]
