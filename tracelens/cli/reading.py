"""Paths to summaries, with a progress bar: what every command that reads traces begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.cli.options import Reading
from tracelens.cli.progress import reading_progress
from tracelens.engine import summarize_all
from tracelens.trace.discover import discover

if TYPE_CHECKING:
    from tracelens.engine import Summaries


def read(reading: Reading) -> Summaries:
    """Find the traces behind the paths and summarise them.

    Raises:
        InputError: no path leads to a trace that can be read.
    """
    discovery = discover(reading.paths)
    total_bytes = sum(source.bytes for source in discovery.sources)
    with reading_progress(total_bytes, wanted=reading.progress) as report:
        return summarize_all(discovery, jobs=reading.jobs, progress=report)
