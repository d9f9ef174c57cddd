"""Whom the parent blames when several processes of an exercise fail: the first, whoever is heard first."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch"),
]

PEER_LOST = "RuntimeError: Connection closed by peer"


def _report(error: str | None = None, *, failed_at: float | None = None) -> Any:
    from tracelens.capture.toys.worker import Report

    return Report(name="zero", error=error, failed_at=failed_at)


def killed_after_its_peers_were_heard(assignment: Any, results: Any) -> None:
    """Rank 2 has an unread report when it is killed; the others notice before the system has ended it."""
    results.send(_report())
    if assignment.rank == 2:
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGKILL)
    results.send(_report(PEER_LOST, failed_at=time.monotonic()))


def fails_first_and_is_heard_last(assignment: Any, results: Any) -> None:
    """Rank 3 fails at second 1 of some clock, its peers later; its report comes after theirs."""
    if assignment.rank == 3:
        time.sleep(0.7)
        results.send(_report("ValueError: wrong shape", failed_at=1.0))
    else:
        results.send(_report(PEER_LOST, failed_at=2.0))


def dies_after_its_word(assignment: Any, results: Any) -> None:
    """Peers that lost their connection may crash while they end; the cause is still the first failure."""
    if assignment.rank == 1:
        results.send(_report("ValueError: wrong shape", failed_at=1.0))
        return
    results.send(_report(PEER_LOST, failed_at=2.0))
    os.kill(os.getpid(), signal.SIGABRT)


@pytest.mark.parametrize(
    ("target", "blamed"),
    [
        (killed_after_its_peers_were_heard, "the process of rank 2 died with exit code -9"),
        (fails_first_and_is_heard_last, "`zero` failed on rank 3\nValueError: wrong shape"),
        (dies_after_its_word, "`zero` failed on rank 1\nValueError: wrong shape"),
    ],
)
def test_the_cause_is_blamed_and_not_its_effects(
    monkeypatch: pytest.MonkeyPatch, target: Callable[[Any, Any], None], blamed: str
) -> None:
    from tracelens.capture.processes import ProcessError
    from tracelens.capture.toys import launch

    monkeypatch.setattr(launch, "run_worker", target)
    with pytest.raises(ProcessError) as caught:
        launch.run_exercises(["zero", "tp"])
    assert str(caught.value).startswith(blamed)
