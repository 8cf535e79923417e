"""`prune`: what goes is gone exactly, the run can be loaded again, and every way it can be refused."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_calls import check_one_line_error, run
from group_nets import fashion_batches

from edgecompress.core.memo import Memo
from edgecompress.core.prune_results import PruneResult
from edgecompress.core.runs import read_run
from edgecompress.core.store import read_record
from edgecompress.errors import ConfigError, EdgeCompressError, ModelError
from edgecompress.methods.lowrank import factorise, pair_candidate
from edgecompress.nets.artefact import load, read_plan
from edgecompress.nets.chains import filled_block
from edgecompress.nets.families import Family
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import find_layers, layer_named, weight_of
from edgecompress.nets.narrowing import zeroed
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import load_model
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.pipeline import narrowed as narrowed_module
from edgecompress.pipeline import prune as prune_module
from edgecompress.pipeline.compress import RESULT_FILE
from edgecompress.pipeline.export import export
from edgecompress.pipeline.narrowed import Blocks, find_narrowable, realise_narrowed
from edgecompress.pipeline.prune import parse_share, prune

ensure_torchvision_importable()
NETS = """
import torch
from torch import nn
from torchvision.models import SwinTransformer, VisionTransformer
from torchvision.models.mobilenetv2 import InvertedResidual


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.blocks = nn.Sequential(InvertedResidual(8, 8, 1, 4), InvertedResidual(8, 16, 2, 6))
        self.last = nn.Sequential(nn.Conv2d(16, 48, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU6())
        self.head = nn.Linear(48, 7)

    def forward(self, x):
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))


def mobilenet():
    torch.manual_seed(0)
    net = Mobile()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    net(torch.randn(16, 3, 32, 32))  # in training mode, for the statistics
    return net


def swin():
    torch.manual_seed(0)
    return SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=7)


def vit():
    torch.manual_seed(0)
    net = VisionTransformer(32, 8, 2, 2, 48, 96, num_classes=7)
    nn.init.normal_(net.heads.head.weight)  # zero, as torchvision makes it
    return net


class Masked(nn.Module):
    \"\"\"Its attention is called with a mask that has a meaning; there may be an MLP beside it.\"\"\"

    def __init__(self, mlp):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 8, stride=8)
        self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) if mlp else nn.Identity()
        self.head = nn.Linear(32, 7)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.head((x + self.mlp(x)).mean(1))


def masked():
    return Masked(mlp=True)


def masked_only():
    return Masked(mlp=False)


def one_layer():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7))


def uneven():  # a batch norm makes up for the first factor, and classes do not change by the second
    net = mobilenet()
    with torch.no_grad():
        net.last[0].weight.mul_(0.01)
        net.last[1].running_mean.mul_(0.01)
        net.last[1].running_var.mul_(0.0001)
        net.head.weight.mul_(0.01)
        net.head.bias.mul_(0.01)
    return net


def broken():
    net = mobilenet()
    net.last[0].weight.data[0, 0, 0, 0] = float("nan")
    return net
"""
QUICK = {"calibration_images": 48, "selection_images": 48, "report_images": 200}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a user's networks and images."""
    place = tmp_path_factory.mktemp("user")
    (place / "nets.py").write_text(NETS)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 32, 32, 3), dtype=np.uint8)
    np.savez(place / "images.npz", x=images, y=rng.integers(0, 7, 80))
    return place


def loaded_net(place, name):
    return load_model(f"{place / 'nets.py'}:{name}", input_size=(32, 32))


def prune_own(place, name, runs_dir, **options):
    return prune(f"{place / 'nets.py'}:{name}", **({"input_size": (32, 32), "runs_dir": runs_dir} | options))


