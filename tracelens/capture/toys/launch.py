"""Four gloo processes, started once for all exercises."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from tracelens.capture.processes import ProcessError, Worker, workers
from tracelens.capture.toys.catalog import EXERCISES
from tracelens.capture.toys.exercise import WORLD_SIZE
from tracelens.capture.toys.truth import render_truth
from tracelens.capture.toys.worker import Assignment, Report, run_worker

GRACE_S = 2.0
"""How long the cause of a failure may take to show after its first effect did."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that the ranks reported of one exercise."""

    name: str
    title: str
    reports: tuple[Report, ...]
    """By rank."""

    @property
    def passed(self) -> bool:
        """Whether every number of every rank is what it must be."""
        return all(check.passed for report in self.reports for check in report.checks)


def run_exercises(names: Sequence[str], *, trace_folder: Path | None = None) -> list[Outcome]:
    """Run exercises one after the other on four processes.

    Args:
        names: keys of the catalog.
        trace_folder: where traces and `truth.toml` go, in a folder per exercise if there are several; without
            it nothing is traced.

    Raises:
        ProcessError: a process failed or died; the others are stopped.
    """
    folders = {name: trace_folder / name if len(names) > 1 else trace_folder for name in names if trace_folder}
    with tempfile.TemporaryDirectory(prefix="tracelens-toys-") as scratch:
        assignments = [
            Assignment(
                rank=rank,
                rendezvous=str(Path(scratch) / "store"),
                names=tuple(names),
                trace_folders={name: str(folder) for name, folder in folders.items()},
            )
            for rank in range(WORLD_SIZE)
        ]
        with workers(run_worker, assignments, Path(scratch)) as running:
            outcomes = _collect(names, running)
    for outcome in outcomes:
        if outcome.name in folders:
            truth = render_truth(EXERCISES[outcome.name], [report.sent for report in outcome.reports])
            (folders[outcome.name] / "truth.toml").write_text(truth, encoding="utf-8")
    return outcomes


def _cause(running: Sequence[Worker], heard: Mapping[int, Report]) -> ProcessError:
    """Whom to blame: the peers of a rank that died or failed lose their connection, and are often heard first.

    Args:
        running: all processes, by rank.
        heard: the failures that were already read, by rank.
    """
    end = time.monotonic() + GRACE_S
    failures = dict(heard)
    for rank, worker in enumerate(running):
        worker.process.join(timeout=max(0.0, end - time.monotonic()))
        for report in _unread(worker):
            if report.error is not None:
                failures[rank] = report
    for rank, worker in enumerate(running):
        if worker.process.exitcode and rank not in failures:
            return worker.death(what=f"the process of rank {rank}")
    rank = min(failures, key=lambda rank: failures[rank].failed_at or 0.0)
    return ProcessError(f"`{failures[rank].name}` failed on rank {rank}\n{failures[rank].error}")


def _unread(worker: Worker) -> Iterator[Report]:
    """What a process sent and nobody read yet."""
    with contextlib.suppress(EOFError):
        while worker.results.poll():
            yield worker.results.recv()


def _collect(names: Sequence[str], running: Sequence[Worker]) -> list[Outcome]:
    """Read reports, in whatever order they come, until every rank has sent all of its own."""
    reports: dict[str, dict[int, Report]] = {name: {} for name in names}
    waiting = dict(enumerate(running))
    while waiting:
        ready = wait([worker.results for worker in waiting.values()])
        for rank in [rank for rank, worker in waiting.items() if worker.results in ready]:
            report = waiting[rank].receive(what=f"the process of rank {rank}")
            if report.error is not None:
                raise _cause(running, {rank: report})
            reports[report.name][rank] = report
            if all(rank in reports[name] for name in names):
                del waiting[rank]
    return [
        Outcome(name=name, title=EXERCISES[name].title, reports=tuple(by_rank[rank] for rank in sorted(by_rank)))
        for name, by_rank in reports.items()
    ]
