"""Every command of the README and of docs/ is one the command line understands; examples in them work."""

import re
import shlex
from pathlib import Path

import pytest
from cli_calls import run
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.search import ranks

HOME = Path(__file__).parents[1]
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
PLACEHOLDERS = {"RUN", "NAME", "MODEL", "TABLE", "FILE"}


def commands_of(text):
    """Returns the indented commands, continued lines joined and comments cut off."""
    joined = text.replace("\\\n", " ")
    lines = re.findall(r"^    ((?:torchrun .*-m )?edgecompress [^\n]*)$", joined, flags=re.MULTILINE)
    return [" ".join(line.split("#")[0].split()) for line in lines]


COMMANDS = sorted({(page.name, line) for page in PAGES for line in commands_of(page.read_text("utf-8"))})


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_of_the_docs_is_understood(page, line):
    words = shlex.split(line.partition("edgecompress ")[2])
    group = get_command(app)
    if words and words[0] in group.commands and hasattr(group.commands[words[0]], "commands"):
        group = group.commands[words.pop(0)]
    assert words[0] in group.commands, f"{page}: {line}"
    command = group.commands[words[0]]
    with command.make_context(words[0], words[1:], resilient_parsing=False) as context:
        assert context.params


def test_there_are_commands_on_most_pages():
    assert len(COMMANDS) > 40
    assert len({page for page, _ in COMMANDS}) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_first_method_of_the_docs_works(tmp_path, monkeypatch):
    (code,) = re.findall(
        r"```python\n(.*?)```", (HOME / "docs" / "extending.md").read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "half_energy.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(ranks, "__path__", [*ranks.__path__, str(tmp_path)])
    listed = run("list", "rank-selections")
    assert "half-energy" in listed.stdout
    monkeypatch.chdir(tmp_path)
    options = ("--budget", "macs=60%", "--factors", "plain", "--no-refit", "--report-images", "50", "--json")
    done = run("compress", "zoo:fashion_resnet", "--rank-selection", "half-energy", *options)
    assert done.exit_code == 0, done.stderr
    assert '"family": "S4(1)"' in done.stdout
