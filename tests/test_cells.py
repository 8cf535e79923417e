"""Networks of cells: what a genotype says is what is built, and the search network contains it."""

import json

import pytest
import torch
from cli_calls import check_one_line_error, run
from hypothesis import given
from hypothesis import strategies as st
from made_cells import IMAGE, one_hot, random_genotype, searched

from edgecompress.core.genotype import (
    KINDS,
    OPERATIONS,
    Genotype,
    chosen_operations,
    code_of,
    edges_of,
    parse_code,
)
from edgecompress.core.store import write_record
from edgecompress.core.types import ModelRef
from edgecompress.errors import ConfigError
from edgecompress.nets.cell_networks import cell_kinds, derived_network, inherit_, read_genotype
from edgecompress.nets.cell_operations import make_operation
from edgecompress.nets.sources import build_module, load_model

SPACES = pytest.mark.parametrize("space", ["darts", "nats"])


# Genotypes


@given(space=st.sampled_from(["darts", "nats"]), seed=st.integers(0, 10**6), stages=st.integers(1, 3))
def test_a_genotype_comes_back_from_its_file_and_from_its_code(space, seed, stages):
    genotype = random_genotype(space, seed, cells=3 * stages, channels=1 + seed % 40)
    assert Genotype.model_validate_json(genotype.model_dump_json()) == genotype
    assert parse_code(code_of(genotype)) == genotype


@SPACES
def test_a_genotype_is_read_from_a_file(space, tmp_path):
    genotype = random_genotype(space)
    write_record(tmp_path / "genotype.json", genotype)
    assert read_genotype(str(tmp_path / "genotype.json")) == genotype


def changed(of, /, **more):
    return json.loads(random_genotype(of).model_dump_json()) | more


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed("darts", space="lego"), "'darts' or 'nats'"),
        (changed("darts", cells=2), "greater than or equal to 3"),
        (changed("nats", cells=4), "3, 6, 9"),
        (changed("darts", reduction=None), "2 kinds of cells"),
        (changed("nats", reduction=changed("nats")["normal"]), "1 kinds of cells"),
        (changed("darts", format_version=7), "version 7"),
        (changed("darts", normal={"nodes": []}), "4 nodes, not 0"),
        ("{", "was it edited or cut off?"),
    ],
)
def test_a_bad_genotype_file_is_one_line(content, said, tmp_path):
    file = tmp_path / "genotype.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    check_one_line_error(run("inspect", f"cells:{file}"), str(file), said)


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ([("sep3", 0), ("none", 1)], "'none' is not one of"),
        ([("conv1", 0), ("sep3", 1)], "'conv1' is not one of"),
        ([("sep3", 0)], "not 2 of 0 to 1"),
        ([("sep3", 0), ("sep3", 2)], "not 2 of 0 to 1"),
        ([("sep3", 1), ("sep3", 1)], "not 2 of 0 to 1"),
        ([("sep3", 1), ("sep3", 0)], "not 2 of 0 to 1"),
    ],
)
def test_an_impossible_cell_is_refused(edges, said):
    content = changed("darts")
    content["normal"]["nodes"][0] = [{"operation": name, "state": state} for name, state in edges]
    with pytest.raises(ValueError, match=said):
        Genotype.model_validate(content)


@pytest.mark.parametrize("text", ["", "darts", "nats-c4-n3-1x8x8-k2-skip", "lego-c4-n3-1x8x8-k2-skip.0"])
def test_what_is_no_code_is_one_line(text):
    check_one_line_error(run("inspect", f"cells:{text}"), "cells")


def test_a_missing_file_is_one_line(tmp_path):
    check_one_line_error(run("inspect", f"cells:{tmp_path / 'no.json'}"), "no such file")


def test_operations_are_kept_in_the_order_of_their_space():
    assert chosen_operations("darts", ("sep3", "skip", "none")) == ("none", "skip", "sep3")
    assert chosen_operations("nats", ()) == OPERATIONS["nats"]
    with pytest.raises(ConfigError, match="'conv1': space darts has none"):
        chosen_operations("darts", ("conv1", "skip"))
    with pytest.raises(ConfigError, match="no choice"):
        chosen_operations("darts", ("none", "skip"))


# Networks


def test_the_darts_space_has_14_edges_and_224_scores():
    edges = edges_of("darts")
    assert len(edges) == 14 and len(OPERATIONS["darts"]) == 8
    assert [sum(node == reader for _, reader in edges) for node in range(4)] == [2, 3, 4, 5]
    assert len(KINDS["darts"]) * len(edges) * len(OPERATIONS["darts"]) == 224
    assert len(OPERATIONS["nats"]) ** len(edges_of("nats")) == 15625


