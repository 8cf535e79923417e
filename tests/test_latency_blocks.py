"""Blocks as small files: what they compute in, the operators exporters write, and the curves they lie on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from graph_rows import kinds_of, onnx_rows, rows_of
from pydantic import ValidationError
from torch import nn

from edgecompress.core.costs import block_macs, block_params, chain_out_size
from edgecompress.core.types import Block, Layer, Op
from edgecompress.devices.litert_graph import open_interpreter, operators_outside_delegate
from edgecompress.devices.tflite_contents import read_contents
from edgecompress.errors import UnsupportedLayer
from edgecompress.export import to_onnx
from edgecompress.latency import onnx_blocks, tflite_blocks
from edgecompress.latency.keys import block_key, curve_key, curve_width, dimension_key, head_dim, width_keys
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.methods.tucker2 import METHOD as TUCKER2
from edgecompress.nets.attention import Attention
from edgecompress.nets.modules import Sum, block_module, op_of
from edgecompress.nets.profile import profile, total_macs

WRITERS = {"tflite": tflite_blocks.write_block, "onnx": onnx_blocks.write_block}
every_format = pytest.mark.parametrize("name", WRITERS)
every_type = pytest.mark.parametrize("dtype", ["float32", "int8"])


def conv(inputs: int, outputs: int, kernel: int = 1, **options) -> Op:
    padding = options.pop("padding", (kernel // 2, kernel // 2))
    return Op(
        kind="conv2d", inputs=inputs, outputs=outputs, kernel=(kernel, kernel), padding=padding, **options
    )


def linear(inputs: int, outputs: int) -> Op:
    return Op(kind="linear", inputs=inputs, outputs=outputs)


def mlp(width: int, hidden: int) -> tuple[Op, ...]:
    return linear(width, hidden), Op(kind="gelu", inputs=hidden, outputs=hidden), linear(hidden, width)


def attention(width: int, heads: int, each: int) -> tuple[Op, ...]:
    inner = heads * each
    middle = Op(kind="attention", inputs=3 * inner, outputs=inner, groups=heads)
    return linear(width, 3 * inner), middle, linear(inner, width)


def one_branch(*ops: Op) -> Block:
    return Block(branches=(ops,))


def candidates(method, module: nn.Module, in_size) -> list[Block]:
    layer = Layer(name="layer", op=op_of(module), in_size=in_size)
    return [one.blocks[0] for one in method.candidates(layer)]


MAPS = {
    "dense": (one_branch(conv(6, 8, 3)), (8, 8)),
    "strided": (one_branch(conv(6, 8, 3, stride=(2, 2))), (9, 8)),
    "even kernel": (one_branch(conv(6, 8, 4, padding=(1, 1))), (8, 8)),
    "dilated": (one_branch(conv(6, 8, 3, dilation=(2, 2))), (9, 8)),
    "depthwise": (one_branch(conv(6, 6, 5, groups=6)), (8, 8)),
    "multiplied": (one_branch(conv(6, 12, 3, groups=6)), (8, 8)),
    "grouped": (one_branch(conv(6, 9, 3, groups=3), conv(9, 4)), (8, 8)),
    "one channel": (one_branch(conv(6, 1, 3), conv(1, 6)), (8, 8)),
    "three": (candidates(TUCKER2, nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False), (8, 8))[0], (8, 8)),
    "branches": (candidates(BRANCHES, nn.Conv2d(16, 16, 3, padding=1, bias=False), (8, 8))[0], (8, 8)),
    "half strides": (
        candidates(LOWRANK, nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False), (8, 8))[0],
        (8, 8),
    ),
}
TOKENS = {
    "tokens": (one_branch(linear(8, 6)), (5, 1)),
    "one token": (one_branch(linear(8, 3), linear(3, 8)), (1, 1)),
    "pair": (one_branch(linear(8, 3), linear(3, 8)), (5, 1)),
    "mlp": (one_branch(*mlp(8, 20)), (5, 1)),
    "attention": (one_branch(*attention(8, 3, 4)), (5, 1)),
    "bare": (one_branch(attention(8, 3, 4)[1]), (5, 1)),
    "windows": (one_branch(*attention(8, 3, 4)), (5, 6)),
}
every_block = pytest.mark.parametrize("case", [*MAPS, *TOKENS])


def written(name, case, dtype, tmp_path):
    block, in_size = (MAPS | TOKENS)[case]
    file = tmp_path / f"block.{name}"
    WRITERS[name](block, in_size, file, dtype)
    return file, block, in_size


def run_tflite(file):
    interpreter = open_interpreter(file, threads=1)
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(taken["index"], noise(taken["shape"], taken["dtype"]))
    interpreter.invoke()
    return taken["dtype"], interpreter.get_tensor(given["index"])


def run_onnx(file):
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    taken = session.get_inputs()[0]
    kind = np.int8 if taken.type == "tensor(int8)" else np.float32
    return kind, session.run(None, {taken.name: noise(taken.shape, kind)})[0]


def noise(shape, kind):
    values = np.random.default_rng(0).standard_normal(tuple(shape))
    return (values * 40).clip(-128, 127).astype(kind) if kind == np.int8 else values.astype(kind)


# Files


@every_format
@every_type
@every_block
def test_a_block_runs_and_gives_what_its_operators_promise(name, dtype, case, tmp_path):
    file, block, in_size = written(name, case, dtype, tmp_path)
    kind, result = {"tflite": run_tflite, "onnx": run_onnx}[name](file)
    assert np.dtype(kind).name == dtype == result.dtype.name
    channels, size = block.branches[0][-1].outputs, chain_out_size(block.branches[0], in_size)
    axis = 1 if name == "onnx" and case in MAPS else -1
    assert result.shape[axis] == channels
    assert result.size == channels * size[0] * size[1]
    assert len(np.unique(result)) > min(10, result.size // 2), "saturated, or nothing was computed"


@every_type
@pytest.mark.parametrize("case", [*MAPS, "tokens", "one token", "pair"])
def test_the_delegate_takes_every_operator(dtype, case, tmp_path):
    file, _, _ = written("tflite", case, dtype, tmp_path)
    assert operators_outside_delegate(file) == {}
    assert read_contents(file).dtype == dtype


def test_the_delegate_takes_transformers_in_float(tmp_path):
    for case in ("mlp", "attention"):
        assert operators_outside_delegate(written("tflite", case, "float32", tmp_path)[0]) == {}


def test_weights_of_a_file_are_those_of_the_block(tmp_path):
    for case, (block, _) in MAPS.items():
        file, _, _ = written("tflite", case, "int8", tmp_path)
        shapes = 4 * sum(op.outputs for ops in block.branches for op in ops)  # biases
        pads = kinds_of(file)["PAD"] * 4 * 8
        assert read_contents(file).weight_bytes == block_params(block) + shapes + pads


def test_a_seed_gives_the_same_file(tmp_path):
    block, in_size = MAPS["branches"]
    for name, write in WRITERS.items():
        for number, seed in enumerate((0, 0, 1)):
            write(block, in_size, tmp_path / f"{number}.{name}", seed=seed)
        first, second, third = ((tmp_path / f"{n}.{name}").read_bytes() for n in range(3))
        assert first == second != third


# What exporters write


class Network(nn.Module):
    """Blocks one after the other, each with a bias at its end."""

    def __init__(self, blocks: list[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(block_module(block) for block in blocks)
        for block in self.blocks:
            last = (block.branches[0] if isinstance(block, Sum) else block)[-1]
            last.bias = nn.Parameter(torch.randn(last.weight.shape[0]))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return x.mean((2, 3))


class Tokens(nn.Module):
    """The two halves of a transformer block."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.attention = Attention(nn.Linear(8, 36), nn.Linear(12, 8), heads=3, head_dim=4, scale=0.5)
        self.mlp = nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 8))

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attention(self.norms[0](x))
        return (x + self.mlp(self.norms[1](x))).mean(1)


