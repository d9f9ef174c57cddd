"""Ctrl-C and SIGTERM: they end a command in the same orderly way, and only the process that the user started hears."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM: whatever cleans up after Ctrl-C cleans up after it too."""


@contextmanager
def heed_termination() -> Iterator[None]:
    """Raise `Terminated` in the block when SIGTERM comes.

    Does nothing where that can't be, outside of the main thread, or where someone else has a use for SIGTERM.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes that are started in the block never hear Ctrl-C, from their first instruction on.

    A terminal sends it to all of them, and Python would show a traceback from the midst of its start. They inherit the
    blocked signal; this process hears it when the block ends, at the latest.
    """
    from multiprocessing import resource_tracker  # not before processes are wanted

    resource_tracker.ensure_running()  # its start would lift the block (Python's multiprocessing.resource_tracker)
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with _put_off():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _put_off() -> Iterator[None]:
    """Ctrl-C is heard when the block ends: another thread than the blocked one may get it, and Python raises it here.

    A child whose parent leaves in the midst of starting it would tell of a broken pipe.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if heard:
        raise KeyboardInterrupt
