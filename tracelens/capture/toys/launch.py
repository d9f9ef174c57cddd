"""Four gloo processes, started once for all exercises; none outlives the command."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from tracelens.capture.toys.exercise import WORLD_SIZE
from tracelens.capture.toys.worker import Assignment, Report, run_worker
from tracelens.errors import TraceLensError


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that the ranks reported of one exercise."""

    name: str
    reports: tuple[Report, ...]
    """By rank."""

    @property
    def passed(self) -> bool:
        """Whether every number of every rank is what it must be."""
        return all(check.passed for report in self.reports for check in report.checks)


class ExerciseError(TraceLensError):
    """An exercise that could not run to its end."""


def run_exercises(names: Sequence[str], *, trace_folders: dict[str, Path] | None = None) -> list[Outcome]:
    """Run exercises one after the other on four processes.

    Args:
        names: keys of the catalog.
        trace_folders: where to write each exercise's traces; not traced where left out.

    Raises:
        ExerciseError: a process failed or died; the others are stopped.
    """
    # spawn: a forked child would share PyTorch's threads and locks
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="tracelens-toys-") as scratch:
        processes: list[BaseProcess] = []
        readers: list[Connection] = []
        try:
            for rank in range(WORLD_SIZE):
                reader, writer = context.Pipe(duplex=False)
                assignment = Assignment(
                    rank=rank,
                    rendezvous=str(Path(scratch) / "store"),
                    names=tuple(names),
                    trace_folders={name: str(folder) for name, folder in (trace_folders or {}).items()},
                )
                process = context.Process(target=run_worker, args=(assignment, writer), daemon=True)
                process.start()
                writer.close()
                processes.append(process)
                readers.append(reader)
            return _collect(names, readers, processes)
        finally:
            _stop(processes)


def _collect(names: Sequence[str], readers: list[Connection], processes: list[BaseProcess]) -> list[Outcome]:
    """Read reports until every rank has sent all of its own."""
    reports: dict[str, dict[int, Report]] = {name: {} for name in names}
    waiting = dict(enumerate(readers))
    while waiting:
        for reader in wait(list(waiting.values())):
            rank = next(rank for rank, own in waiting.items() if own is reader)
            try:
                report = waiting[rank].recv()
            except EOFError:
                processes[rank].join()
                raise ExerciseError(
                    f"process {rank} of {WORLD_SIZE} died with exit code {processes[rank].exitcode}",
                    hint="an exit code of -9 often means too little memory",
                ) from None
            if report.error is not None:
                raise ExerciseError(f"{report.name} failed on rank {rank}: {report.error}")
            reports[report.name][rank] = report
            if all(rank in reports[name] for name in names):
                del waiting[rank]
    return [
        Outcome(name=name, reports=tuple(by_rank[rank] for rank in sorted(by_rank)))
        for name, by_rank in reports.items()
    ]


def _stop(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join(timeout=2)
        if process.is_alive():
            process.kill()
            process.join()