def exported(network, shape, tmp_path):
    to_onnx.convert(network.eval(), shape, tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


def test_onnx_blocks_have_the_nodes_of_the_exporter(tmp_path):
    blocks = [
        candidates(BRANCHES, nn.Conv2d(16, 16, 3, padding=1), (8, 8))[0],
        candidates(TUCKER2, nn.Conv2d(16, 16, 3, padding=1), (8, 8))[0],
        one_branch(conv(16, 16, 3, groups=16)),
        candidates(LOWRANK, nn.Conv2d(16, 16, 3, stride=2, padding=1), (8, 8))[0],
    ]
    wanted = rows_of(exported(Network(blocks), (16, 8, 8), tmp_path))
    found = Counter()
    for block in blocks:
        onnx_blocks.write_block(block, (8, 8), tmp_path / "block.onnx")
        found += rows_of(tmp_path / "block.onnx")
    others = {row for row in wanted if row[0] in ("Relu", "ReduceMean")}
    assert found == Counter({row: count for row, count in wanted.items() if row not in others})


def test_transformer_units_have_the_nodes_of_the_exporter(tmp_path):
    file = exported(Tokens(), (8, 5, 1), tmp_path)
    wanted, found = Counter(onnx_rows(file)), Counter()
    for unit in (mlp(8, 20), attention(8, 3, 4)):
        onnx_blocks.write_block(one_branch(*unit), (5, 1), tmp_path / "unit.onnx")
        found += Counter(onnx_rows(tmp_path / "unit.onnx"))
    assert not found - wanted
    rest = Counter(kind for kind, *_ in (wanted - found).elements())
    assert rest == {"LayerNormalization": 2, "Add": 2, "ReduceMean": 1, "Transpose": 1, "Reshape": 1}


def test_attention_has_the_operators_converters_write(tmp_path):
    file, _, _ = written("tflite", "attention", "float32", tmp_path)
    assert kinds_of(file) == {
        "FULLY_CONNECTED": 2,
        "SPLIT": 1,
        "MUL": 1,
        "RESHAPE": 4,
        "TRANSPOSE": 4,
        "BATCH_MATMUL": 2,
        "SOFTMAX": 1,
    }
    assert kinds_of(written("tflite", "mlp", "float32", tmp_path)[0]) == {"FULLY_CONNECTED": 2, "GELU": 1}


@every_format
def test_tokens_mix_within_their_window_only(name, tmp_path):
    file, _, (tokens, _) = written(name, "windows", "float32", tmp_path)
    before, after = (run_on(file, name, change) for change in (0.0, 1.0))
    moved = np.abs(before - after).max(axis=-1).reshape(-1, tokens)
    assert moved[0].min() > 1e-4 and moved[1:].max() == 0


def run_on(file, name, change):
    """Runs a block of 30 tokens, the first of which is changed."""
    x = noise((30, 8), np.float32)
    x[0] += change
    if name == "onnx":
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return session.run(None, {"image": x[None]})[0][0]
    interpreter = open_interpreter(file, threads=1)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def test_biases_stand_where_networks_have_them_whatever_a_block_says(tmp_path):
    for case in ("pair", "mlp", "branches"):
        block, in_size = (MAPS | TOKENS)[case]
        ops = [[op.model_copy(update={"bias": True}) for op in branch] for branch in block.branches]
        biased = Block(branches=tuple(map(tuple, ops)))
        for number, one in enumerate((block, biased)):
            onnx_blocks.write_block(one, in_size, tmp_path / f"{number}.onnx")
        assert rows_of(tmp_path / "0.onnx") == rows_of(tmp_path / "1.onnx")


# Operators of transformers


def test_attention_costs_what_profiling_counts():
    module = Attention(nn.Linear(8, 36), nn.Linear(12, 8), heads=3, head_dim=4, scale=0.5)
    block = one_branch(*attention(8, 3, 4))
    assert block_macs(block, (5, 1)) == total_macs(profile(AsTokens(module), (8, 5, 1)))
    assert block_params(block) == 8 * 36 + 12 * 8
    assert block_macs(one_branch(*mlp(8, 20)), (5, 1)) == 5 * 2 * 8 * 20


class AsTokens(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x.flatten(2).transpose(1, 2))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "gelu", "inputs": 8, "outputs": 4},
        {"kind": "attention", "inputs": 8, "outputs": 8},
        {"kind": "attention", "inputs": 24, "outputs": 8, "groups": 3},
    ],
)
def test_operators_whose_channels_do_not_fit_are_refused(fields):
    with pytest.raises(ValidationError):
        Op.model_validate(fields)


