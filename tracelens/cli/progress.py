"""A progress bar on stderr, for reading that takes more than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

from tracelens.trace.remote import Location

PATIENCE_S = 1.0

Report: TypeAlias = Callable[[Location, int], None]


@contextmanager
def reading_progress(total_bytes: int, stream: TextIO, *, wanted: bool) -> Iterator[Report | None]:
    """Yield a callback (path, compressed bytes done) that draws a bar once a second has passed.

    Yields None when no bar is wanted or the stream is no terminal, so that the reader need not report at all.
    """
    if not wanted or not stream.isatty():
        yield None
        return
    bar = _Bar(total_bytes, stream)
    try:
        yield bar.report
    finally:
        bar.close()


class _Bar:
    """Adds up what each file has done; draws nothing while the job is young."""

    def __init__(self, total_bytes: int, stream: TextIO) -> None:
        self._stream = stream
        self._total = total_bytes
        self._done: dict[Location, int] = {}
        self._began = monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def report(self, path: Location, done_bytes: int) -> None:
        self._done[path] = done_bytes
        if self._progress is None and monotonic() - self._began > PATIENCE_S:
            self._progress = self._open()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=sum(self._done.values()))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _open(self) -> Progress:
        # a short job draws no bar, and need not load what draws it
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("reading"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        self._task = progress.add_task("reading", total=self._total)
        progress.start()
        return progress
