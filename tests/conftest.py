"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# how long an example takes tells of the machine's load, not of the code
settings.register_profile("house", deadline=None)
settings.load_profile("house")

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Real traces of others, beside the checkout; tests that want them are skipped where they are absent."""
    folder = CHECKOUT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("no real traces in ../shared/traces")
    return folder