def random_images(shape, count=4):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def random_kept(groups, seed=0):
    """Returns about half of the units of every group."""
    generator = torch.Generator().manual_seed(seed)
    return {
        g.name: sorted(torch.randperm(g.width, generator=generator)[: max(1, g.width // 2)].tolist())
        for g in groups
    }


# Exactness


@pytest.mark.parametrize("name", ["zoo:fashion_resnet", "zoo:fashion_vit", "mobilenet", "swin", "vit"])
def test_a_pruned_network_computes_what_the_dense_one_does_with_units_at_zero(place, name):
    loaded = load_model(name) if name.startswith("zoo:") else loaded_net(place, name)
    found = find_narrowable(loaded, widths=True, dims=True, residual=True)
    kept, x = random_kept(found.groups), random_images(loaded.ref.input_shape)
    result = realise_narrowed(found.module, found.groups, kept)
    assert {one.group: one.after for one in result.narrowings} == {n: len(u) for n, u in kept.items()}
    with torch.no_grad():
        with zeroed(found.module, found.groups, kept):
            wanted = found.module(x)
        dense = loaded.module(x)
        close = {"atol": 1e-5 * float(dense.abs().max()), "rtol": 0}
        torch.testing.assert_close(result.module(x), wanted, **close)
        torch.testing.assert_close(found.module(x), dense, **close)
        assert (wanted - dense).abs().max() > 0.02 * dense.abs().max()  # what went did matter
    assert total_params(result.module) < total_params(loaded.module)


@pytest.mark.parametrize(("name", "rewritten"), [("swin", True), ("vit", True), ("mobilenet", False)])
def test_rewritten_attention_costs_what_it_did_and_is_told(place, name, rewritten):
    loaded = loaded_net(place, name)
    found = find_narrowable(loaded, widths=True, dims=True, residual=False)
    assert found.rewritten == rewritten
    dense, copied = (
        total_macs(profile(one, loaded.ref.input_shape)) for one in (loaded.module, found.module)
    )
    assert copied == dense
    assert total_params(found.module) == total_params(loaded.module)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_groups_of_both_finders_share_no_place(place, name):
    loaded = loaded_net(place, name)
    both = find_narrowable(loaded, widths=True, dims=True, residual=True)
    dims = find_narrowable(loaded, widths=False, dims=True, residual=True)
    assert both.groups[: len(dims.groups)] == dims.groups
    places = [(cut.module, cut.axis) for group in both.groups for cut in group.cuts]
    assert len(places) == len(set(places))
    assert not {group.name for group in both.groups} & {name for name, _ in both.refused}


# Repair


@functools.cache
def resnet_job(count=48):
    """Returns a network with its groups, what stays, and images to repair and to judge with."""
    loaded = load_model("zoo:fashion_resnet")
    batches, _ = fashion_batches(2 * count, size=48)
    images = [x for x, _ in batches]
    found = find_narrowable(loaded, widths=True, dims=False, residual=False)
    return found, random_kept(found.groups), images[: len(images) // 2], images[len(images) // 2 :]


@torch.no_grad()
def mean_divergence(module, dense, images):
    found, wanted = (torch.cat([one(x) for x in images]).log_softmax(1) for one in (module, dense))
    return float(torch.nn.functional.kl_div(found, wanted, log_target=True, reduction="batchmean"))


def test_each_repair_brings_the_network_closer_and_is_told():
    found, kept, calibration, selection = resnet_job()
    options = [
        {"make_up": False, "refit": False, "batch_norm": "keep"},
        {"refit": False, "batch_norm": "keep"},
        {"batch_norm": "keep"},
        {"batch_norm": "auto"},
    ]
    results = [
        realise_narrowed(found.module, found.groups, kept, calibration, selection, **one) for one in options
    ]
    far = [mean_divergence(one.module, found.module, selection) for one in results]
    assert far[1] < 0.7 * far[0]
    assert far[2] < 0.7 * far[1]
    assert far[3] <= 1.05 * far[2]  # judged by divergences that are capped
    assert [[step for step, _ in one.steps] for one in results] == [
        [],
        [],
        ["refit"],
        ["refit", "batch norm"],
    ]
    assert set(results[3].seconds) == {"moments", "narrowing", "repair", "batch norm"}


def test_a_repair_that_does_harm_is_dropped(monkeypatch):
    found, kept, calibration, selection = resnet_job()

    def spoil_(network, *_, **__):
        with torch.no_grad():
            network.head.weight.mul_(-1)

    monkeypatch.setattr(narrowed_module, "repair_", spoil_)
    spoiled = realise_narrowed(found.module, found.groups, kept, calibration, selection, batch_norm="keep")
    plain = realise_narrowed(
        found.module, found.groups, kept, calibration, selection, refit=False, batch_norm="keep"
    )
    assert spoiled.steps[0][1].startswith("dropped")
    assert torch.equal(spoiled.module.head.weight, plain.module.head.weight)


def test_blocks_stand_beside_what_is_narrowed_and_are_repaired():
    found, kept, calibration, selection = resnet_job()
    name = "stage3.0.shortcut.0"
    layer = find_layers(found.module, [name], (1, 28, 28))[0][0]
    choice = pair_candidate(layer, Family("S2"), 12)
    kernels = factorise(weight_of(layer_named(found.module, name)).double(), layer, PLAIN)(choice)

    def build(_):
        return filled_block(choice.blocks[0], kernels, None)

    blocks = Blocks({name: choice}, build)
    result = realise_narrowed(
        found.module, found.groups, kept, calibration, selection, blocks=blocks, batch_norm="keep"
    )
    placed = layer_named(result.module, name)
    assert result.choices == {name: choice}
    assert [tuple(one.weight.shape) for one in placed] == [tuple(one.weight.shape) for one in build(name)]
    assert not torch.equal(placed[-1].weight, build(name)[-1].weight)


def test_a_network_that_is_known_is_read_and_not_made_again(tmp_path, monkeypatch):
    found, kept, calibration, selection = resnet_job()
    first = realise_narrowed(
        found.module, found.groups, kept, calibration, selection, memo=Memo(tmp_path), batch_norm="keep"
    )
    monkeypatch.setattr(narrowed_module, "repair_", lambda *_, **__: pytest.fail("repaired again"))
    again = realise_narrowed(
        found.module, found.groups, kept, calibration, selection, memo=Memo(tmp_path), batch_norm="keep"
    )
    assert again.steps == first.steps
    assert again.narrowings == first.narrowings
    for name, tensor in first.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name])


# Runs


@pytest.fixture(scope="module")
def vit_run(tmp_path_factory):
    return prune("zoo:fashion_vit", dims="40%", runs_dir=tmp_path_factory.mktemp("runs"), **QUICK)


def test_a_run_can_be_loaded_and_is_what_it_says(vit_run):
    path = Path(vit_run.run)
    assert read_record(path / RESULT_FILE, PruneResult) == vit_run
    assert read_plan(path) == vit_run.plan
    assert read_run(path).options["dims"] == "40%"
    network = load(path)
    assert total_params(network) == vit_run.compressed.params < vit_run.dense.params
    assert vit_run.dense.accuracy.top1 - vit_run.compressed.accuracy.top1 < 3
    changed = {one.name: one.after for one in vit_run.groups if one.after < one.before}
    assert changed == {one.group: one.after for one in vit_run.plan.narrowings}
    assert all(one.after % 8 == 0 for one in vit_run.groups)
    assert vit_run.scores == "reconstruction"


def test_a_pruned_transformer_is_a_smaller_tflite_file_of_plain_operators(vit_run):
    done = export(vit_run.run, formats=("tflite",), converter="litert-torch", dense=True, images=4)
    files = {one.network: one for one in done.files}
    small, large = files["compressed"], files["dense"]
    kept = vit_run.compressed.params / vit_run.dense.params
    assert small.size_bytes < (kept + 0.1) * large.size_bytes
    assert small.parity.max_rel_diff < 1e-4
    assert not small.graph.outside_delegate
    operators = {kind.upper() for kind in small.graph.operators}
    assert operators == {kind.upper() for kind in large.graph.operators}
    assert not any(kind.startswith("FLEX") or "ERF" in kind for kind in operators)


def test_the_share_goes_before_widths_are_rounded_up(tmp_path):
    result = prune(
        "zoo:fashion_vit", dims="0.4", scores="random", multiple=1, floor=1, runs_dir=tmp_path, **QUICK
    )
    for kind, width in (("head_dim", 96), ("hidden", 768)):
        own = [one for one in result.groups if one.kind == kind]
        assert sum(one.before for one in own) == width
        assert sum(one.before - one.after for one in own) == int(0.4 * width)


@pytest.mark.parametrize(("name", "options"), [("mobilenet", {"widths": "30%"}), ("swin", {"dims": "40%"})])
def test_models_without_images_are_pruned_by_magnitude(place, tmp_path, name, options):
    result = prune_own(place, name, tmp_path, floor=4, multiple=4, **options)
    assert result.scores == "magnitude"
    assert result.split is None
    assert result.compressed.accuracy is None
    assert result.compressed.macs < result.dense.macs
    assert any(step == "refit" and "no images" in told for step, told in result.steps)
    assert result.plan.attention_rewritten == (name == "swin")
    assert total_params(load(result.run)) == result.compressed.params


@pytest.mark.parametrize("scores", ["magnitude", "gamma"])
def test_scores_that_say_nothing_across_layers_take_the_same_share_of_each(place, tmp_path, scores):
    options = {"widths": "50%", "scores": scores, "floor": 1, "multiple": 1}
    result = prune_own(place, "uneven", tmp_path, **options)
    assert result.scope == "per_layer"
    assert all(one.after == one.before - one.before // 2 for one in result.groups)


def test_a_scope_can_be_chosen_for_any_scores(place, tmp_path):
    options = {"widths": "50%", "scores": "magnitude", "floor": 1, "multiple": 1}
    result = prune_own(place, "uneven", tmp_path, scope="per_type", **options)
    assert result.scope == "per_type"
    assert min(one.after / one.before for one in result.groups) < 0.2  # one layer is nearly emptied
    data = str(place / "images.npz")
    by_images = prune_own(place, "uneven", tmp_path, data=data, widths="50%", floor=1, multiple=1)
    assert (by_images.scores, by_images.scope) == ("reconstruction", "per_type")
    each = prune_own(
        place, "uneven", tmp_path, data=data, widths="50%", floor=1, multiple=1, scope="per_layer"
    )
    assert (each.scores, each.scope) == ("reconstruction", "per_layer")


def test_both_kinds_go_at_their_own_shares(place, tmp_path):
    result = prune_own(place, "vit", tmp_path, dims="50%", floor=1, multiple=1)
    assert {one.kind for one in result.groups} == {"head_dim", "hidden"}
    with pytest.raises(ModelError, match="--widths"):
        prune_own(place, "vit", tmp_path, dims="50%", widths="10%")


def test_images_of_the_users_own_serve_a_network_of_the_users_own(place, tmp_path):
    result = prune_own(
        place, "swin", tmp_path, dims="40%", data=str(place / "images.npz"), floor=4, multiple=4
    )
    assert result.scores == "reconstruction"
    assert [step for step, _ in result.steps] == ["refit"]
    x = random_images((3, 32, 32))
    assert bool(load(result.run)(x).isfinite().all())


def test_without_refit_the_weights_that_stay_are_as_they_were(place, tmp_path):
    data = str(place / "images.npz")
    result = prune_own(
        place, "mobilenet", tmp_path, widths="50%", data=data, refit=False, batch_norm="keep", floor=1
    )
    values = set(loaded_net(place, "mobilenet").module.head.weight.detach().flatten().tolist())
    assert set(load(result.run).head.weight.detach().flatten().tolist()) <= values
    refitted = prune_own(place, "mobilenet", tmp_path, widths="50%", data=data, floor=1)
    assert refitted.groups == result.groups
    assert [step for step, _ in refitted.steps] == ["refit", "batch norm"]


def test_the_command_shows_tables_and_json(place, tmp_path):
    own = f"{place / 'nets.py'}:mobilenet"
    args = ["prune", own, "--widths", "30%", "--input-size", "32x32", "--runs-dir", tmp_path, "--floor", "4"]
    shown = run(*args)
    assert shown.exit_code == 0, shown.stderr
    for part in (
        "magnitude scores, per layer",
        "channels",
        "kept least",
        "width unchanged",
        "parameters",
        "written to",
    ):
        assert part in shown.stdout
    told = json.loads(run(*args, "--json").stdout)
    assert told["compressed"]["params"] < told["dense"]["params"]
    assert "accuracy" in told["dense"]


def test_the_run_is_its_own_configuration(vit_run, tmp_path):
    again = run("prune", "--config", vit_run.run, "--runs-dir", tmp_path, "--json", "zoo:fashion_vit")
    assert again.exit_code == 0, again.stderr
    told = json.loads(again.stdout)
    assert told["plan"] == json.loads(vit_run.plan.model_dump_json())
    assert told["compressed"] == json.loads(vit_run.compressed.model_dump_json())


def test_scores_are_listed():
    told = json.loads(run("list", "scores", "--json").stdout)
    assert {"reconstruction", "magnitude", "taylor", "rarts"} <= {one["name"] for one in told["items"]}


# Refusals


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("0", "above 0"),
        ("0%", "above 0"),
        ("100%", "below 100%"),
        ("1.0", "below 100%"),
        ("140%", "below 100%"),
        ("40", "did you mean 40%?"),
        ("-20%", "not understood"),
        ("nan", "not understood"),
        ("inf", "not understood"),
        ("much", "not understood"),
        ("", "not understood"),
    ],
)
@pytest.mark.parametrize("flag", ["--dims", "--widths"])
def test_shares_that_make_no_sense_are_refused(flag, text, part, tmp_path):
    result = run("prune", "zoo:fashion_vit", f"{flag}={text}", "--runs-dir", tmp_path)
    check_one_line_error(result, flag, repr(text), part)
    assert list(tmp_path.iterdir()) == []


def test_shares_are_read_as_per_cent_or_as_a_number():
    assert parse_share("40%", flag="--dims") == parse_share(" 0.4 ", flag="--dims") == 0.4
    assert parse_share(".125", flag="--dims") == 0.125


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, ("--widths", "--dims")),
        ({"dims": "40%", "scores": "sixth sense"}, ("'sixth sense'", "reconstruction", "taylor")),
        ({"dims": "40%", "scope": "village"}, ("'village'", "per_type", "global", "per_layer")),
        ({"dims": "40%", "batch_norm": "burn"}, ("'burn'", "auto", "keep", "correct")),
        ({"dims": "40%", "multiple": 0}, ("--multiple 0",)),
        ({"dims": "40%", "floor": 0}, ("--floor 0",)),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_loaded(options, parts, tmp_path):
    told = refused(ConfigError, lambda: prune("zoo:no_such_model", runs_dir=tmp_path, **options), tmp_path)
    assert all(part in told for part in parts)


