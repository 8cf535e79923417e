"""`edgecompress search` on a small model: goals, the loop, never slower, what users get wrong."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_calls import check_one_line_error, run
from made_tables import SIZE, SOURCE, ms_of, write_home, write_table

import edgecompress
from edgecompress.core.latency_table import make_table
from edgecompress.core.measurement import Comparison, Interval
from edgecompress.core.runs import read_run
from edgecompress.core.search_results import Compared, DeviceTime, SearchResult
from edgecompress.core.store import write_record
from edgecompress.core.types import Block
from edgecompress.errors import DeviceError, ExportError
from edgecompress.latency.lookup import make_lookup
from edgecompress.nets.modules import find_layers
from edgecompress.nets.sources import load_model
from edgecompress.pipeline import search_drop, search_loop, strategies
from edgecompress.pipeline.latency_costs import clock_warnings, read_clock
from edgecompress.pipeline.latency_files import read_table, table_heading
from edgecompress.pipeline.search import search
from edgecompress.pipeline.search_loop import CLOSE
from edgecompress.pipeline.strategies import searches

QUICK = ("--search", "exact", "--rounds", "0")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
    return folder


@pytest.fixture(autouse=True)
def folder(home, tmp_path, monkeypatch):
    """A folder of its own with the model, its images and its table."""
    for file in home.iterdir():
        if file.suffix in (".npz", ".json"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "small.py").symlink_to(home / "small.py")  # resolved: the table knows it by that path
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*args, code=0):
    result = run("search", *COMMON, *args, "--json")
    assert result.exit_code == code, result.stderr
    return SearchResult.model_validate_json(result.stdout)


COMMON = ("-m", SOURCE, "--input-size", "10x10", "--data", "images.npz", "--latency-table", "t.json")
OPTIONS = {"latency_table": "t.json", "data": "images.npz", "input_size": SIZE}


def total_ms(result, table="t.json"):
    """What the table says of a plan, added up here."""
    made = read_table(table)
    (calibration,) = made.calibrations
    loaded = load_model(SOURCE, input_size=SIZE)
    layers, _ = find_layers(loaded.module, calibration.layers, loaded.ref.input_shape)
    blocks = {one.layers[0]: one.blocks[0] for one in result.plan.choices}
    lookup = make_lookup(made)
    each = (lookup.ms(blocks.get(o.name, Block(branches=((o.op,),))), o.in_size) for o in layers)
    return sum(each) + calibration.rest_ms


# What comes out


def test_a_search_writes_a_run_that_loads_and_costs_what_it_says(folder):
    result = call(*QUICK, "--target-speedup", "1.3", "--name", "a")
    assert Path(result.run) == Path("runs/a") and [p.name for p in Path("runs").iterdir()] == ["a"]
    assert {p.name for p in Path("runs/a").iterdir()} == {
        "plan.json",
        "weights.safetensors",
        "run.json",
        "search.json",
    }
    assert SearchResult.model_validate_json(Path("runs/a/search.json").read_text()) == result
    assert json.loads(Path("runs/a/plan.json").read_text()) == result.plan.model_dump(mode="json")
    assert result.cost == pytest.approx(total_ms(result)) and result.cost <= result.target
    assert result.target == pytest.approx(result.dense_cost / 1.3)
    network = edgecompress.load("runs/a")
    assert network(torch.zeros(2, 3, *SIZE)).shape == (2, 4)
    assert sum(p.numel() for p in network.parameters()) == result.compressed.params
    assert result.latency.not_measured == "not asked for (--rounds 0)"
    assert result.latency.predicted_ms == result.cost
    after = sum(one.after_ms for one in result.latency.layers)
    assert after + read_table("t.json").calibrations[0].rest_ms == pytest.approx(result.cost)


def test_a_run_can_be_made_again_from_its_own_settings():
    first = call(*QUICK, "--name", "a")
    again = run("search", "--config", "runs/a", "--name", "b", "--json")
    assert again.exit_code == 0, again.stderr
    assert SearchResult.model_validate_json(again.stdout).plan == first.plan
    assert read_run(Path("runs/a")).options == read_run(Path("runs/b")).options
    for file in ("plan.json", "weights.safetensors"):
        assert (Path("runs/a") / file).read_bytes() == (Path("runs/b") / file).read_bytes()


def test_the_text_of_a_search_fits_80_columns():
    result = run("search", *COMMON, *QUICK, "--front")
    assert result.exit_code == 0 and "The front" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_device_that_is_not_the_tables_is_not_measured():
    result = call("--search", "uniform")
    assert result.met and result.latency.not_measured.startswith("local is not available")
    assert result.latency.measured_ms is None and result.latency.rounds == ()


# Goals


@pytest.mark.parametrize(
    ("goal", "limit"),
    [
        ((), lambda r: r.dense_cost / 1.5),
        (("--target-ms", "0.016"), lambda r: 0.016),
        (("--target-speedup", "1.4"), lambda r: r.dense_cost / 1.4),
        (("--budget", "ms=80%"), lambda r: 0.8 * r.dense_cost),
        (("--budget", "macs=60%"), lambda r: 0.6 * r.dense.macs),
        (("--budget", "params=60%"), lambda r: 0.6 * r.dense.params),
    ],
    ids=lambda one: "=".join(one) or "usual" if isinstance(one, tuple) else "",
)
def test_goals_are_met_and_used(goal, limit):
    result = call(*QUICK, *goal)
    assert result.met and result.reason is None
    assert result.target == pytest.approx(limit(result))
    assert 0.8 * result.target < result.cost <= result.target
    if result.metric != "ms":
        assert result.latency is None
        assert result.cost == getattr(result.compressed, result.metric)


@pytest.mark.parametrize("data", [("images.npz",), ("unlabelled.npz",)])
def test_no_more_is_lost_than_is_allowed(data, monkeypatch):
    monkeypatch.setattr(search_drop, "STEPS", 4)
    little, much = (call(*QUICK, "--data", *data, "--max-drop", drop) for drop in ("4", "60"))
    assert (little.max_drop, little.met) == (4.0, True)
    assert much.cost < little.cost < little.dense_cost
    (lost,) = (text for step, text in little.steps if step == "lost by exact")
    assert float(lost.split()[0]) <= 4


def test_a_plan_that_loses_too_much_gives_way_to_the_one_that_was_tried(monkeypatch):
    def reckless(prepared, problem, material, seed, progress):
        least = {o.layer.name: min(o.candidates, key=problem.cost) for o in problem.options}
        return strategies.Chosen(least)

    exact = searches()["exact"]
    monkeypatch.setattr(strategies, "STRATEGIES", (strategies.replace(exact, choose=reckless),))
    monkeypatch.setattr(search_drop, "STEPS", 4)
    result = search(SOURCE, **OPTIONS, search="exact", rounds=0, max_drop=12.0)
    assert any("too much: dropped" in text for _, text in result.steps)
    assert result.cost == pytest.approx(result.target, rel=0.2)


def _moved(folder, *sources):
    """Makes the table one of these model files, which are not there any more."""
    made = read_table("t.json")
    (own,) = made.calibrations
    elsewhere = tuple(own.model_copy(update={"network": one}) for one in sources)
    heading = table_heading(made)
    changed = make_table(
        heading, soc=made.soc, created=made.created, entries=made.entries, calibrations=elsewhere
    )
    write_record(folder / "moved.json", changed)


def test_a_table_is_of_a_model_file_wherever_that_lies(folder):
    _moved(folder, "/gone/small.py:Small", "/gone/other.py:Small")
    assert call(*QUICK, "--latency-table", "moved.json").met


@pytest.mark.parametrize("sources", [("/a/small.py:Small", "/b/small.py:Small"), ("/a/small.py:Smaller",)])
def test_a_table_of_two_such_files_or_none_is_refused(folder, sources):
    _moved(folder, *sources)
    result = run("search", *COMMON, *QUICK, "--latency-table", "moved.json")
    check_one_line_error(result, "is not calibrated for", sources[0])


def test_a_table_made_on_a_busy_device_is_called_that(folder):
    loaded = load_model(SOURCE, input_size=SIZE)
    clock = read_clock("t.json", loaded, ())
    assert clock_warnings(clock) == clock_warnings(None) == ()
    (timing,) = clock.calibration.timings
    slow = timing.model_copy(update={"measured_ms": 2 * timing.measured_ms})
    busy = clock.calibration.model_copy(update={"timings": (slow,)})
    ((subject, said),) = clock_warnings(replace(clock, calibration=busy))
    assert subject == "latency table" and "off by 50 %" in said and "idle" in said


def test_the_front_is_from_the_fastest_to_the_dense_model():
    result = call(*QUICK, "--front")
    assert result.front_shown and len(result.front) >= 10
    costs = [one.cost for one in result.front]
    assert costs == sorted(costs) and costs[-1] == pytest.approx(result.dense_cost)
    losses = [one.predicted_loss for one in result.front]
    assert losses == sorted(losses, reverse=True) and losses[-1] == 0
    assert result.front[-1].agreement == 1 and result.front[-1].choices == ()


# Every search


@pytest.mark.parametrize("name", sorted(searches()))
def test_every_search_meets_the_target_with_blocks_that_pay(name, monkeypatch):
    few = functools.partial(strategies.GradientSettings, steps=15)
    monkeypatch.setattr(strategies, "GradientSettings", few)
    monkeypatch.setattr(strategies, "REFINEMENT", few(temperature_start=0.5, epochs=50))
    monkeypatch.setattr(strategies, "PAPER_STEPS", 15)
    if name == "vbmf":  # has ranks for one method only, and the table knows the others
        result = search(SOURCE, **OPTIONS, search=name, budget="macs=80%", methods=("tucker2",))
    else:
        result = search(SOURCE, **OPTIONS, search=name, target_speedup=1.3, rounds=0)
        for one in result.latency.layers:
            assert one.after_ms <= one.before_ms
    assert result.met and result.cost <= result.target * (1 + 1e-9) and result.plan.choices
    assert result.search == name and [p.name for p in Path("runs").iterdir()] == [Path(result.run).name]


# Never slower


def test_blocks_that_save_macs_and_cost_time_are_left_out_and_listed(folder):
    options = {"search": "exact", "rounds": 0, "families": ("S2", "S4"), "methods": ("lowrank",)}
    before = search(SOURCE, **OPTIONS, **options, name="before")
    assert not [one for one in before.slower if one.family == "S2" and one.cost_share > 2]
    write_table(folder / "slow.json", slower={"S2": 10.0})
    after = search(SOURCE, **OPTIONS | {"latency_table": "slow.json"}, **options, name="after")
    assert "S2" not in {one.family for one in after.plan.choices}
    assert {family for point in after.front for _, family, _ in point.choices} <= {
        one.family for one in after.plan.choices
    } | {f"S4({g})" for g in (1, 2, 4, 8, 3, 6, 12, 16)}
    slow = [one for one in after.slower if one.family == "S2"]
    assert {one.layer for one in slow} == {"body.0", "body.2", "body.4"}
    assert all(one.macs_share < 1 < one.cost_share for one in slow)
    assert after.cost == pytest.approx(total_ms(after, "slow.json"))


def test_where_nothing_pays_nothing_is_searched(folder):
    write_table(folder / "slow.json", slower={"S2": 10.0})
    options = ("--families", "S2", "--methods", "lowrank", "--latency-table", "slow.json")
    for goal in (("--max-drop", "5"), ()):
        check_one_line_error(run("search", *COMMON, *QUICK, *options, *goal), "no block costs less ms")
    assert not Path("runs").exists()


# The loop

COMPARISON = Comparison(
    baseline="dense.tflite",
    other="compressed.tflite",
    speedup=1.3,
    interval=Interval(low=1.2, high=1.4, confidence=0.99),
    p_value=0.001,
    rounds=9,
    paired=True,
    verdict="faster",
    statement="1.3x faster",
)


class Device:
    """A device that takes what the table says, times a factor, and exports the plan measured last."""

    def __init__(self, clock, folder, factor, *, fails, doubts):
        self.clock, self.factor, self.fails, self.doubts = clock, factor, fails, doubts
        self.dense = folder / "dense.tflite"
        self.dense.write_text("1")
        self.plans = []

    def _may_fail(self, what):
        if what in self.fails:
            raise self.fails[what]

    def plan_time(self, changes):
        self._may_fail("plan_time")
        changed = {layer.name: block for layer, block in changes}
        blocks = ((changed.get(o.name, Block(branches=((o.op,),))), o.in_size) for o in self.clock.layers)
        table_ms = sum(ms_of(block, size) for block, size in blocks)
        self.plans.append(table_ms)
        ms = self.factor * (table_ms + self.clock.calibration.rest_ms)
        return DeviceTime(ms=ms, doubts=self.doubts.get("plan", ()))

    def file_time(self, file):
        self._may_fail("file_time")
        dense = file == self.dense
        ms = self.factor * self.clock.dense_ms if dense else float(file.read_text())
        return DeviceTime(ms=ms, doubts=self.doubts.get("dense" if dense else "final", ()))

    def write(self, network, file):
        self._may_fail("write")
        file.write_text(str(self.factor * (self.plans[-1] + self.clock.calibration.rest_ms)))

    def compare(self, file, *, preset, progress):
        self._may_fail("compare")
        return Compared(comparison=COMPARISON, doubts=self.doubts.get("compared", ()))


@pytest.fixture
def device(monkeypatch):
    """Puts a device in place of the table's; returns what made it."""
    made = []

    def put(factor, fails=None, doubts=None):
        def open_target(clock, ref, module, options, *, folder, seed):
            made.append(Device(clock, folder, factor, fails=fails or {}, doubts=doubts or {}))
            return made[-1]

        monkeypatch.setattr(search_loop, "open_target", open_target)
        return made

    return put


