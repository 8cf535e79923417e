"""JSON and TOML: plans, runs, results, tables, journals, genotypes, devices and settings."""

from __future__ import annotations

import functools
import io
import json
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from made_curves import RECOVER, TRAIN
from pydantic import BaseModel
from rich.console import Console
from test_report import BENCH, COMPRESS, EXPORT, PRUNE
from test_search_report import FOUND

from edgecompress.cli.compress import compress
from edgecompress.core.config import load_settings
from edgecompress.core.genotype import code_of
from edgecompress.core.latency_table import LatencyTable, table_hash
from edgecompress.core.memo import Memo
from edgecompress.core.runs import RUN_FILE, create_run, latest_run, read_run
from edgecompress.core.store import write_record
from edgecompress.core.unfinished import Begun
from edgecompress.devices.files import load_device, shipped_directory
from edgecompress.latency.journal import Journal, journal_path, read_entries
from edgecompress.latency.lookup import make_lookup
from edgecompress.nets.artefact import PLAN_FILE, load
from edgecompress.nets.cell_networks import derived_network, read_genotype
from edgecompress.pipeline.latency_files import diff, read_table, show, table_heading
from edgecompress.pipeline.report import report
from edgecompress.pipeline.run_list import list_runs
from edgecompress.report.html import report_page
from edgecompress.report.markdown import report_markdown
from edgecompress.report.text import render
from fuzz.contract import Format
from fuzz.edits import Tree, damaged_bytes, damaged_json, damaged_text, damaged_toml
from fuzz.good_records import (
    CELLS_PLAN,
    GENOTYPES,
    PLAN,
    TABLE,
    TOPOLOGY,
    dense_net,
    write_artefact,
)


def _json(*records: BaseModel) -> Callable[[], SearchStrategy[bytes]]:
    texts = [record.model_dump_json() for record in records]
    return lambda: st.sampled_from(texts).flatmap(damaged_json)


def _shown(record: BaseModel) -> None:
    Console(file=io.StringIO(), width=80, highlight=False).print(render(record))


# Artefacts


def _load_given(folder: Path) -> None:
    load(folder, model=dense_net())


def _write_cells(folder: Path) -> None:
    from edgecompress.nets.artefact import save_artefact

    save_artefact(folder, CELLS_PLAN, derived_network(GENOTYPES[0]))


# Runs


def _write_run(folder: Path, command: str, name: str, result: BaseModel) -> None:
    options = {"model": "zoo:tiny", "data": "photos", "seed": 0}
    with create_run(folder, command=command, name="one", options=options, seed=0, inputs={}) as run:
        write_record(run.directory / name, result)
        write_record(run.directory / PLAN_FILE, PLAN)
        write_record(run.directory / "exports" / "export.json", EXPORT)
        write_record(run.directory / "bench-local.json", BENCH)


RUNS = {
    "search": ("search.json", FOUND),
    "compress": ("result.json", COMPRESS),
    "prune": ("result.json", PRUNE),
    "topology": ("topology.json", TOPOLOGY),
    "train": ("result.json", TRAIN),
    "recover": ("result.json", RECOVER),
}


def _read_run(folder: Path) -> None:
    _shown(list_runs(runs_dir=folder))
    read_run(folder / "one")
    latest_run(folder)
    load_settings(folder / "one", "compress", known=_options(), commands=["compress", "export"])


def _read_report(folder: Path) -> None:
    found = report([str(folder / "one")], networks=False, runs_dir=folder)
    _shown(found)
    report_markdown(found)
    report_page(found)


def _run_format(command: str, damaged: str, record: BaseModel | None = None) -> Format:
    name, result = RUNS[command]
    good = record or result
    return Format(
        f"run-{command}-{damaged.replace('/', '-')}",
        f"one/{damaged}",
        _json(good),
        _read_report,
        functools.partial(_write_run, command=command, name=name, result=result),
        weight=0.3,
        quick=4,
    )


def _run_json(folder: Path) -> None:
    _write_run(folder, "compress", "result.json", COMPRESS)


@functools.cache
def _good_run_json() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        _run_json(Path(name))
        return (Path(name) / "one" / RUN_FILE).read_text()


# Unfinished runs


BEGUN = Begun(
    name="one",
    command="search",
    options={"model": "zoo:nothing", "input_size": [8, 8], "methods": ["lowrank"], "mean": None},
    inputs={},
    version="0",
    directory="/",
    overwrite=False,
)
NUMBERS = '["loss of a", 1.5]\n["loss of b", 2.5]\n["c", NaN]\n'


def _resume(folder: Path) -> None:
    from edgecompress.pipeline.resume import resume

    resume("one", runs_dir=folder)


def _read_memo(folder: Path) -> None:
    Memo(folder).number("loss of a", lambda: 1.0)


# Tables