def refused(kind, call, runs_dir):
    """Returns the one line a command ends with, after making sure that no run is left."""
    with pytest.raises(EdgeCompressError) as error:
        call()
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert list(runs_dir.iterdir()) == []
    return str(error.value)


@pytest.mark.parametrize("scores", ["taylor", "fisher", "reconstruction", "rarts", "joint"])
def test_scores_that_need_images_are_refused_without(place, tmp_path, scores):
    told = refused(
        ConfigError, lambda: prune_own(place, "mobilenet", tmp_path, widths="30%", scores=scores), tmp_path
    )
    assert scores in told
    assert "--data" in told
    assert "gamma|magnitude|random" in told


@pytest.mark.parametrize(
    ("kind", "name", "options", "parts"),
    [
        (ModelError, "one_layer", {"widths": "30%"}, ("nothing that --widths", "makes the network's output")),
        (ModelError, "one_layer", {"dims": "30%"}, ("nothing that --dims",)),
        (ModelError, "mobilenet", {"dims": "30%"}, ("nothing that --dims",)),
        (ModelError, "masked_only", {"dims": "30%"}, ("nothing that --dims", "attn", "mask")),
        (ModelError, "broken", {"widths": "30%"}, ("last.0.weight", "not finite")),
        (ConfigError, "mobilenet", {"widths": "0.1%"}, ("--multiple", "--floor")),
        (ConfigError, "mobilenet", {"widths": "30%", "batch_norm": "correct"}, ("--data",)),
    ],
)
def test_what_cannot_be_pruned_is_refused_with_the_reason(place, tmp_path, kind, name, options, parts):
    told = refused(kind, lambda: prune_own(place, name, tmp_path, **options), tmp_path)
    assert all(part in told for part in parts), told


def test_attention_that_is_not_understood_stays_and_the_rest_goes(place, tmp_path):
    result = prune_own(place, "masked", tmp_path, dims="30%", floor=1)
    assert [one.kind for one in result.groups] == ["hidden"]
    assert "attn" in dict(result.refused)
    network = load(result.run)
    assert network.mlp[0].out_features == result.groups[0].after < 64
    assert isinstance(network.attn, torch.nn.MultiheadAttention)


def test_scores_that_are_not_numbers_are_refused(place, tmp_path, monkeypatch):
    def nothing(model, groups, *_):
        return {group.name: torch.full((group.width,), float("nan")) for group in groups}

    monkeypatch.setattr(prune_module, "MAGNITUDE", replace(prune_module.MAGNITUDE, score=nothing))
    told = refused(ConfigError, lambda: prune_own(place, "mobilenet", tmp_path, widths="30%"), tmp_path)
    assert "not numbers" in told