def test_no_network_is_built_of_them():
    for block in (one_branch(*mlp(8, 20)), one_branch(*attention(8, 3, 4))):
        with pytest.raises(UnsupportedLayer, match="cannot be built"):
            block_module(block)


# Keys


def chains(width: int) -> dict[str, tuple[Op, ...]]:
    """One chain of every kind of curve, at a width."""
    return {
        "pair": (conv(8, width, 3), conv(width, 8)),
        "linear pair": (linear(8, width), linear(width, 8)),
        "grouped": (conv(8, 4 * width, 3, groups=4), conv(4 * width, 8)),
        "three": (conv(8, 6), conv(6, width, 3), conv(width, 8)),
        "three, another first width": (conv(8, 7), conv(7, width, 3), conv(width, 8)),
        "mlp": mlp(8, width),
        "attention": attention(8, width, 4),
        "attention, wider heads": attention(8, width, 5),
    }


def test_chains_that_differ_in_one_width_share_a_curve_and_others_do_not():
    keys = {}
    for width in (2, 3, 5):
        for name, ops in chains(width).items():
            keys.setdefault(name, set()).add(curve_key(ops, (5, 1)))
            assert curve_width(ops) == (4 * width if name == "grouped" else width)
    assert all(len(found) == 1 and None not in found for found in keys.values())
    assert len(set.union(*keys.values())) == len(keys)