LOOP = {**OPTIONS, "search": "exact", "target_speedup": 1.3}


def test_a_device_that_is_slower_than_its_table_is_followed(device):
    device(1.2)
    result = search(SOURCE, **LOOP)
    rounds = result.latency.rounds
    assert result.met and result.reason is None
    assert [one.file for one in rounds][-1] == "exported" and len(rounds) >= 3
    first, second = rounds[:2]
    assert first.measured_ms / first.predicted_ms == pytest.approx(1.2)
    assert first.met is False and first.limit_ms == pytest.approx(result.target)
    assert second.limit_ms == pytest.approx(result.target / 1.2)
    assert second.predicted_ms == pytest.approx(second.measured_ms)  # by the corrected clock, as it was then
    assert result.latency.measured_ms <= (1 + CLOSE) * result.target
    assert result.latency.predicted_ms == pytest.approx(total_ms(result))
    assert result.latency.comparison == COMPARISON and result.latency.not_measured is None


def test_what_the_protocol_does_not_believe_is_in_the_result(device):
    device(1.2, doubts={"plan": ("busy",), "dense": ("hot",), "compared": ("hot", "few")})
    latency = search(SOURCE, **LOOP).latency
    assert latency.doubts == ("hot", "few")
    assert [one.doubts for one in latency.rounds] == [("busy",)] * (len(latency.rounds) - 1) + [()]


