"""Engines of one machine: this process, or a pool of processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tracelens.engines.base import Outcome, Work, reader_died
from tracelens.trace.discover import Source

Tick = Callable[[Path, int], None]


class InProcess:
    """One file after the other, here."""

    def run(self, work: Work, sources: Sequence[Source]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes in order."""
        for index, source in enumerate(sources):
            yield index, work(source)


class Pool:
    """Processes of this machine.

    A reader that is killed breaks the whole pool (Python's `BrokenProcessPool`), whoever's file it was: the files left
    are then read one by one, each in a process of its own, and only those that kill theirs are given up.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, work: Work, sources: Sequence[Source]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes as they come."""
        left = dict(enumerate(sources))
        try:
            for index, outcome in self._run_together(work, left):
                left.pop(index)
                yield index, outcome
        except BrokenProcessPool:
            for index, source in left.items():
                yield index, _run_alone(work, source)

    def _run_together(self, work: Work, sources: dict[int, Source]) -> Iterator[tuple[int, Outcome]]:
        with _processes(min(self._jobs, len(sources))) as pool:
            futures = {pool.submit(work, source): index for index, source in sources.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _run_alone(work: Work, source: Source) -> Outcome:
    with _processes(1) as pool:
        try:
            return pool.submit(work, source).result()
        except BrokenProcessPool:
            return reader_died(source)


def _processes(count: int) -> ProcessPoolExecutor:
    # forked children would inherit polars' threads in an unknown state
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
