"""Processes of our own that never outlive the command: each dies with its parent, and is ended with the block."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import TraceLensError
from tracelens.interrupts import deaf_children


class ProcessError(TraceLensError):
    """A process of ours that could not do its work."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A running process, the pipe that its results come by, and the file that its output goes to."""

    process: Any
    results: Any
    log: Path

    def receive(self, *, what: str) -> Any:
        """The next result.

        Args:
            what: the process in words, for the error.

        Raises:
            ProcessError: the process died; its last words are in the message.
        """
        try:
            return self.results.recv()
        except EOFError:
            self.process.join()
            raise self.death(what=what) from None

    def last_words(self) -> str:
        """The end of what the process printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()

    def death(self, *, what: str) -> ProcessError:
        """The error that tells how the process ended, with its last words; to be asked once it has."""
        return ProcessError(
            f"{what} died with exit code {self.process.exitcode}\n{self.last_words()}".strip(),
            hint="an exit code of -9 often means too little memory",
        )


@contextlib.contextmanager
def workers(target: Callable[[Any, Any], None], assignments: Sequence[Any], folder: Path) -> Iterator[list[Worker]]:
    """Run `target(assignment, results)` in a process for each assignment; none is left after the block.

    Args:
        target: an importable function; sends its results by the pipe `results`.
        assignments: one for each process.
        folder: where the processes' output goes.
    """
    # spawn: a forked child would share the threads and locks of PyTorch
    context = multiprocessing.get_context("spawn")
    running: list[Worker] = []
    try:
        for index, assignment in enumerate(assignments):
            reader, writer = context.Pipe(duplex=False)
            log = folder / f"process{index}.log"
            process = context.Process(target=_run, args=(target, assignment, writer, str(log)))
            with deaf_children():
                process.start()
            writer.close()
            running.append(Worker(process=process, results=reader, log=log))
        yield running
    except BaseException:
        for worker in running:
            worker.process.kill()
        raise
    finally:
        for worker in running:
            worker.results.close()
            _stop(worker.process)


def _stop(process: BaseProcess) -> None:
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()


def _run(target: Callable[[Any, Any], None], assignment: Any, results: Any, log: str) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _redirect_output(log)
    target(assignment, results)


def _redirect_output(path: str) -> None:
    """The terminal belongs to the parent; libraries and scripts write to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
