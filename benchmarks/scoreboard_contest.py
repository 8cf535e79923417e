"""One network on one runtime: every method makes its networks, then all files are measured together."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scoreboard_answers import judged
from scoreboard_journal import Journal, Row, command
from scoreboard_knob import Trial, fitting, foretold, turn
from scoreboard_measure import Stopwatch
from scoreboard_methods import Variant, variants
from scoreboard_names import COMPRESSED, DENSE, INT8, OURS, OURS_INT8
from scoreboard_recovery import recovered
from scoreboard_scene import Scene, table_for
from torch import nn

from edgecompress.errors import BudgetError, ExportError
from edgecompress.pipeline.evaluate import batch_size


@dataclass(frozen=True)
class _Way:
    """A network that one way of using a method has made for a point."""

    network: nn.Module
    share: float
    """Of the dense network's time, in its trial."""


@dataclass(frozen=True)
class Contest:
    """A network, where it runs, and what is known already."""

    scene: Scene
    runtime: str
    journal: Journal
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    """By method and variant."""

    def hold(self) -> None:
        """Adds all rows that are missing."""
        wanted = self.scene.options.methods
        for method in (one for one in COMPRESSED if one in wanted):
            for point in self.scene.options.points:
                if self._found(method, point) is None:
                    self._add(method, point, self._competed(method, point))
        for method, point in self._without_knob():
            if method in wanted and self._found(method, point) is None:
                self._add(method, point, self._as_it_is(method, point))
        self._measure_all()
        if self.scene.options.minutes > 0:
            self._recover_all()

    def _without_knob(self) -> Iterator[tuple[str, float | None]]:
        yield DENSE, None
        yield INT8, None
        for point in self.scene.options.points:
            yield OURS_INT8, point

    def _about(self, kind: str, method: str, point: float | None) -> dict[str, Any]:
        place = {"model": self.scene.name, "runtime": self.runtime}
        return {"kind": kind, **place, "method": method, "point": point}

    def _found(self, method: str, point: float | None) -> Row | None:
        return self.journal.find(**self._about("network", method, point))

    def _add(self, method: str, point: float | None, row: Row) -> None:
        about = self._about("network", method, point)
        self.journal.add(about | row | {"repeat": self._command(method, point)})
        share, top1 = row.get("trial_share"), row.get("top1")
        print(f"{method} at {point}: {share}, {top1}", file=sys.stderr, flush=True)

    def _command(self, method: str, point: float | None, *more: str) -> str:
        scene = self.scene
        files = [scene.model.weights, scene.model.data, scene.model.report_data]
        named = [one for name in files if name for one in (f"--{name.replace('_', '-')}", name.upper())]
        points = [] if point is None else ["--points", f"{point:g}"]
        methods = ["--methods", *([f"'{OURS}'"] if method == OURS_INT8 else []), f"'{method}'"]
        where = ["--models", scene.name, "--runtimes", self.runtime]
        limits = [] if scene.options.variants is None else ["--variants", str(scene.options.variants)]
        return command([*where, *methods, *points, *limits, *named, *more])

    # Networks

    def _competed(self, method: str, point: float) -> Row:
        """Returns the row of a method at a point: of its variants the one nearest to the dense network."""
        start, table = time.monotonic(), table_for(self.runtime, self.scene.options)
        found: list[tuple[float, Variant, Trial]] = []
        told: dict[str, list[tuple[float, float | None]]] = {}
        for variant in variants(method, self.scene, table):
            trials = self._turned(method, variant)
            told[variant.name] = [(one.knob, one.share) for one in trials]
            best = fitting(trials, point)
            if best is not None:
                found.append((self.scene.distance(variant.make(best.knob)), variant, best))
        row: Row = {"trials": told, "table": table.rpartition("/")[2] if method == OURS else None}
        if found:
            distance, variant, trial = min(found, key=lambda one: one[0])
            network = variant.make(trial.knob)
            self.watch.write(network, self.watch.file(f"{method}-{point:g}"))
            row |= {"variant": variant.name, "knob": trial.knob, "trial_share": trial.share}
            row |= {"distance": distance, **self._judged(network)}
        return row | {"seconds": round(time.monotonic() - start, 1)}

    @property
    def watch(self) -> Stopwatch:
        """Exports and times."""
        kept: Stopwatch = self.scene.kept.setdefault(
            f"watch {self.runtime}", Stopwatch(self.scene, self.runtime)
        )
        return kept

    def _turned(self, method: str, variant: Variant) -> list[Trial]:
        """Returns the trials for all points: one that was made for a point may be the best for another."""
        key = f"{method} {variant.name}"
        if key in self.trials:
            return self.trials[key]

        def share(knob: float) -> float | None:
            try:
                return self.watch.share(variant.make(knob))
            except (BudgetError, ExportError) as error:
                print(f"{key} at {knob:.3f}: {error}", file=sys.stderr, flush=True)
                return None

        found: list[Trial] = []
        for point in self.scene.options.points:
            start = None if variant.predicted is None else foretold(variant.predicted, point)
            found = turn(share, point, found, start=start, tries=self.scene.options.tries)
        self.trials[key] = found
        return found

    def _judged(self, network: nn.Module) -> Row:
        size = batch_size(self.scene.shape)
        return judged(network.eval(), self.scene.report, size) | self.scene.sizes(network)

    def _as_it_is(self, method: str, point: float | None) -> Row:
        if method == DENSE:
            assert self.watch.dense.is_file()
            return self._judged(self.scene.loaded.module)
        network = self.scene.loaded.module if method == INT8 else self._network(OURS, point)
        return {} if network is None else self._in_int8(network, method, point)

    def _in_int8(self, network: nn.Module, method: str, point: float | None) -> Row:
        file = self.watch.file(method if point is None else f"{method}-{point:g}")
        self.watch.write_int8(network, file)
        return self.scene.sizes(network) | self.watch.judged(file)

    def _network(self, method: str, point: float | None) -> nn.Module | None:
        """Returns the network of a row that was written before, made again; None: there is none."""
        row = self._found(method, point)
        if row is None or "knob" not in row:
            return None
        table = table_for(self.runtime, self.scene.options)
        known = {one.name: one for one in variants(method, self.scene, table)}
        return known[row["variant"]].make(row["knob"])

    # What all of them get

    def _measure_all(self) -> None:
        """Measures all files in one run, unless there is a measurement of each."""
        about = {"model": self.scene.name, "runtime": self.runtime}
        rows = [row for row in self.journal.every(kind="network", **about) if "top1" in row]
        if all(self.journal.find(**row | {"kind": "measured"}) for row in rows):
            return
        files = {}
        for row in rows:
            method, point = row["method"], row["point"]
            if method != DENSE:
                files[method, point] = self.watch.file(method if point is None else f"{method}-{point:g}")
        found = self.watch.measured(list(files.values()), self.scene.options.preset)
        keys = [(DENSE, None), *files]
        for (method, point), one in zip(keys, found, strict=True):
            self.journal.add(self._about("measured", method, point) | one | {"files": len(keys)})

    def _recover_all(self) -> None:
        for point in self.scene.options.points:
            for method in (one for one in COMPRESSED if one in self.scene.options.methods):
                self._recover(method, point)

    def _recover(self, method: str, point: float) -> None:
        minutes = self.scene.options.minutes
        about = self._about("recovered", method, point) | {"minutes": minutes}
        ways = {} if self.journal.find(**about) else self._ways(method, point)
        if not ways:
            return
        start = time.monotonic()
        made = recovered({name: one.network for name, one in ways.items()}, self.scene, minutes)
        told = {"variant": made.way, "trial_share": ways[made.way].share}
        told |= {"training": made.training, "steps": made.steps}
        told |= {"seconds": round(time.monotonic() - start, 1)}
        told |= {"repeat": self._command(method, point, "--minutes", f"{minutes:g}")}
        row = self._judged(made.module)
        self.journal.add(about | row | told)
        print(f"{method} at {point}, trained: {row['top1']}", file=sys.stderr, flush=True)
        if method == OURS and OURS_INT8 in self.scene.options.methods:
            file = self.watch.file(f"{OURS_INT8}-{point:g}-trained")
            self.watch.write_int8(made.module, file)
            row = self.scene.sizes(made.module) | self.watch.judged(file)
            self.journal.add(about | {"method": OURS_INT8} | row | told)

    def _ways(self, method: str, point: float) -> dict[str, _Way]:
        """Returns the networks that reach a point by a row that was written before, made again."""
        row = self._found(method, point)
        table = table_for(self.runtime, self.scene.options)
        found = {}
        told = {} if row is None else row["trials"]
        for variant in variants(method, self.scene, table):
            trials = [Trial(*one) for one in told.get(variant.name, ())]
            best = fitting(trials, point)
            if best is not None and best.share is not None:
                found[variant.name] = _Way(variant.make(best.knob), best.share)
        return found