def test_a_device_that_agrees_needs_one_round(device):
    device(1.0)
    result = search(SOURCE, **LOOP)
    assert [one.file for one in result.latency.rounds] == ["spliced", "exported"] and result.met


def test_time_that_is_left_over_is_given_back(device):
    device(0.8)
    result = search(SOURCE, **LOOP)
    rounds = result.latency.rounds
    assert result.met and rounds[-1].measured_ms > rounds[0].measured_ms
    assert rounds[-1].measured_ms <= (1 + CLOSE) * result.target


def test_a_target_out_of_the_devices_reach_keeps_the_nearest_plan_and_the_reason(device):
    device(10.0)
    result = run("search", *COMMON, "--search", "exact", "--target-speedup", "1.3", "--name", "far", "--json")
    assert result.exit_code == 1 and "target not met" in result.stderr and result.stderr.count("\n") == 1
    found = SearchResult.model_validate_json(result.stdout)
    assert not found.met and found.reason in result.stderr and "nearest reachable" in found.reason
    least = found.front[0].cost
    assert found.cost == pytest.approx(least)  # the fastest there is
    assert found.latency.measured_ms == pytest.approx(10 * least)
    assert SearchResult.model_validate_json(Path("runs/far/search.json").read_text()) == found
    assert [p.name for p in Path("runs").iterdir()] == ["far"]
    text = run("search", *COMMON, "--search", "exact", "--target-speedup", "1.3")
    assert text.exit_code == 1 and "too slow" in " ".join(text.stdout.split())


