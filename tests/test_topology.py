"""Searching cells: which operations are chosen, what milliseconds do to them, and what the run holds."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cli_calls import check_one_line_error, run
from hypothesis import given
from hypothesis import strategies as st
from made_cells import IMAGE, one_hot, random_genotype
from test_latency_keys import HEADING

from edgecompress.core.costs import block_macs
from edgecompress.core.genotype import OPERATIONS, Genotype, edges_of
from edgecompress.core.latency_table import TableEntry, make_table
from edgecompress.core.store import read_record, write_record
from edgecompress.core.topology_results import TopologyResult
from edgecompress.core.types import Block
from edgecompress.errors import ConfigError, DataError
from edgecompress.latency.keys import block_key
from edgecompress.nets.artefact import load
from edgecompress.nets.cell_edges import Stack
from edgecompress.nets.cell_networks import derived_network, search_network
from edgecompress.nets.profile import profile, total_macs
from edgecompress.pipeline import topology as pipeline
from edgecompress.pipeline import topology_latency
from edgecompress.pipeline.export import export
from edgecompress.pipeline.latency_files import read_table, table_heading
from edgecompress.pipeline.topology import topology
from edgecompress.search.cell_costs import network_parts, normalised, operation_costs, searched_parts
from edgecompress.search.cell_selection import select_cell
from edgecompress.search.descent import penalty_gradient
from edgecompress.search.image_pool import ImagePool
from edgecompress.search.rarts import softmax_penalty
from edgecompress.search.topology import PULL, Searched, TopologySettings, new_scores, search_topology
from edgecompress.train.images import step_indices

DARTS, NATS = OPERATIONS["darts"], OPERATIONS["nats"]


# Selection


def chances(space, best=()):
    """Returns equal probabilities, and 0.9 for pairs of edge and operation in `best`."""
    rows = torch.full((len(edges_of(space)), len(OPERATIONS[space])), 0.1)
    for number, name, *value in best:
        rows[number, OPERATIONS[space].index(name)] = value[0] if value else 0.9
    return rows


@given(seed=st.integers(0, 10**6))
def test_a_darts_cell_keeps_the_two_best_edges_of_each_node(seed):
    rows = torch.rand(14, 8, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    cell = select_cell("darts", DARTS, rows)
    best = {pair: float(row[1:].max()) for pair, row in zip(edges_of("darts"), rows, strict=True)}
    for node, edges in enumerate(cell.nodes):
        kept = {edge.state for edge in edges}
        assert len(edges) == len(kept) == 2
        left = [chance for (state, reader), chance in best.items() if reader == node and state not in kept]
        assert min(best[state, node] for state in kept) >= max(left, default=0.0)
        for edge in edges:
            row = rows[edges_of("darts").index((edge.state, node))]
            assert edge.operation == DARTS[1 + int(row[1:].argmax())]


def test_none_is_never_chosen_in_darts_and_may_be_in_nats():
    everywhere = [(number, "none") for number in range(14)]
    names = {edge.operation for _, edge in select_cell("darts", DARTS, chances("darts", everywhere)).edges()}
    assert names == {DARTS[1]}
    cell = select_cell("nats", NATS, chances("nats", everywhere[:6]))
    assert [edge.operation for _, edge in cell.edges()] == ["none"] * 6


def test_none_does_not_count_when_edges_are_ranked():
    cell = select_cell("darts", DARTS, chances("darts", [(2, "none"), (3, "sep3", 0.2), (4, "dil3", 0.3)]))
    assert [(edge.state, edge.operation) for edge in cell.nodes[1]] == [(1, "sep3"), (2, "dil3")]


def test_of_equals_the_first_edge_and_the_first_operation_stay():
    cell = select_cell("darts", DARTS, chances("darts"))
    assert [[edge.state for edge in edges] for edges in cell.nodes] == [[0, 1]] * 4
    assert {edge.operation for _, edge in cell.edges()} == {"max3"}
    tied = select_cell("darts", DARTS, chances("darts", [(0, "sep5"), (0, "dil3")]))
    assert tied.nodes[0][0].operation == "sep5"


def skips(cell):
    return [(node, edge.state) for node, edge in cell.edges() if edge.operation == "skip"]


def test_skips_beyond_the_cap_give_way_the_least_probable_first():
    best = [(0, "skip", 0.9), (1, "skip", 0.5), (4, "skip", 0.7), (1, "sep3", 0.3)]
    rows = chances("darts", best)
    assert skips(select_cell("darts", DARTS, rows)) == [(0, 0), (0, 1), (1, 2)]
    capped = select_cell("darts", DARTS, rows, max_skips=2)
    assert skips(capped) == [(0, 0), (1, 2)]
    assert capped.nodes[0][1].operation == "sep3"
    assert skips(select_cell("darts", DARTS, rows, max_skips=0)) == []
    assert skips(select_cell("darts", DARTS, rows, max_skips=3)) == skips(select_cell("darts", DARTS, rows))


def test_the_skip_ratio_counts_edges_of_all_cells():
    genotype = random_genotype("darts")
    nodes = [[{"state": e.state, "operation": "sep3"} for e in edges] for edges in genotype.normal.nodes]
    nodes[0][0]["operation"] = nodes[2][1]["operation"] = "skip"
    cell = {"nodes": nodes}
    content = json.loads(genotype.model_dump_json()) | {"normal": cell, "reduction": cell}
    assert Genotype.model_validate(content).skip_ratio == 4 / 16


# Costs


def macs(part):
    return float(block_macs(Block(branches=((part[0],),)), part[1]))


@pytest.mark.parametrize("space", ["darts", "nats"])
def test_costs_of_operations_and_the_rest_come_to_the_cost_of_the_network(space):
    genotype = random_genotype(space, 1, cells=6)
    stack = Stack(4, 6, 1, 5, affine=False)
    searched = searched_parts(space, OPERATIONS[space], stack, IMAGE)
    costs = operation_costs(space, OPERATIONS[space], 6, searched, macs)
    kept = {"darts": 2, "nats": None}[space]
    readers = [node for _, node in edges_of(space)]
    shares = torch.tensor([kept / readers.count(node) if kept else 1.0 for node in readers])
    picked = sum(
        float((rows * one / shares[:, None]).sum())
        for rows, one in zip(one_hot(genotype), costs, strict=True)
    )
    rest = sum(macs(part) for name, part in searched.items() if ".graph." not in name)
    parts = network_parts(derived_network(genotype).eval(), IMAGE)
    assert picked + rest == pytest.approx(sum(map(macs, parts.values())), rel=1e-6)


@pytest.mark.parametrize("space", ["darts", "nats"])
def test_every_convolution_is_seen_and_pools_are_not_free(space):
    network = derived_network(random_genotype(space, 2)).eval()
    parts = network_parts(network, IMAGE)
    pools = (torch.nn.MaxPool2d, torch.nn.AvgPool2d)
    seen = {name: isinstance(network.get_submodule(name), pools) for name in parts}
    assert any(seen.values())
    assert sum(macs(parts[name]) for name, pool in seen.items() if not pool) == total_macs(
        profile(network, IMAGE)
    )
    assert all(macs(parts[name]) > 0 for name in parts)


def test_skip_and_none_without_a_stride_cost_nothing():
    parts = searched_parts("darts", DARTS, Stack(4, 3, 1, 5, affine=False), IMAGE)
    normal, reduction = operation_costs("darts", DARTS, 3, parts, macs)
    free = [DARTS.index("none"), DARTS.index("skip")]
    assert not normal[:, free].any()
    assert normal[:, [place for place in range(8) if place not in free]].min() > 0
    strided = torch.tensor([state < 2 for state, _ in edges_of("darts")])
    assert ((reduction[:, free[1]] > 0) == strided).all() and not reduction[:, free[0]].any()


@given(seed=st.integers(0, 10**6))
def test_the_penalty_pulls_by_probability_times_cost_above_the_mean(seed):
    generator = torch.Generator().manual_seed(seed)
    alpha = (torch.randn(14, 8, generator=generator, dtype=torch.float64),)
    costs = normalised((torch.rand(14, 8, generator=generator, dtype=torch.float64),))
    (found,) = penalty_gradient(lambda a: softmax_penalty(a, costs), alpha, 1.0)
    sigma = alpha[0].softmax(-1)
    mean = (sigma * costs[0]).sum(-1, keepdim=True)
    torch.testing.assert_close(found, sigma * (costs[0] - mean))
    assert float(costs[0].amax(-1).sum()) == pytest.approx(1.0)


def test_costs_of_nothing_stay_nothing():
    assert not normalised((torch.zeros(6, 5),))[0].any()


# Searches


def pools(count=24, size=8):
    """Returns two halves of images that are told apart by which of three rows is bright."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2 * count) % 3
    images = 0.3 * torch.randn(2 * count, 1, size, size, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 2 * label : 2 * label + 2] += 1.5
    return ImagePool((images[:count],), labels[:count]), ImagePool((images[count:],), labels[count:])


