"""Records: frozen, hashable, files that are read back, and nonsense that is refused."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from rank_problems import conv

from edgecompress.core.types import Accuracy, Block, Budget, Candidate, ModelRef, Op, Plan, Preprocess
from edgecompress.errors import ConfigError
from edgecompress.methods.lowrank import candidates

LAYER = conv("layer", 8, 12, stride=2)
REF = ModelRef(source="zoo:resnet20", classes=10, preprocess=Preprocess(size=(32, 48)))
PLAN = Plan(model=REF, choices=tuple(candidates(LAYER)), skipped=(("stem", "grouped"),))
CONV = {"kind": "conv2d", "inputs": 4, "outputs": 6}


@pytest.mark.parametrize(
    "record", [LAYER.op, LAYER, PLAN, REF, Budget.parse("macs=50%"), Accuracy(top1=1, top5=None, images=3)]
)
def test_records_are_frozen_hashable_and_read_back_equal(record):
    again = type(record).model_validate_json(record.model_dump_json())
    assert again == record
    assert hash(again) == hash(record)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(record, next(iter(type(record).model_fields)), None)


def test_an_unknown_key_is_an_error():
    with pytest.raises(ValidationError, match="colour"):
        Op.model_validate(CONV | {"colour": "red"})


@pytest.mark.parametrize(
    "nonsense",
    [
        {"kind": "conv3d"},
        {"inputs": 0},
        {"outputs": -1},
        {"kernel": (0, 3)},
        {"kernel": (3,)},
        {"stride": (1, 0)},
        {"padding": (-1, 0)},
        {"dilation": (0, 1)},
        {"groups": 0},
        {"groups": 4},
        {"groups": 3},
    ],
    ids=str,
)
def test_an_operator_that_cannot_be_built_is_refused(nonsense):
    with pytest.raises(ValidationError):
        Op.model_validate(CONV | nonsense)


def test_a_block_has_branches_and_a_branch_has_operators():
    for branches in ((), ((),), ((LAYER.op,), ())):
        with pytest.raises(ValidationError):
            Block(branches=branches)


def test_a_candidate_has_one_block_for_each_layer():
    candidate = PLAN.choices[0]
    for layers in ((), ("a", "b"), ("",)):
        with pytest.raises(ValidationError):
            Candidate.model_validate(candidate.model_dump() | {"layers": layers})


def test_the_input_shape_has_a_channel_per_mean():
    assert REF.input_shape == (3, 32, 48)
    grey = Preprocess(size=(28, 28), mean=(0.5,), std=(0.5,))
    assert ModelRef(source="a", preprocess=grey).input_shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("text", "metric", "value", "relative"),
    [
        ("macs=50%", "macs", 0.5, True),
        ("params=12.5%", "params", 0.125, True),
        ("params=1.2M", "params", 1.2e6, False),
        ("macs=0.3G", "macs", 0.3e9, False),
        ("macs=.5k", "macs", 500, False),
        ("params=7K", "params", 7000, False),
        ("params=1234", "params", 1234, False),
        (" ms=12.5 ", "ms", 12.5, False),
        ("macs=150%", "macs", 1.5, True),
    ],
)
def test_budgets_are_read_as_written(text, metric, value, relative):
    budget = Budget.parse(text)
    assert (budget.metric, budget.relative) == (metric, relative)
    assert budget.value == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        *("", "50%", "macs", "macs=", "macs=0", "macs=0%", "macs=-1", "macs=1e6", "macs=nan", "macs=inf"),
        *("flops=50%", "MACS=50%", "macs=50%%", "macs=1 M", "macs=5T", "macs=50%\nparams=50%"),
    ],
)
def test_other_budgets_are_refused_with_examples(text):
    with pytest.raises(ConfigError, match=r"macs=50%, params=1\.2M or ms=12\.5"):
        Budget.parse(text)


@given(
    metric=st.sampled_from(["macs", "params", "ms"]),
    value=st.floats(1e-9, 1e18),
    relative=st.booleans(),
)
def test_the_text_of_a_budget_is_read_back(metric, value, relative):
    assume(not (relative and value > 1e4))
    budget = Budget(metric=metric, value=value, relative=relative)
    again = Budget.parse(str(budget))
    assert (again.metric, again.relative) == (metric, relative)
    assert again.value == pytest.approx(value, rel=1e-11)


@given(dense=st.floats(1, 1e12), share=st.floats(0.01, 2))
def test_a_relative_limit_is_a_share_and_an_absolute_one_is_not(dense, share):
    assert Budget(metric="macs", value=share, relative=True).limit(dense) == pytest.approx(share * dense)
    assert Budget(metric="macs", value=share, relative=False).limit(dense) == share
