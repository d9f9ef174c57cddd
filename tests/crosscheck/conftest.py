"""HTA is an extra: tests that ask for it are skipped without it."""

from __future__ import annotations

import pytest

from tracelens.crosscheck.neighbour import require_hta
from tracelens.errors import MissingExtraError


@pytest.fixture(scope="session", autouse=False)
def hta() -> None:
    try:
        require_hta()
    except MissingExtraError:
        pytest.skip("HolisticTraceAnalysis is not installed (extra hta)")