TINY = Stack(2, 3, 1, 3, affine=False)


def tiny_search(costs=None, seed=0, **settings):
    chosen = TopologySettings(**({"steps": 12, "batch_images": 8} | settings))
    return search_topology("nats", NATS, TINY, pools(), chosen, costs=costs, seed=seed)


@pytest.mark.parametrize("method", ["rarts", "darts1"])
def test_a_search_learns_and_moves_the_scores(method):
    found = tiny_search(method=method, steps=40)
    assert sum(found.losses[-5:]) < 0.8 * sum(found.losses[:5])
    assert len(found.losses) == 40
    (start,) = new_scores("nats", 5, seed=0)
    assert found.alpha[0].shape == (6, 5)
    assert float((found.alpha[0] - start.detach()).abs().max()) > 0.1
    assert found.gamma is None


def test_searches_are_repeatable_and_seeds_and_methods_matter():
    first, again, other, darts = (
        tiny_search(steps=3, **more) for more in ({}, {}, {"seed": 1}, {"method": "darts1"})
    )
    assert torch.equal(first.alpha[0], again.alpha[0])
    assert not torch.equal(first.alpha[0], other.alpha[0])
    assert not torch.equal(first.alpha[0], darts.alpha[0])


@pytest.mark.parametrize("method", ["rarts", "darts1"])
def test_a_dearer_operation_becomes_less_probable(method):
    place = NATS.index("conv3")
    even = torch.full((6, 5), 0.1)
    dear = even.clone()
    dear[:, place] = 1.0
    cheap, costly = (
        tiny_search((costs,), method=method, gamma=5.0).alpha[0].softmax(-1) for costs in (even, dear)
    )
    plain = tiny_search(method=method).alpha[0].softmax(-1)
    torch.testing.assert_close(cheap, plain)  # equal costs pull at nothing
    assert (costly[:, place] < cheap[:, place]).all()


