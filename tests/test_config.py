import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompress.core.config import load_settings
from edgecompress.core.runs import create_run
from edgecompress.errors import ConfigError

KNOWN = {
    "model": str,
    "budget": str,
    "seed": int,
    "tolerance": float,
    "refit": bool,
    "mean": str | None,
    "rank_selection": str,
    "runs_dir": Path,
    "classes": int | None,
    "serial": list[str] | None,
}
COMMANDS = ("compress", "inspect")


def load(path, command="compress"):
    return load_settings(path, command, known=KNOWN, commands=COMMANDS)


def toml(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_every_type_of_option_is_read_from_toml(tmp_path):
    path = toml(tmp_path, 'budget = "macs=30%"\nseed = 3\ntolerance = 1\nrefit = false\nruns_dir = "out"\n')
    expected = {"budget": "macs=30%", "seed": 3, "tolerance": 1, "refit": False, "runs_dir": "out"}
    assert load(path) == expected


def test_json_says_the_same_as_toml(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"seed": 3, "compress": {"refit": False}}))
    assert load(path) == load(toml(tmp_path, "seed = 3\n[compress]\nrefit = false\n"))


def test_the_table_of_the_command_wins_over_the_top_and_other_tables_are_left_alone(tmp_path):
    path = toml(tmp_path, 'seed = 1\nbudget = "a"\n[compress]\nseed = 2\n[inspect]\nnonsense = 1\n')
    assert load(path) == {"seed": 2, "budget": "a"}


def test_an_option_may_be_named_like_another_command(tmp_path):
    path, known = toml(tmp_path, 'device = "pixel4"\n[inspect]\nseed = 1\n'), {"device": str}
    assert load_settings(path, "bench", known=known, commands=("bench", "device", "inspect")) == {
        "device": "pixel4"
    }
    with pytest.raises(ConfigError, match="unknown: inspect"):
        load(toml(tmp_path, "inspect = 3\n"))


def test_dashes_may_be_written_as_in_flags(tmp_path):
    assert load(toml(tmp_path, 'rank-selection = "energy"\n')) == {"rank_selection": "energy"}


def test_one_option_in_both_spellings_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="rank-selection"):
        load(toml(tmp_path, 'rank-selection = "energy"\nrank_selection = "exact"\n'))


def test_a_list_is_the_text_a_flag_would_take(tmp_path):
    assert load(toml(tmp_path, "mean = [0.5, 0.25]\n")) == {"mean": "0.5,0.25"}


def test_a_list_stays_one_where_a_flag_may_be_given_several_times(tmp_path):
    assert load(toml(tmp_path, 'serial = ["a", "b"]\n')) == {"serial": ["a", "b"]}


def test_all_faults_are_reported_in_one_line_with_the_known_names(tmp_path):
    path = toml(tmp_path, 'seed = "three"\nrefit = 1\nbugdet = "macs=30%"\ncolour = "red"\n')
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), "bugdet, colour", *KNOWN, 'seed = "three"', "refit = 1"):
        assert part in message


@pytest.mark.parametrize(
    "line",
    ['seed = "3"', "seed = 1.5", "seed = true", "refit = 0", "budget = 50", "model = {a = 1}", "seed = [1]"],
)
def test_a_wrong_type_is_refused_even_where_it_could_be_converted(tmp_path, line):
    with pytest.raises(ConfigError, match=line.split()[0]):
        load(toml(tmp_path, line + "\n"))


@pytest.mark.parametrize("content", ['{"seed": 1, "seed": 2}', '{"compress": {"seed": 1, "seed": 1}}'])
def test_a_key_that_is_there_twice_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ConfigError, match=r"a\.json.*'seed' is there twice"):
        load(tmp_path / "a.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_are_not_finite_are_refused(tmp_path, number):
    (tmp_path / "a.json").write_text(f'{{"tolerance": {number}}}')
    with pytest.raises(ConfigError, match=r"tolerance = .*: is not a finite number"):
        load(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"seed = "),
        ("a.json", b"{"),
        ("a.json", b"[1]"),
        ("a.toml", b"\xff\xfe"),
        ("a.toml", b"compress = 1"),
    ],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load(tmp_path / "none.toml")


@settings(max_examples=25)
@given(
    options=st.fixed_dictionaries(
        {},
        optional={
            "model": st.text("abc:_", min_size=1),
            "seed": st.integers(0, 2**31),
            "refit": st.booleans(),
            "tolerance": st.floats(0, 1e6),
            "classes": st.none() | st.integers(1, 1000),
        },
    )
)
def test_a_run_gives_its_options_back(tmp_path_factory, options):
    runs_dir = tmp_path_factory.mktemp("runs")
    with create_run(runs_dir, command="compress", options=options, seed=0, inputs={}) as run:
        pass
    given_options = {key: value for key, value in options.items() if value is not None}
    assert load(run.path / "run.json") == given_options
    assert load(run.path) == given_options


def test_the_run_of_another_command_is_refused(tmp_path):
    with create_run(tmp_path, command="inspect", options={"model": "zoo:a"}, seed=0, inputs={}) as run:
        pass
    with pytest.raises(ConfigError, match="'inspect'"):
        load(run.path)
