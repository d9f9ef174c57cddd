"""Say what every byte on the wire of a distributed PyTorch job is for.

Public names are resolved on first use, so that `import tracelens` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.compared import Comparison
    from tracelens.comparison.compare import Expectation, compare
    from tracelens.errors import TraceLensError
    from tracelens.inference.infer import infer
    from tracelens.inferred import Inference
    from tracelens.ledger.layout import Layout
    from tracelens.ledger.model import ModelSpec
    from tracelens.ledger.model_source import load_model
    from tracelens.ledger.predict import predict
    from tracelens.ledger.results import Ledger
    from tracelens.measurement.measure import measure
    from tracelens.results import Measurement
    from tracelens.summary import RankSummary
    from tracelens.trace.summarize import summarize

__version__ = "0.1.0.dev0"

__all__ = [
    "Comparison",
    "Expectation",
    "Inference",
    "Layout",
    "Ledger",
    "Measurement",
    "ModelSpec",
    "RankSummary",
    "TraceLensError",
    "__version__",
    "compare",
    "infer",
    "load_model",
    "measure",
    "predict",
    "summarize",
]

_HOMES = {
    "Comparison": "tracelens.compared",
    "Expectation": "tracelens.comparison.compare",
    "Inference": "tracelens.inferred",
    "Layout": "tracelens.ledger.layout",
    "Ledger": "tracelens.ledger.results",
    "Measurement": "tracelens.results",
    "ModelSpec": "tracelens.ledger.model",
    "RankSummary": "tracelens.summary",
    "TraceLensError": "tracelens.errors",
    "compare": "tracelens.comparison.compare",
    "infer": "tracelens.inference.infer",
    "load_model": "tracelens.ledger.model_source",
    "measure": "tracelens.measurement.measure",
    "predict": "tracelens.ledger.predict",
    "summarize": "tracelens.trace.summarize",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