@pytest.mark.parametrize("method", ["rarts", "darts1"])
def test_the_weight_of_the_cost_is_chosen_by_its_pull(method):
    costs = normalised((torch.rand(6, 5, generator=torch.Generator().manual_seed(0)),))
    found = tiny_search(costs, method=method, steps=1)
    assert found.gamma > 0
    assert tiny_search(costs, method=method, steps=1, gamma=0.25).gamma == 0.25
    twice = tiny_search(tuple(2 * one for one in costs), method=method, steps=1).gamma
    assert twice == pytest.approx(found.gamma / 2, rel=1e-4)


def test_at_the_start_the_cost_pulls_at_scores_as_hard_as_it_should():
    costs = normalised((torch.rand(6, 5, generator=torch.Generator().manual_seed(0)),))
    gamma = tiny_search(costs, method="darts1", steps=1).gamma
    torch.manual_seed(0)
    network, alpha = search_network("nats", NATS, TINY).train(), new_scores("nats", 5, seed=0)
    images, labels = pools()[0].take(step_indices(24, 8, 0, 0))
    loss = torch.nn.functional.cross_entropy(network(images, [alpha[0].softmax(-1)]), labels)
    by_loss, by_cost = (
        torch.autograd.grad(value, alpha)[0].norm() for value in (loss, softmax_penalty(alpha, costs))
    )
    assert gamma * float(by_cost) == pytest.approx(PULL * float(by_loss), rel=1e-4)


def test_few_steps_get_larger_ones():
    assert TopologySettings(steps=50_000).score_lr == 3e-4
    assert TopologySettings(steps=100).score_lr == pytest.approx(0.03)
    assert TopologySettings(steps=3).score_lr == 0.05
    assert TopologySettings(steps=3, alpha_lr=0.1).score_lr == 0.1


# The command