def test_keys_read_as_documented():
    block = one_branch(*attention(96, 4, 24))
    assert block_key(block, (49, 1)) == "linear 96>288 @49x1 > attention h4x24 > linear 96>96"
    assert curve_key(block.branches[0], (49, 1)) == "linear 96>* @49x1 > attention h*x24 > linear *>96"
    assert block_key(one_branch(*mlp(96, 192)), (49, 1)) == "linear 96>192 @49x1 > gelu 192 > linear 192>96"
    three = chains(5)["three"]
    assert curve_key(three, (7, 7)) == "conv 8>6 1x1 @7x7 > conv 6>* 3x3 p1x1 > conv *>8 1x1"


def test_attention_has_a_curve_of_its_own_by_the_width_of_its_heads():
    key = "linear 96>* @49x1 > attention h4x2* > linear *>96"
    assert {dimension_key(attention(96, 4, each), (49, 1)) for each in (2, 8, 24)} == {key}
    odd = {dimension_key(attention(96, 4, each), (49, 1)) for each in (1, 7, 23)}
    assert odd == {"linear 96>* @49x1 > attention h4x2*+1 > linear *>96"}
    others = [
        (attention(96, 3, 24), (49, 1)),
        (attention(88, 4, 24), (49, 1)),
        (attention(96, 4, 24), (49, 4)),
    ]
    assert key not in {dimension_key(ops, size) for ops, size in others}
    assert head_dim(attention(96, 4, 8)) == 8
    assert dimension_key(mlp(96, 192), (49, 1)) is None


@pytest.mark.parametrize(
    "ops",
    [
        (conv(8, 8, 3),),
        (conv(8, 4), conv(4, 4, 3), conv(4, 4, 3), conv(4, 8)),
        (conv(8, 4), conv(5, 8)),
        (linear(8, 24), attention(8, 2, 4)[1]),
    ],
)
def test_other_chains_lie_on_no_curve(ops):
    assert curve_key(ops, (8, 8)) is None


def test_one_operator_has_a_key_for_either_width():
    inputs, outputs = width_keys(conv(8, 4, 3), (7, 7))
    assert (inputs, outputs) == ("conv *>4 3x3 p1x1 @7x7", "conv 8>* 3x3 p1x1 @7x7")
    assert width_keys(conv(9, 4, 3), (7, 7)) == (inputs, "conv 9>* 3x3 p1x1 @7x7")
    assert width_keys(linear(8, 4), (5, 1)) == ("linear *>4 @5x1", "linear 8>* @5x1")


def test_operators_of_one_width_have_one_key():
    for width in (6, 8):
        both = width_keys(conv(width, width, 3, groups=width), (7, 7))
        assert both == ("conv *>* 3x3 p1x1 g* @7x7",) * 2
        assert width_keys(Op(kind="gelu", inputs=width, outputs=width), (5, 1)) == ("gelu * @5x1",) * 2
        heads = attention(8, width, 4)[1]
        assert width_keys(heads, (5, 1)) == ("attention h*x4 @5x1",) * 2
    doubled = width_keys(conv(8, 16, 3, groups=8), (7, 7))
    assert doubled[0] == doubled[1] != width_keys(conv(8, 8, 3, groups=8), (7, 7))[0]
