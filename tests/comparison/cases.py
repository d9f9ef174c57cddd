"""The runs of real framework code, measured once for all tests that hold them against ledgers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tests.ledger.test_framework_traces import LAYOUTS, model_of
from tracelens.cli.sides import Side
from tracelens.comparison.compare import Expectation
from tracelens.engine import summarize_all
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.ledger.layout import Layout
from tracelens.ledger.model import ModelSpec
from tracelens.measurement.measure import measure
from tracelens.trace.discover import discover

CASES = tuple(LAYOUTS)


@functools.lru_cache(maxsize=32)
def read_case(folder: Path) -> Side:
    """Summaries, measurement and inference of a folder."""
    ranks = summarize_all(discover([str(folder)])).ranks
    reasoning = reason(ranks)
    return Side(label_measurement(measure(ranks), reasoning), reasoning.inference, ranks, None, folder.name)


def case_folder(traces: Path, case: str) -> Path:
    return traces / "framework" / case


def stated_model(traces: Path, case: str) -> ModelSpec:
    """The model that the case's truth states."""
    return model_of(json.loads((case_folder(traces, case) / "truth.json").read_text()))


def stated(traces: Path, case: str, layout: Layout | None = None) -> Expectation:
    """Model and layout as the case's script chose them."""
    return Expectation(model=stated_model(traces, case), layout=layout or LAYOUTS[case])