def write_images(folder, *, labels=True):
    first, second = pools(30)
    images = torch.cat([first.batches[0], second.batches[0]])[:, 0]
    pixels = (60 + 60 * images).clamp(0, 255).to(torch.uint8).numpy()
    both = torch.cat([first.targets, second.targets]).numpy()
    np.savez(folder / "images.npz", x=pixels, **({"y": both} if labels else {}))
    return str(folder / "images.npz")


SMALL = {
    "space": "nats",
    "channels": 2,
    "steps": 2,
    "batch_images": 4,
    "train_steps": 2,
    "input_size": (8, 8),
}


def write_table(file, space="nats", leave_out=""):
    """Writes a made-up table of single operators: times follow from MACs."""
    parts = searched_parts(space, OPERATIONS[space], Stack(2, 3, 1, 3, affine=False), (1, 8, 8))
    blocks = {(Block(branches=((op,),)), size) for op, size in parts.values()}
    entries = {block_key(block, size): 1.0 + 1e-4 * block_macs(block, size) for block, size in blocks}
    kept = [
        TableEntry(key=key, median_ms=ms, interval_ms=None, runs=1)
        for key, ms in entries.items()
        if not leave_out or leave_out not in key
    ]
    heading = HEADING.model_copy(update={"overhead_ms": 0.5})
    write_record(file, make_table(heading, soc=None, created=datetime(2026, 1, 1, tzinfo=UTC), entries=kept))
    return str(file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("topology")
    table = write_table(folder / "t.json")
    more = {"data": write_images(folder), "latency_table": table, "runs_dir": folder, "max_skips": 1}
    return folder, topology(**SMALL, **more, name="found")


def test_a_result_whose_probabilities_are_of_other_cells_is_refused(finished):
    _, result = finished
    told = result.model_dump(mode="json")
    with pytest.raises(ValueError, match="probabilities of 0 kinds of cells, the genotype has 1"):
        TopologyResult.model_validate(told | {"probabilities": []})


def test_the_run_holds_the_genotype_the_plan_and_the_weights(finished):
    folder, result = finished
    files = {file.name for file in (folder / "found").iterdir()}
    assert files == {"genotype.json", "plan.json", "weights.safetensors", "topology.json", "run.json"}
    assert read_record(folder / "found" / "genotype.json", Genotype) == result.genotype
    assert read_record(folder / "found" / "topology.json", TopologyResult) == result
    assert "then trained for 2 steps" in result.weights
    assert result.skip_ratio == result.genotype.skip_ratio <= 1 / 6
    assert result.network.accuracy is not None
    assert result.genotype.lets_through


def test_the_run_is_loaded_again_wherever_it_is(finished, tmp_path):
    folder, result = finished
    network = load(folder / "found")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("plan.json", "weights.safetensors"):
        (moved / name).write_bytes((folder / "found" / name).read_bytes())
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(load(moved)(images), network(images))
    assert sum(p.numel() for p in network.parameters()) == result.network.params


def test_the_predicted_time_is_the_sum_over_the_operators_of_the_network(finished):
    folder, result = finished
    parts = network_parts(load(folder / "found"), (1, 8, 8))
    expected = sum(0.5 + 1e-4 * macs(part) for part in parts.values())
    assert result.latency.predicted_ms == pytest.approx(expected)
    cells = sum(0.5 + 1e-4 * macs(part) for name, part in parts.items() if ".graph." in name)
    assert result.latency.cells_ms == pytest.approx(cells)
    assert result.latency.measured_now == 0 and result.latency.gamma > 0


def test_the_run_is_exported_and_computes_the_same(finished):
    folder, _ = finished
    exported = export(str(folder / "found"), formats=("onnx",), images=8)
    (file,) = exported.files  # there is no dense network: that would be cells with random weights
    assert (file.file, file.network) == ("network.onnx", "network")
    assert file.parity.top1_agreement == 1.0
    assert file.parity.max_rel_diff < 1e-4


def test_an_operator_the_table_lacks_is_one_line_and_no_run(tmp_path):
    table = write_table(tmp_path / "t.json", leave_out="conv 2>2 3x3 p1x1 @8x8")
    options = ["--data", write_images(tmp_path), "--input-size", "8x8", "--runs-dir", tmp_path / "runs"]
    small = ["--space", "nats", "--channels", 2, "--steps", 1]
    found = run("topology", *small, *options, "--latency-table", table)
    check_one_line_error(found, "conv 2>2 3x3 p1x1 @8x8", "--device")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_device_measures_what_the_table_lacks_and_the_run_keeps_it(tmp_path, monkeypatch):
    whole = read_table(write_table(tmp_path / "whole.json"))
    part = write_table(tmp_path / "part.json", leave_out="conv 2>2 3x3")
    known = {entry.key: entry for entry in whole.entries}
    bench = SimpleNamespace(heading=table_heading(whole))
    monkeypatch.setattr(topology_latency, "find_place", lambda *_: None)
    monkeypatch.setattr(topology_latency, "open_bench", lambda *_, **__: bench)
    monkeypatch.setattr(topology_latency, "measure_blocks", lambda _, tasks: [known[t.key] for t in tasks])
    more = {"data": write_images(tmp_path), "runs_dir": tmp_path, "device": "phone"}
    found, expected = (
        topology(**SMALL, **more, latency_table=table, name=name)
        for table, name in ((part, "part"), (str(tmp_path / "whole.json"), "whole"))
    )
    assert found.latency.predicted_ms == expected.latency.predicted_ms
    assert expected.latency.measured_now == 0 < found.latency.measured_now
    kept = read_table(tmp_path / "part" / "latency.json")
    assert [entry.key for entry in kept.entries] == [key for key in sorted(known) if "conv 2>2 3x3" in key]
    assert not (tmp_path / "whole" / "latency.json").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--space", "lego"], "known are: darts, nats"),
        (["--method", "luck"], "known are: rarts, darts1"),
        (["--operations", "skip,magic"], "'magic'"),
        (["--space", "nats", "--cells", "4"], "3, 6, 9"),
        (["--steps", "1", "--epochs", "1"], "give one of them"),
        (["--gamma", "1"], "--latency-table"),
        (["--data", "no-such-data"], "no-such-data"),
        (["--latency-table", "no-such-table"], "no-such-table"),
        (["--mean", "0.5,0.5,0.5"], "3 means and 1 stds"),
    ],
)
def test_bad_options_are_one_line(args, said, tmp_path):
    check_one_line_error(run("topology", *args, "--runs-dir", tmp_path), said)


