"""The command line: help, flags, and what surrounds every command."""

import inspect
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import typer
from cli_calls import run, start

import edgecompress
from edgecompress.cli import bench as bench_command
from edgecompress.cli import compress as compress_commands
from edgecompress.cli import device as device_commands
from edgecompress.cli import export as export_command
from edgecompress.cli import look as look_commands
from edgecompress.cli import options as opt
from edgecompress.cli import prune as prune_command
from edgecompress.cli import quickstart as quickstart_command
from edgecompress.cli import search as search_commands
from edgecompress.cli import topology as topology_command
from edgecompress.cli.running import STOPPED, one_line_errors, running
from edgecompress.errors import ConfigError

COMMANDS = [
    "quickstart",
    "inspect",
    "compress",
    "prune",
    "search",
    "resume",
    "topology",
    "export",
    "bench",
    "report",
    "runs",
    "init",
    "device",
    "device show",
    "device prepare",
    "list",
    "doctor",
]

# Help


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_explains_the_command(command):
    result = run(*(command or "").split(), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("device", "doctor")])
def test_help_has_examples_on_lines_of_their_own(command):
    lines = run(*command.split(), "--help").stdout.splitlines()
    assert [line for line in lines if f"{line} ".startswith(f"    edgecompress {command} ")]


def test_help_comes_within_half_a_second():
    def cpu_seconds():
        before = os.times()
        assert start("compress", "--help").returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # processor time, because on a busy machine the clock measures the neighbours
    assert min(cpu_seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_does_not_wait_for_torch(command):
    args = [*(command or "").split(), "--help"]
    code = f"""
import sys
import time
from edgecompress.cli.main import app
try:
    app({args!r})
except SystemExit as end:
    assert end.code == 0
print([name for name in ("torch", "numpy", "rich", "pydantic") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version_is_that_of_the_package():
    assert run("--version").stdout == f"edgecompress {edgecompress.__version__}\n"
    assert start("--version").stdout == f"edgecompress {edgecompress.__version__}\n"


@pytest.mark.parametrize("args", [["no-such-command"], ["list"], ["compress", "--no-such-flag"]])
def test_wrong_usage_is_exit_code_2(args):
    assert run(*args).exit_code == 2


# Flags and keyword arguments


def cli_and_api():
    from edgecompress.pipeline.bench import bench
    from edgecompress.pipeline.compress import compress
    from edgecompress.pipeline.device import prepare, show
    from edgecompress.pipeline.elastic import export_sizes
    from edgecompress.pipeline.export import export
    from edgecompress.pipeline.inspect import inspect as inspect_model
    from edgecompress.pipeline.prune import prune
    from edgecompress.pipeline.quickstart import quickstart
    from edgecompress.pipeline.resume import resume
    from edgecompress.pipeline.search import search
    from edgecompress.pipeline.topology import topology

    return {
        "compress": (compress_commands.compress, compress),
        "prune": (prune_command.prune, prune),
        "quickstart": (quickstart_command.quickstart, quickstart),
        "search": (search_commands.search, search),
        "resume": (search_commands.resume, resume),
        "topology": (topology_command.topology, topology),
        "inspect": (look_commands.inspect, inspect_model),
        "export": (export_command.export, export),
        "export --sizes": (export_command.export, export_sizes),
        "bench": (bench_command.bench, bench),
        "device show": (device_commands.show, show),
        "device prepare": (device_commands.prepare, prepare),
    }


ONLY_IN_CLI = {"config", "as_json", "open_page"}
ONLY_IN_API = {"progress", "directory", "resuming"}
FLAGS_OF = {"formats": ("onnx", "tflite"), "precisions": ("fp16", "int8"), "serials": ("serial",)}
"""Arguments that are several flags, or one given several times."""


FLAGS_OF_OTHERS = {
    "inspect": {"runs_dir"},
    "export": {"sizes", "rank_selection", "mode", "layers", "latency_table", "norm_images", "report_images"},
    "export --sizes": {"dense"},
}
"""Of one command that is two functions, those of the other; and what finds a run by its name."""


@pytest.mark.parametrize("command", sorted(cli_and_api()))
def test_flags_and_keyword_arguments_have_the_same_names_and_defaults(command):
    cli, api = (inspect.signature(function).parameters for function in cli_and_api()[command])
    only_in_cli = ONLY_IN_CLI | FLAGS_OF_OTHERS.get(command, set())
    flags = {flag for name in set(api) - ONLY_IN_API for flag in FLAGS_OF.get(name, (name,))}
    assert set(cli) - only_in_cli == flags
    for name in set(cli) & set(api) - {"model", "sizes"}:
        as_typed = cli[name].default
        if isinstance(api[name].default, tuple):
            as_typed = opt.parse_names(as_typed)
        assert as_typed == api[name].default, name


def test_without_a_flag_export_writes_all_formats_in_float32():
    cli, api = (inspect.signature(function).parameters for function in cli_and_api()["export"])
    assert not any(cli[flag].default for flags in FLAGS_OF.values() for flag in flags if flag in cli)
    assert set(api["formats"].default) == set(FLAGS_OF["formats"])
    assert api["precisions"].default == ()


@pytest.mark.parametrize(
    ("text", "size"), [("224x160", (224, 160)), ("224,160", (224, 160)), (" 1 x 2 ", (1, 2)), (None, None)]
)
def test_sizes_are_height_and_width(text, size):
    assert opt.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "224", "0x5", "-1x5", "axb", "1x2x3", "1.5x2"])
def test_a_size_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="224x224"):
        opt.parse_size(text)


def test_numbers_and_names_are_separated_by_commas():
    assert opt.parse_numbers("0.5, 0.25", flag="--mean") == (0.5, 0.25)
    assert opt.parse_numbers(None, flag="--mean") is None
    assert opt.parse_names("S1, S4(8),") == ("S1", "S4(8)")
    assert opt.parse_names(None) == ()
    with pytest.raises(ConfigError, match="--mean"):
        opt.parse_numbers("0.5,,1", flag="--mean")


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        (None, None),
        ("any", ()),
        ("7", (7,)),
        ("4-7", (4, 5, 6, 7)),
        ("0,2-3", (0, 2, 3)),
        (" 3 , 1-2,2 ", (1, 2, 3)),
        ("5-5", (5,)),
    ],
)
def test_cores_are_numbers_and_ranges(text, cores):
    assert bench_command.parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", "big", "7-4", "-1", "1-", "1,,2", "1.5", "0x3", "1 2", "4096"])
def test_cores_that_are_none_are_refused_with_examples(text):
    with pytest.raises(ConfigError, match="4-7"):
        bench_command.parse_cores(text)


# What surrounds a command


def test_an_error_of_several_lines_is_shown_in_one(capsys):
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        raise ConfigError("model: first\n   second")
    assert caught.value.exit_code == 1
    assert capsys.readouterr() == ("", "edgecompress: model: first second\n")


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), one_line_errors():
        raise ZeroDivisionError


def test_stopping_is_one_line_and_exit_code_130(capsys):
    with pytest.raises(typer.Exit) as caught, running():
        raise KeyboardInterrupt
    assert caught.value.exit_code == STOPPED == 130
    assert capsys.readouterr() == ("", "edgecompress: stopped\n")


class _SlowToGo:
    """As LiteRT's interpreter: something is done when it is thrown away, and Ctrl-C comes meanwhile."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_something_is_thrown_away_stops_all_the_same(capsys):
    with pytest.raises(typer.Exit) as caught, running():
        one = _SlowToGo()
        del one
        time.sleep(20)
    assert caught.value.exit_code == STOPPED
    assert capsys.readouterr() == ("", "edgecompress: stopped\n")


def test_other_faults_of_finalisers_are_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Faulty:
        def __del__(self):
            raise ZeroDivisionError

    with running():
        Faulty()
    assert [one.exc_type for one in told] == [ZeroDivisionError]
    assert sys.unraisablehook == told.append


def test_libraries_neither_warn_nor_write_to_stdout(capsys, monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    with running():
        warnings.warn("for programmers", stacklevel=1)
        sys.stdout.write("chatter\n")
    assert capsys.readouterr() == ("", "chatter\n")
