"""The benchmark against the Pixel 4: its fit, its families, its grouped convolutions, what it writes."""

import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from made_counts import counts

from edgecompress.core.counts import CountModel, modelled_ms

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def found_by_name():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def fitting(found_by_name):
    return importlib.import_module("pixel4_fit")


NAMES = ("loop_cycles", "l3_misses", "constant")
TRUE_US = {"loop_cycles": 400.0, "l3_misses": 7000.0, "constant": 300.0}


def samples(fitting, *, noise=0.0, number=24):
    """Returns networks of eight families that take as long as `TRUE_US` says."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(number):
        size = 10 ** rng.uniform(6, 9)
        counted = counts(other=1, loop_cycles=int(size), l3_misses=int(size * rng.uniform(0.001, 0.02)))
        one = fitting.Sample(f"{'abcdefgh'[index % 8]}net_w{index}", counted, size / 1e9, 1.0)
        ms = fitting.predicted_ms(one, TRUE_US) * (1 + noise * rng.uniform(-1, 1))
        made.append(fitting.Sample(one.name, counted, one.gigaflops, ms))
    return made


def test_a_fit_finds_what_made_the_milliseconds(fitting):
    found = fitting.fit(samples(fitting), NAMES)
    assert found == pytest.approx(TRUE_US, rel=1e-6)


def test_a_feature_that_does_not_matter_gets_nothing_and_none_is_negative(fitting):
    found = fitting.fit(samples(fitting, noise=0.05), (*NAMES, "branches", "l1_jumps"))
    assert min(found.values()) >= 0
    assert found["branches"] == 0


def test_one_wild_measurement_hardly_matters(fitting):
    good = samples(fitting)
    wild = [fitting.Sample(one.name, one.counts, one.gigaflops, 3 * one.measured_ms) for one in good[:1]]
    found = fitting.fit([*wild, *good[1:]], NAMES)
    assert found["loop_cycles"] == pytest.approx(TRUE_US["loop_cycles"], rel=0.02)


def test_a_family_is_judged_by_a_fit_without_it(fitting):
    good = samples(fitting)
    odd = [
        fitting.Sample(
            one.name, one.counts, one.gigaflops, one.measured_ms * (2 if "anet" in one.name else 1)
        )
        for one in good
    ]
    found = fitting.left_out_ms(odd, NAMES)
    for one, ms in zip(odd, found, strict=True):
        if one.family == "anet":
            assert ms == pytest.approx(one.measured_ms / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("mobilenet", ["mobilenet_w1", "mobilenetb_w3d4", "fdmobilenet_wd4"]),
        ("mobilenetv2", ["mobilenetv2_w1", "mobilenetv2b_wd4"]),
        ("mobilenetv3", ["mobilenetv3_small_w7d20", "mobilenetv3_large_w1"]),
        (
            "resnet",
            ["resnet16", "resnet18_wd2", "preresnet10", "sepreresnet14", "resnetbc14b", "preresnetbc26b"],
        ),
        ("regnet", ["regnetx002", "regnety016"]),
        ("resnext", ["resnext14_16x4d"]),
        ("squeezenet", ["squeezenet_v1_1", "squeezeresnet_v1_1"]),
        ("proxylessnas", ["proxylessnas_cpu"]),
        ("densenet", ["densenet121", "densenet169"]),
    ],
)
def test_relatives_are_left_out_together(fitting, family, names):
    assert {fitting.Sample(name, counts(other=1), 1.0, 1.0).family for name in names} == {family}


def test_errors_are_judged_as_shares(fitting):
    three = [fitting.Sample(str(ms), counts(other=1), 1.0, ms) for ms in (10.0, 20.0, 30.0)]
    found = fitting.judge(three, np.array([10.5, 18.0, 36.0]))
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["mean_error"] == pytest.approx((0.05 + 0.1 + 0.2) / 3)
    assert (found["median_error"], found["worst_error"]) == pytest.approx((0.1, 0.2))
    assert found["within_10_percent"] == pytest.approx(2 / 3)


def test_models_are_written_as_the_device_file_has_them(found_by_name, tmp_path, fitting):
    script = importlib.import_module("bench_emulated_pixel4")
    made = samples(fitting)
    row = {"form": "ours", "cluster": "prime", "dtype": "float32", "nets": [one.name for one in made]}
    row |= {"coefficients_us": fitting.fit(made, (*NAMES, "branches"))}
    row |= fitting.judge(made, fitting.left_out_ms(made, NAMES))
    file = tmp_path / "device.toml"
    file.write_text('title = "x"\n\n[[count_models]]\nold = 1\n\n[[facts]]\nabout = "y"\n')
    script.write_models([{"form": "ours", "model": "a"}, row, row | {"form": "FLOPs"}], file)
    content = tomllib.loads(file.read_text())
    assert (content["title"], content["facts"]) == ("x", [{"about": "y"}])
    (model,) = (CountModel.model_validate(one) for one in content["count_models"])
    assert "branches" not in model.coefficients_us
    for one in made:
        assert modelled_ms(one.counts, model) == pytest.approx(one.measured_ms, rel=1e-3)
