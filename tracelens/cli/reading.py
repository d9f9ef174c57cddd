"""Paths to summaries, with a progress bar: what every command that reads traces begins with."""

from __future__ import annotations

import sys
from pathlib import Path

from tracelens.cli.options import Reading
from tracelens.cli.progress import reading_progress
from tracelens.engine import Summaries, summarize_all
from tracelens.trace.discover import Discovery, discover
from tracelens.trace.kernels import Family, read_families


def read(reading: Reading, discovery: Discovery | None = None) -> Summaries:
    """Summarise the traces behind the paths, or those of a discovery that was made before.

    Raises:
        InputError: no path leads to a trace that can be read.
    """
    found = discovery or discover(reading.paths)
    kernels = known_kernels(reading)
    total_bytes = sum(source.bytes for source in found.sources)
    with reading_progress(total_bytes, sys.stderr, wanted=reading.progress) as report:
        return summarize_all(found, jobs=reading.jobs, progress=report, kernels=kernels)


def known_kernels(reading: Reading) -> tuple[Family, ...]:
    """The communication kernels that the user names with `--kernels`.

    Raises:
        InputError: the file can't be read, or is no table of kernels.
    """
    return () if reading.kernels is None else read_families(Path(reading.kernels))
