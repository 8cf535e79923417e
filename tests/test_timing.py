"""Triggers on made-up trainings: when they fire, that they stay, and what they remember."""

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.errors import ConfigError
from edgecompress.train.timing import USUAL_THRESHOLDS, WINDOW, Moments, parse_timing, warm_up_epochs


def run_epochs(trigger, epochs, *, norms=lambda epoch: [], gaps=lambda epoch: 0.0, upto=None):
    """Runs epochs and returns those at whose end the trigger had fired."""
    fired = []
    for epoch in range(epochs if upto is None else upto):
        for norm in norms(epoch):
            trigger.see_gradient(norm)
        trigger.end_epoch(epoch, epochs, 1.0, 1.0 + gaps(epoch))
        fired += [epoch] if trigger.fired else []
    return fired


def spread(width):
    """Returns an epoch's norms around 5, `width` to either side."""
    return [5 + width * (-1) ** step for step in range(2 * WINDOW)]


def test_variance_fires_when_norms_settle_and_stays():
    trigger = parse_timing("variance")
    calm_from = 13
    fired = run_epochs(trigger, 40, norms=lambda epoch: spread(0.1 if calm_from <= epoch < 20 else 1.0))
    assert fired == list(range(calm_from, 40))


def test_variance_does_not_fire_in_the_warm_up_and_at_once_after_it():
    warm_up = warm_up_epochs(40)
    trigger = parse_timing("variance")
    fired = run_epochs(trigger, 40, norms=lambda epoch: spread(1.0 if epoch == 0 else 0.01))
    assert fired[0] == warm_up == 4


def test_variance_compares_with_the_whole_warm_up_and_the_last_steps():
    norms = {0: [1.0, 3.0, 8.0], 1: [4.0, 2.0], 2: spread(1.0) + [6.0] * (WINDOW - 1)}
    share = statistics.pvariance(norms[2][-WINDOW:]) / statistics.pvariance(norms[0] + norms[1])
    for threshold, fires in ((share * 0.99, False), (share * 1.01, True)):
        trigger = parse_timing(f"variance:{threshold}")
        run_epochs(trigger, 20, norms=norms.__getitem__, upto=3)
        assert trigger.fired is fires


def test_variance_waits_for_a_full_window():
    trigger = parse_timing("variance:100")
    fired = run_epochs(trigger, 10, norms=lambda epoch: [1.0, 2.0])
    assert fired[0] == WINDOW // 2 - 1


def test_gradients_that_are_not_finite_are_passed_over():
    trigger = parse_timing("variance")
    wild = [math.nan, math.inf]
    fired = run_epochs(trigger, 40, norms=lambda epoch: wild + spread(0.1 if epoch > 8 else 1.0) + wild)
    assert fired[0] == 9


def test_gap_fires_at_a_third_epoch_and_stays():
    trigger = parse_timing("gap")
    fired = run_epochs(trigger, 30, gaps=lambda epoch: 0.5 if epoch < 3 else (1.01 if epoch < 7 else 0.0))
    assert fired == list(range(5, 30))


def test_gap_does_not_fire_in_the_warm_up():
    trigger = parse_timing("gap")
    fired = run_epochs(trigger, 100, gaps=lambda epoch: 2.0**epoch)
    assert warm_up_epochs(100) == 10
    assert fired[0] == 11  # 11 + 1 is the first multiple of 3 after it


def test_gap_at_the_threshold_is_not_over_it():
    trigger = parse_timing("gap:2")
    assert run_epochs(trigger, 30, gaps=lambda epoch: 0.5 if epoch < 3 else 1.0) == []


def test_gap_counts_validation_losses_below_as_well():
    trigger = parse_timing("gap")
    assert run_epochs(trigger, 30, gaps=lambda epoch: -0.5 if epoch < 3 else -1.1)[0] == 5


def test_gap_never_fires_where_no_loss_of_the_warm_up_was_finite():
    trigger = parse_timing("gap")
    assert run_epochs(trigger, 30, gaps=lambda epoch: math.nan if epoch < 3 else 9.0) == []


def test_gap_needs_a_validation_loss():
    with pytest.raises(ConfigError, match="validation"):
        parse_timing("gap").end_epoch(0, 10, 1.0, None)


@pytest.mark.parametrize("kind", ["variance", "at"])
def test_the_others_do_not(kind):
    trigger = parse_timing(kind)
    trigger.end_epoch(0, 10, 1.0, None)
    assert not trigger.fired


@given(epochs=st.integers(1, 50), share=st.floats(0.05, 0.95))
def test_at_leaves_a_share_of_epochs_before(epochs, share):
    fired = run_epochs(parse_timing(f"at:{share}"), epochs)
    before = epochs - len(fired) + 1  # the epoch at whose end it fires is not perturbed itself
    assert before == max(1, math.ceil(share * epochs))


@pytest.mark.parametrize("text", ["variance", "gap", "at:0.5"])
def test_a_trigger_goes_on_from_its_state(text):
    def norms(epoch):
        return spread(1 / (1 + epoch))

    whole, first, second = (parse_timing(text) for _ in range(3))
    fired = run_epochs(whole, 24, norms=norms, gaps=lambda epoch: epoch)
    run_epochs(first, 24, norms=norms, gaps=lambda epoch: epoch, upto=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    for epoch in range(2, 24):
        for norm in norms(epoch):
            second.see_gradient(norm)
        second.end_epoch(epoch, 24, 1.0, 1.0 + epoch)
        assert second.fired is (epoch in fired)
    assert second == whole


def test_a_loaded_state_is_not_shared():
    first, second = parse_timing("variance"), parse_timing("variance")
    second.load_state_dict(first.state_dict())
    second.see_gradient(3.0)
    assert first.recent == [] and first.warm_up.count == 0


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_moments_are_those_of_all_numbers(values):
    moments = Moments()
    for value in values:
        moments.add(value)
    assert moments.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert moments.variance == pytest.approx(statistics.pvariance(values), rel=1e-9, abs=1e-7)


def test_help_names_every_trigger():
    (option,) = (one for one in get_command(app).commands["train"].params if one.name == "timing")
    assert {one.partition(":")[0] for one in option.metavar.split("|")} == {"none", *USUAL_THRESHOLDS}


def test_none_is_no_trigger():
    assert parse_timing("none") is None


@pytest.mark.parametrize("text", ["", "soon", "gap:", "gap:x", "gap:1:2", "gap:0", "gap:nan", "at:1"])
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match=r"write none, variance"):
        parse_timing(text)
