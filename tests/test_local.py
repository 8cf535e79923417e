"""Local search: moves of one or two layers that keep to the budget and never make the loss worse."""

import dataclasses
import itertools
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import problem_of

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.search.local import improve
from edgecompress.search.ranks.exact import select

PROBLEM = problem_of(share=0.6, families=("S2", "S4(1)", "S5(1)"), with_errors=True)
START = select(PROBLEM)


def key_of(choices):
    return tuple(sorted((name, c.family, c.ranks) for name, c in choices.items()))


@dataclasses.dataclass
class Recorder:
    """A loss that depends on the choices alone, and remembers what it was asked."""

    seed: int = 0
    asked: list = dataclasses.field(default_factory=list)

    def __call__(self, choices, *, near, bar):
        self.asked.append(dict(choices))
        return self.of(choices)

    def of(self, choices):
        return zlib.crc32(repr((self.seed, key_of(choices))).encode()) / 2**32


def predicted(choices, **_):
    """Returns the sum of the predicted errors."""
    total = 0.0
    for options in PROBLEM.options:
        if options.layer.name in choices:
            total += options.errors[options.candidates.index(choices[options.layer.name])]
    return total


def run(loss, *, problem=PROBLEM, start=START, evaluations=25):
    return improve(problem, start, loss, max_evaluations=evaluations, progress=NO_PROGRESS)


@given(seed=st.integers(0, 10**6), evaluations=st.integers(0, 25))
def test_whatever_the_loss_it_never_rises_and_the_limit_is_kept(seed, evaluations):
    loss = Recorder(seed)
    found = run(loss, evaluations=evaluations)
    assert found.evaluations == len(loss.asked) - 1 <= evaluations
    assert all(PROBLEM.total(choices) <= PROBLEM.limit for choices in loss.asked)
    losses = [loss.of(choices) for choices in loss.asked]
    assert found.loss_before == losses[0]
    assert found.loss_after == min(losses) == loss.of(found.choices)
    assert found.trades == sum(new < min(losses[:i]) for i, new in enumerate(losses) if i)


def changed_layers(one, other):
    return [o.layer.name for o in PROBLEM.options if one.get(o.layer.name) != other.get(o.layer.name)]


def test_every_attempt_changes_one_or_two_layers_of_the_best_so_far():
    calls, recorder = [], Recorder(3)

    def loss(choices, *, near, bar):
        calls.append((choices, near, bar))
        return recorder.of(choices)

    run(loss)
    best = calls[0][0]
    assert calls[0][1:] == (best, math.inf)
    for attempt, near, bar in calls[1:]:
        assert (near, bar) == (best, recorder.of(best))
        assert len(changed_layers(attempt, best)) in (1, 2)
        if recorder.of(attempt) < bar:
            best = attempt


@given(seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_stopping_where_the_bar_is_reached_changes_nothing(seed, share):
    recorder = Recorder(seed)

    def stopping(choices, *, near, bar):
        loss = recorder.of(choices)
        return bar + share * (loss - bar) if loss > bar else loss

    assert run(stopping, evaluations=15) == run(recorder, evaluations=15)


def test_losses_kept_by_plan_and_bar_repeat_a_search():
    memo, recorder = {}, Recorder(5)

    def remembering(choices, *, near, bar):
        key = key_of(choices), bar
        if key not in memo:
            memo[key] = recorder(choices, near=near, bar=bar)
        return memo[key]

    first = run(remembering)
    computed = len(recorder.asked)
    assert run(remembering) == first
    assert len(recorder.asked) == computed


def test_nothing_is_tried_twice_in_the_same_place():
    loss = Recorder()
    run(lambda choices, **_: loss(choices, near={}, bar=0) * 0 + 1)  # no move ever helps
    keys = [key_of(choices) for choices in loss.asked]
    assert len(keys) == len(set(keys))


def test_a_search_ends_when_no_trade_is_left():
    problem = problem_of(share=0.6, families=("S4(1)",), with_errors=True)
    loss = Recorder()
    found = run(loss, problem=problem, start=select(problem), evaluations=10**6)
    assert found.evaluations < 10**4


def test_the_start_is_returned_when_nothing_helps():
    found = run(lambda choices, **_: float(key_of(choices) != key_of(START)))
    assert found.choices == START
    assert (found.loss_before, found.loss_after, found.trades) == (0, 0, 0)


def test_without_evaluations_only_the_start_is_judged():
    loss = Recorder()
    found = run(loss, evaluations=0)
    assert (found.choices, found.evaluations, len(loss.asked)) == (START, 0, 1)


def test_a_poor_start_is_improved_by_the_true_loss():
    """From a plan that starves one layer, trades give it back what it needs."""
    ladders = {o.layer.name: on_ladder(o.layer.name) for o in PROBLEM.options}
    start = {name: ladder[len(ladder) // 2] for name, ladder in ladders.items()} | {
        "deep": ladders["deep"][0]
    }
    problem = dataclasses.replace(PROBLEM, limit=PROBLEM.total(start) * 1.02)
    found = run(predicted, problem=problem, start=start, evaluations=100)
    assert found.trades > 0
    assert found.loss_after < found.loss_before
    assert predicted(found.choices) == pytest.approx(found.loss_after)


def on_ladder(name):
    """Returns the candidates no cheaper one beats; others have no neighbours to step to."""
    (options,) = (o for o in PROBLEM.options if o.layer.name == name)
    pairs = zip(options.candidates, options.errors, strict=True)
    ordered = sorted(pairs, key=lambda pair: (PROBLEM.cost(pair[0]), pair[1]))
    best = itertools.accumulate((error for _, error in ordered), min)
    return [c for (c, error), least in zip(ordered, best, strict=True) if error == least]


def test_a_layer_that_was_left_dense_may_be_rewritten():
    dense_head = {name: c for name, c in START.items() if name != "head"}
    roomy = dataclasses.replace(PROBLEM, limit=PROBLEM.total(dense_head))
    loss = Recorder(1)
    run(loss, problem=roomy, start=dense_head, evaluations=60)
    assert any("head" in choices for choices in loss.asked)


@dataclasses.dataclass
class Bars:
    """A progress that notes how far it got and that it was closed."""

    seen: list = dataclasses.field(default_factory=list)
    closed: bool = False

    def track(self, items, description, total=None):
        try:
            for item in items:
                self.seen.append(item)
                yield item
        finally:
            self.closed = True


def test_the_progress_bar_is_closed_when_the_search_ends_early():
    bars = Bars()
    problem = problem_of(share=0.6, families=("S4(1)",), with_errors=True)
    improve(problem, select(problem), Recorder(), max_evaluations=10**6, progress=bars)
    assert bars.closed
    assert len(bars.seen) < 10**4
