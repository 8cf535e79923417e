"""What `edgecompress list` reads from source is what the modules say when they are imported."""

import subprocess
import sys

import pytest

from edgecompress import factors, methods
from edgecompress.core.plugins import described, discover
from edgecompress.data import readers
from edgecompress.data.sources import Reader
from edgecompress.factors.contract import Factors
from edgecompress.methods.contract import Method
from edgecompress.search import ranks, unit_scores
from edgecompress.search.contract import Selection
from edgecompress.search.score_contract import Scores
from edgecompress.train import methods as train_methods
from edgecompress.train import optimisers
from edgecompress.train.contract import TrainMethod
from edgecompress.train.optimiser_contract import Optimiser

KINDS = [
    (methods, Method),
    (train_methods, TrainMethod),
    (factors, Factors),
    (ranks, Selection),
    (unit_scores, Scores),
    (optimisers, Optimiser),
    (readers, Reader),
]


@pytest.mark.parametrize(("package", "kind"), KINDS, ids=lambda one: one.__name__)
def test_source_and_modules_say_the_same(package, kind):
    imported = {name: one.summary for name, one in discover(package, kind).items()}
    assert {name: texts[0] for name, texts in described(package, kind.__name__).items()} == imported
    assert imported
    assert not [name for name, text in imported.items() if text.startswith("the same with")]  # as what?


def test_ways_to_train_name_their_papers():
    told = described(train_methods, "TrainMethod")
    assert {name: texts[1] for name, texts in told.items()} == {
        name: one.paper for name, one in discover(train_methods, TrainMethod).items()
    }
    assert all(paper for name, (_, paper) in told.items() if name != "plain")


@pytest.mark.parametrize(
    "kind", ["methods", "factors", "rank-selections", "scores", "optimisers", "data", "devices"]
)
def test_a_list_does_not_wait_for_torch(kind):
    code = f"""
import sys
from edgecompress.pipeline.listing import list_kind
assert list_kind({kind!r}).items
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
