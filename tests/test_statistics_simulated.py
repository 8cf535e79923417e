"""How often intervals miss and verdicts are wrong, in seeded simulations of a busy machine."""

import numpy as np
import pytest
from made_bursts import burst, bursts

from edgecompress.core.statistics import compare, drift, summarise

NAMES = ("dense", "small")
TRIES = 200
ROUNDS = 30


def drifting(rng, rounds):
    """Returns what slows both files of a round alike; it wanders, so neighbouring rounds are alike too."""
    steps = rng.normal(0, 0.03, rounds)
    level, levels = 0.0, []
    for step in steps:
        level = 0.9 * level + step
        levels.append(level)
    return np.array(levels)


def disturbed(rng, rounds):
    """Returns what slows one burst: a little always, every tenth time another program does, a lot."""
    return rng.normal(0, 0.03, rounds) + rng.binomial(1, 0.1, rounds) * rng.exponential(0.5, rounds)


def measured(rng, ratio, *, rounds=ROUNDS, paired=True):
    """Compares two files whose true ratio is known."""
    common = drifting(rng, rounds) if paired else np.zeros(rounds)
    first = np.exp(common + disturbed(rng, rounds) + np.log(ratio))
    second = np.exp(common + disturbed(rng, rounds))
    return compare(bursts(first), bursts(second), names=NAMES, paired=paired)


@pytest.mark.parametrize("rounds", [8, ROUNDS])
@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_holds_the_true_ratio(rounds, paired):
    rng = np.random.default_rng(0)
    found = [measured(rng, 1.3, rounds=rounds, paired=paired).interval for _ in range(TRIES)]
    covered = np.mean([one.low <= 1.3 <= one.high for one in found])
    assert covered >= 0.97  # of 99 % promised, less what 200 tries leave uncertain


def test_equal_files_are_hardly_ever_called_different():
    rng = np.random.default_rng(1)
    verdicts = [measured(rng, 1.0).verdict for _ in range(TRIES)]
    assert np.mean([verdict != "no difference" for verdict in verdicts]) <= 0.02


@pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "faster"), (1 / 1.1, "slower")])
def test_ten_percent_are_found(ratio, verdict):
    rng = np.random.default_rng(2)
    verdicts = [measured(rng, ratio).verdict for _ in range(TRIES)]
    assert np.mean([one == verdict for one in verdicts]) >= 0.95


def test_without_pairs_drift_hides_what_pairs_show():
    rng = np.random.default_rng(3)
    reach = {True: [], False: []}
    for _ in range(50):
        common = np.cumsum(rng.normal(0, 0.05, ROUNDS))
        first, second = (np.exp(common + rng.normal(0, 0.01, ROUNDS)) for _ in range(2))
        for paired, seen in reach.items():
            found = compare(bursts(first), bursts(second), names=NAMES, paired=paired)
            seen.append(np.log(found.interval.high / found.interval.low))
    assert np.median(reach[True]) < np.median(reach[False]) / 5


def test_the_interval_of_the_median_holds_it_though_runs_of_a_burst_are_alike():
    rng = np.random.default_rng(4)
    covered, tries = 0, 100
    for _ in range(tries):
        levels = rng.normal(0, 0.05, ROUNDS)
        some = [burst(np.exp(level + rng.normal(0, 0.01, 5))) for level in levels]
        interval = summarise(some).interval_ms
        covered += interval.low <= 1.0 <= interval.high  # the true median is exp(0)
    assert covered / tries >= 0.95


def test_noise_is_hardly_ever_called_drift():
    rng = np.random.default_rng(5)
    found = [drift(bursts(np.exp(disturbed(rng, ROUNDS)))) for _ in range(TRIES)]
    assert np.mean([one.real for one in found]) <= 0.025


@pytest.mark.parametrize("rounds", [8, ROUNDS])
def test_throttling_is_seen(rounds):
    rng = np.random.default_rng(6)
    slope = np.linspace(0, 0.3, rounds)
    found = [drift(bursts(np.exp(slope + rng.normal(0, 0.02, rounds)))) for _ in range(50)]
    assert np.mean([one.real and one.change > 0.05 for one in found]) >= 0.9