def test_accuracy_is_not_given_up_for_a_time_nobody_asked_for(device, monkeypatch):
    monkeypatch.setattr(search_drop, "STEPS", 4)
    device(1.5)
    result = search(SOURCE, **OPTIONS, search="exact", max_drop=12.0)
    assert result.met and [one.file for one in result.latency.rounds] == ["spliced", "exported"]


def test_a_device_that_fails_on_the_way_can_be_gone_on_with(device):
    device(1.2, {"plan_time": DeviceError("phone: gone")})
    result = run("search", *COMMON, "--search", "exact", "--name", "p")
    check_one_line_error(result, "phone: gone; to continue: edgecompress resume p")
    device(1.2)
    again = run("resume", "--json")
    assert again.exit_code == 0, again.stderr
    assert SearchResult.model_validate_json(again.stdout).met
    assert [p.name for p in Path("runs").iterdir()] == ["p"]


@pytest.mark.parametrize("what", ["write", "file_time", "compare"])
@pytest.mark.parametrize("error", [DeviceError("gone"), ExportError("not so")])
def test_what_fails_at_the_very_end_does_not_cost_the_network(device, what, error):
    device(1.0, {what: error})
    result = search(SOURCE, **LOOP, name="n")
    assert result.met and str(error) in result.latency.not_measured
    assert edgecompress.load("runs/n")(torch.zeros(1, 3, *SIZE)).shape == (1, 4)
    assert (result.latency.measured_ms is None) == (what != "compare")


