"""Four gloo processes, started once for all exercises; none outlives the command."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from tracelens.capture.toys.catalog import EXERCISES
from tracelens.capture.toys.exercise import WORLD_SIZE
from tracelens.capture.toys.truth import render_truth
from tracelens.capture.toys.worker import Assignment, Report, run_worker
from tracelens.errors import TraceLensError


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


class ExerciseError(TraceLensError):
    """An exercise that could not run to its end."""


def run_exercises(names: Sequence[str], *, trace_folder: Path | None = None) -> list[Outcome]:
    """Run exercises one after the other on four processes.

    Args:
        names: keys of the catalog.
        trace_folder: where traces and `truth.toml` go, in a folder per exercise if there are several; without
            it nothing is traced.

    Raises:
        ExerciseError: a process failed or died; the others are stopped.
    """
    folders = {name: trace_folder / name if len(names) > 1 else trace_folder for name in names if trace_folder}
    with tempfile.TemporaryDirectory(prefix="tracelens-toys-") as scratch:
        assignments = [
            Assignment(
                rank=rank,
                rendezvous=str(Path(scratch) / "store"),
                log=str(Path(scratch) / f"rank{rank}.log"),
                names=tuple(names),
                trace_folders={name: str(folder) for name, folder in folders.items()},
            )
            for rank in range(WORLD_SIZE)
        ]
        outcomes = _run_workers(assignments)
    for outcome in outcomes:
        if outcome.name in folders:
            truth = render_truth(EXERCISES[outcome.name], [report.sent for report in outcome.reports])
            (folders[outcome.name] / "truth.toml").write_text(truth, encoding="utf-8")
    return outcomes


def _run_workers(assignments: Sequence[Assignment]) -> list[Outcome]:
    # spawn: a forked child would share the threads and locks of PyTorch
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    readers: list[Any] = []
    try:
        for assignment in assignments:
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=run_worker, args=(assignment, writer), daemon=True)
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        return _collect(assignments, readers, processes)
    finally:
        for reader in readers:
            reader.close()
        _stop(processes)


def _collect(assignments: Sequence[Assignment], readers: list[Any], processes: list[BaseProcess]) -> list[Outcome]:
    """Read reports until every rank has sent all of its own."""
    names = assignments[0].names
    reports: dict[str, dict[int, Report]] = {name: {} for name in names}
    waiting: dict[Any, int] = {reader: rank for rank, reader in enumerate(readers)}
    while waiting:
        for reader in wait(list(waiting)):
            rank = waiting[reader]
            report = _receive(reader, assignments[rank], processes[rank])
            reports[report.name][rank] = report
            if all(rank in reports[name] for name in names):
                del waiting[reader]
    return [
        Outcome(
            name=name,
            title=EXERCISES[name].title,
            reports=tuple(by_rank[rank] for rank in sorted(by_rank)),
        )
        for name, by_rank in reports.items()
    ]


def _receive(reader: Any, assignment: Assignment, process: BaseProcess) -> Report:
    try:
        report = reader.recv()
    except EOFError:
        process.join()
        last_words = Path(assignment.log).read_text(errors="replace")[-2000:] if process.exitcode else ""
        raise ExerciseError(
            f"the process of rank {assignment.rank} died with exit code {process.exitcode}\n{last_words}".strip(),
            hint="an exit code of -9 often means too little memory",
        ) from None
    if report.error is not None:
        raise ExerciseError(f"`{report.name}` failed on rank {assignment.rank}:\n{report.error}")
    return report


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join(timeout=2)
        if process.is_alive():
            process.kill()
            process.join()