def _sealed(tree: Tree) -> Tree:
    """Makes the hash of a damaged table fit, so that the damage is not found by it."""
    if not isinstance(tree, dict) or "sha256" not in tree:
        return tree
    try:
        fields = LatencyTable.__pydantic_validator__.validate_json(
            json.dumps({**tree, "sha256": ""}), strict=None
        )
    except ValueError as error:
        fitting = [one for one in error.errors() if "hash" in one["msg"]]  # type: ignore[attr-defined]
        return _hashed(tree) if fitting else tree
    return {**tree, "sha256": table_hash(fields)}


def _hashed(tree: Tree) -> Tree:
    """Builds the table without the check of its hash, and hashes it."""
    fields = {name: field.annotation for name, field in LatencyTable.model_fields.items()}
    from pydantic import TypeAdapter, ValidationError

    try:
        built = {
            name: TypeAdapter(kind).validate_json(json.dumps(tree[name]))
            for name, kind in fields.items()
            if name in tree and name != "sha256"
        }
        return {**tree, "sha256": table_hash(LatencyTable.model_construct(**built, sha256=""))}
    except (ValidationError, AttributeError, TypeError):
        return tree


def _table() -> SearchStrategy[bytes]:
    return damaged_json(TABLE.model_dump_json(), seal=_sealed)


def _write_table(folder: Path) -> None:
    write_record(folder / "good.json", TABLE)


def _read_table(folder: Path) -> None:
    file = str(folder / "t.json")
    table = read_table(file)
    _shown(show(file))
    _shown(diff(file, str(folder / "good.json")))
    make_lookup(table)


def _journal() -> SearchStrategy[bytes]:
    lines = [table_heading(TABLE), *TABLE.entries]
    text = "".join(one.model_dump_json() + "\n" for one in lines)
    return st.one_of(
        damaged_text(text).map(lambda one: one.encode(errors="replace")), damaged_bytes(text.encode())
    )


def _read_journal(folder: Path) -> None:
    path = journal_path(folder / "t.json")
    read_entries(path)
    Journal(path, table_heading(TABLE))


# Genotypes


def _genotype_code() -> SearchStrategy[bytes]:
    return (
        st.sampled_from([code_of(one) for one in GENOTYPES])
        .flatmap(damaged_text)
        .map(lambda text: text.encode(errors="surrogatepass"))
    )


def _read_code(folder: Path) -> None:
    text = (folder / "code").read_text(encoding="utf-8", errors="surrogateescape")
    derived_network(read_genotype(text))


# Settings


@functools.cache
def _options() -> dict[str, object]:
    hints = typing.get_type_hints(compress)
    return {name: kind for name, kind in hints.items() if name not in ("return", "config")}


SETTINGS = {
    "model": "zoo:resnet20",
    "seed": 3,
    "budget": "macs=50%",
    "mean": [0.5, 0.5, 0.5],
    "compress": {"data": "photos", "refit": False, "calibration-images": 64, "batch_norm": "keep"},
    "export": {"int8": True},
}


def _read_settings(name: str) -> Callable[[Path], object]:
    return lambda folder: load_settings(
        folder / name, "compress", known=_options(), commands=["compress", "export"]
    )


@functools.cache
def _devices() -> list[Tree]:
    return [tomllib.loads(path.read_text()) for path in sorted(shipped_directory().glob("*.toml"))]


def _read_device(folder: Path) -> None:
    device = load_device(str(folder / "phone.toml"))
    _shown(device)


FORMATS = (
    Format("plan", PLAN_FILE, _json(PLAN), _load_given, write_artefact, weight=2),
    Format("plan-of-source", PLAN_FILE, _json(CELLS_PLAN), load, _write_cells, weight=0.5),
    Format(
        "run", f"one/{RUN_FILE}", lambda: damaged_json(_good_run_json()), _read_run, _run_json, weight=0.5
    ),
    *(_run_format(command, name) for command, (name, _) in RUNS.items()),
    _run_format("compress", "exports/export.json", EXPORT),
    _run_format("compress", "bench-local.json", BENCH),
    Format("begun", ".one.work/begun.json", _json(BEGUN), _resume),
    Format(
        "memo-numbers",
        "numbers.jsonl",
        lambda: damaged_text(NUMBERS).map(lambda text: text.encode(errors="replace")),
        _read_memo,
    ),
    Format("latency-table", "t.json", _table, _read_table, _write_table, weight=0.5, quick=8),
    Format("latency-journal", ".t.json.journal", _journal, _read_journal),
    Format(
        "genotype",
        "genotype.json",
        _json(*GENOTYPES),
        lambda f: derived_network(read_genotype(str(f / "genotype.json"))),
    ),
    Format("genotype-code", "code", _genotype_code, _read_code),
    Format("settings-toml", "s.toml", lambda: damaged_toml(SETTINGS), _read_settings("s.toml")),
    Format("settings-json", "s.json", lambda: damaged_json(json.dumps(SETTINGS)), _read_settings("s.json")),
    Format("device", "phone.toml", lambda: st.sampled_from(_devices()).flatmap(damaged_toml), _read_device),
)