def test_a_plan_that_cannot_be_spliced_is_trusted_to_the_table(device):
    device(1.0, {"plan_time": ExportError("no such operator")})
    assert search(SOURCE, **LOOP, name="n").latency.not_measured == "no such operator"
    with pytest.raises(ExportError, match="no such operator"):
        search(SOURCE, **LOOP, name="m", rounds=2)
    assert [p.name for p in Path("runs").iterdir()] == ["n"]


def test_gradient_searches_of_several_rounds_do_not_mix_their_checkpoints(device, monkeypatch):
    few = functools.partial(strategies.GradientSettings, steps=5)
    monkeypatch.setattr(strategies, "GradientSettings", few)
    device(1.2)
    assert len(search(SOURCE, **LOOP | {"search": "svd-nas"}).latency.rounds) >= 3


# What users get wrong


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--target-ms", "1", "--max-drop", "1"), ("--target-ms and --max-drop", "one goal")),
        (("--target-ms", "5"), ("dense model takes", "ask for less")),
        (("--target-speedup", "1"), ("--target-speedup 1",)),
        (("--target-speedup", "nan"), ("--target-speedup nan",)),
        (("--target-speedup", "inf"), ("--target-speedup inf",)),
        (("--target-ms", "nan"), ("--target-ms nan",)),
        (("--target-ms", "0.0001"), ("cannot be met", "largest speed-up")),
        (("--target-speedup", "100"), ("cannot be met",)),
        (("--max-drop", "0"), ("--max-drop 0", "between 0 and 100")),
        (("--max-drop", "100"), ("--max-drop 100",)),
        (("--max-drop", "-3"), ("--max-drop -3",)),
        (("--budget", "half"), ("'half'",)),
        (("--search", "nonsense"), ("'nonsense'", "hybrid", "svd-nas")),
        (("--methods", "nonsense"), ("'nonsense'", "lowrank")),
        (("--factors", "nonsense"), ("'nonsense'",)),
        (("--batch-norm", "nonsense"), ("'nonsense'",)),
        (("--preset", "nonsense"), ("'nonsense'", "quick")),
        (("--front", "--search", "uniform"), ("--front", "uniform", "exact")),
        (("--latency-table", "nothing.json"), ("nothing.json", "latency build")),
        (("--latency-table", "images.npz"), ("images.npz",)),
        (
            ("--latency-table", "pixel4.json"),
            ("edgecompress latency build --device", "small.py:Small --input-size 10x10 -o"),
        ),
        (("--input-size", "12x12"), ("3x10x10", "3x12x12", "--input-size 12x12")),
        (("--data", "other.npz"), ("other.npz",)),
        (("--data", "nothing.npz"), ("nothing.npz",)),
        (("--layers", "all"), ("stem.0", "--layers")),
        (("--methods", "tucker2"), ("has no entry", "latency build")),
        (("--name", "a/b"), ("'a/b'",)),
        (("--runs-dir", "small.py"), ("small.py",)),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) and one[0].startswith("--") else "",
)
def test_wrong_input_is_one_line_and_leaves_nothing(args, parts):
    check_one_line_error(run("search", *COMMON, *args), *parts)


def test_without_images_it_names_no_flags_that_would_not_help():
    result = run("search", "-m", "zoo:resnet18", "--factors", "plain", "--no-refit", "--batch-norm", "keep")
    check_one_line_error(result, "no images to calibrate with; pass --data")
    assert "--factors" not in result.stderr
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_drop_that_cannot_be_kept_says_so(monkeypatch):
    monkeypatch.setattr(search_drop, "_drop", lambda *args: 50.0)
    check_one_line_error(run("search", *COMMON, *QUICK, "--max-drop", "1"), "--max-drop 1", "lose more")
    assert not list(Path("runs").iterdir())


def test_a_taken_name_is_refused_before_any_work():
    call(*QUICK, "--name", "a")
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    check_one_line_error(run("search", *COMMON, *QUICK, "--name", "a"), "already exists", "--overwrite")
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before
