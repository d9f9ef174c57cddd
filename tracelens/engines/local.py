"""Engines of one machine: this process, or a pool of processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tracelens.engines.base import Outcome, Work, reader_died
from tracelens.interrupts import deaf_children
from tracelens.trace.discover import Source

Tick = Callable[[Path, int], None]

_BEAT_S = 0.2
"""How often a wait looks up: polars handles SIGINT so that Ctrl-C interrupts no system call, and a wait is one."""


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
            with deaf_children():
                futures = {pool.submit(work, source): index for index, source in sources.items()}
            pending = set(futures)
            try:
                while pending:
                    done, pending = wait(pending, timeout=_BEAT_S, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield futures[future], future.result()
            except BaseException:
                _end_workers()  # else leaving the pool waits until they have read their files
                raise


def _run_alone(work: Work, source: Source) -> Outcome:
    with _processes(1) as pool:
        try:
            with deaf_children():
                future = pool.submit(work, source)
            return future.result()
        except BrokenProcessPool:
            return reader_died(source)


def _processes(count: int) -> ProcessPoolExecutor:
    # forked children would inherit polars' threads in an unknown state
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_live_and_die_with_parent)


def _live_and_die_with_parent() -> None:
    """Leave Ctrl-C to the parent, and end when the parent is gone, however it went.

    A worker holds both ends of the queue that it waits on, so it would not notice a parent that was killed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end_workers() -> None:
    for child in multiprocessing.active_children():
        child.kill()
