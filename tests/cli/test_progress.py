"""The progress bar shows itself late, only to people, and leaves nothing behind."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import progress
from tracelens.cli.progress import reading_progress


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that moves when the test says so."""
    monkeypatch.setenv("TERM", "xterm")
    now = [0.0]

    def advance(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return advance


def test_a_job_under_a_second_shows_nothing(wait: Callable[[float], None]) -> None:
    terminal = Terminal()
    with reading_progress(100, terminal, wanted=True) as report:
        assert report is not None
        wait(0.9)
        report(Path("a"), 100)
    assert terminal.getvalue() == ""


def test_a_longer_job_shows_a_bar(wait: Callable[[float], None]) -> None:
    terminal = Terminal()
    with reading_progress(100, terminal, wanted=True) as report:
        assert report is not None
        report(Path("a"), 10)
        wait(1.1)
        report(Path("a"), 50)
        report(Path("b"), 20)
    assert "reading" in terminal.getvalue()
    assert "70/100" in terminal.getvalue()


def test_nobody_is_shown_a_bar_that_he_did_not_want() -> None:
    terminal = Terminal()
    with reading_progress(100, terminal, wanted=False) as report:
        assert report is None
    assert terminal.getvalue() == ""


def test_a_log_file_gets_no_bar() -> None:
    with reading_progress(100, io.StringIO(), wanted=True) as report:
        assert report is None