def test_cells_after_one_and_two_thirds_are_reductions():
    assert cell_kinds("darts", 8) == [0, 0, 1, 0, 0, 1, 0, 0]
    assert cell_kinds("darts", 3) == [0, 1, 1]
    assert cell_kinds("nats", 6) == [0] * 6


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", sorted({*OPERATIONS["darts"], *OPERATIONS["nats"]}))
def test_every_operation_keeps_channels_and_halves_maps_by_its_stride(name, channels, stride):
    operation = make_operation(name, channels, stride=stride, affine=True).eval()
    for height, width in ((6, 8), (7, 5)):
        found = operation(torch.randn(2, channels, height, width))
        assert found.shape == (2, channels, -(-height // stride), -(-width // stride))


def test_a_halving_skip_looks_at_every_part_of_odd_and_even_maps():
    operation = make_operation("skip", 2, stride=2, affine=False).eval()
    for size in (6, 7):
        x = torch.rand(1, 2, size, size, requires_grad=True)
        operation(x).sum().backward()
        seen = x.grad.abs().sum((0, 1)) > 0
        assert seen[0::2, 0::2].all() and seen[1::2, 1::2].all()


@pytest.mark.parametrize("size", [3, 5])
def test_a_strided_dilated_operation_computes_a_strided_dilated_convolution(size):
    operation = make_operation(f"dil{size}", 3, stride=2, affine=False).eval()
    depthwise, pointwise = (one for one in operation if isinstance(one, torch.nn.Conv2d))
    for side in (8, 9):
        x = torch.randn(2, 3, side, side)
        inner = torch.nn.functional.conv2d(
            x.relu(), depthwise.weight, stride=2, padding=2 * (size // 2), dilation=2, groups=3
        )
        expected = operation[-1](pointwise(inner))
        torch.testing.assert_close(operation(x), expected, rtol=1e-5, atol=1e-5)


@SPACES
@pytest.mark.parametrize("seed", range(3))
def test_a_derived_network_is_the_search_network_with_one_operation_per_edge(space, seed):
    genotype = random_genotype(space, seed)
    whole, images = searched(genotype), torch.randn(4, *IMAGE)
    derived = derived_network(genotype)
    inherit_(derived, whole, genotype, OPERATIONS[space])
    with torch.no_grad():
        expected = whole(images, one_hot(genotype))
        torch.testing.assert_close(derived.eval()(images), expected, rtol=1e-5, atol=1e-5)
        other = [rows.roll(1, dims=-1) for rows in one_hot(genotype)]
        assert float((whole(images, other) - expected).abs().max()) > 1e-2
    assert float(expected.std()) > 1e-3


def test_none_adds_nothing_and_probabilities_weigh():
    genotype = random_genotype("nats")
    whole, images = searched(genotype), torch.randn(2, *IMAGE)
    rows = one_hot(genotype)[0]
    rows[:] = 0
    rows[:, OPERATIONS["nats"].index("none")] = 1.0
    states = whole.cells[0].graph([whole.stem(images)], rows)
    assert all(not state.any() for state in states[1:])
    skip = torch.zeros_like(rows)
    skip[:, OPERATIONS["nats"].index("skip")] = 0.5
    x = whole.stem(images)
    torch.testing.assert_close(whole.cells[0].graph([x], skip)[1], 0.5 * x)


@SPACES
def test_images_of_odd_sizes_go_through(space):
    genotype = random_genotype(space, image=(3, 13, 9))
    assert derived_network(genotype, classes=7).eval()(torch.randn(2, 3, 13, 9)).shape == (2, 7)


@SPACES
def test_a_source_of_cells_says_everything_so_the_file_may_go(space, tmp_path):
    genotype, file = random_genotype(space), tmp_path / "genotype.json"
    write_record(file, genotype)
    loaded = load_model(f"cells:{file}")
    file.unlink()
    assert loaded.ref.input_shape == IMAGE and loaded.ref.classes == 5 and loaded.random_weights
    again = build_module(ModelRef.model_validate_json(loaded.ref.model_dump_json()))
    again.load_state_dict(loaded.module.state_dict())
    images = torch.randn(2, *IMAGE)
    with torch.no_grad():
        assert torch.equal(again(images), loaded.module(images))


def test_another_number_of_classes_can_be_asked_for():
    source = f"cells:{code_of(random_genotype('darts'))}"
    assert load_model(source, classes=3).ref.classes == 3