def test_images_without_labels_are_refused(tmp_path):
    with pytest.raises(DataError, match="labels"):
        topology(**SMALL, data=write_images(tmp_path, labels=False), runs_dir=tmp_path)


def test_where_nothing_would_get_through_none_is_no_choice(tmp_path, monkeypatch):
    blocked = [(number, "none") for number in (0, 1, 3)]
    for best, through in ((blocked, False), (blocked[:2], True), ([*blocked[:2], (4, "none")], True)):
        cell = select_cell("nats", NATS, chances("nats", [*best, *((n, "conv1", 0.5) for n in range(6))]))
        assert random_genotype("nats").model_copy(update={"normal": cell}).lets_through == through
    one_way = (100 * chances("nats", blocked),)
    found = Searched(one_way, search_network("nats", NATS, TINY), None, (1.0,))
    monkeypatch.setattr(pipeline, "search_topology", lambda *_, **__: found)
    result = topology(**SMALL, data=write_images(tmp_path), runs_dir=tmp_path)
    assert {edge.operation for _, edge in result.genotype.normal.edges()} == {"skip"}
    assert any("`none`" in note for note in result.notes)


def test_two_images_at_least(tmp_path):
    with pytest.raises(ConfigError, match="both halves"):
        topology(**SMALL, data=write_images(tmp_path), images=1, runs_dir=tmp_path)


def test_the_report_shows_cells_skips_and_time(finished, tmp_path):
    folder, result = finished
    more = ["--data", folder / "images.npz", "--latency-table", folder / "t.json", "--runs-dir", tmp_path]
    small = ["--space", "nats", "--channels", 2, "--steps", 2, "--batch-images", 4, "--train-steps", 2]
    shown = run("topology", *small, *more, "--input-size", "8x8", "--max-skips", 1)
    assert shown.exit_code == 0, shown.stderr
    for _, edge in result.genotype.normal.edges():
        assert f"{edge.operation} of" in shown.stdout
    assert "skip" in shown.stdout and f"{result.latency.predicted_ms:.4g}" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
