"""Our figures beside HTA's: equal, explained by HTA's faults, or not."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from tracelens.crosscheck.faults import Fault, stages
from tracelens.crosscheck.figures import Figures, decimals_of
from tracelens.crosscheck.neighbour import HtaFailure, figures_from_hta, require_hta
from tracelens.crosscheck.ours import our_figures
from tracelens.crosscheck.recording import Recording, read_recording
from tracelens.summary import RankSummary
from tracelens.trace.kernels import Family
from tracelens.trace.remote import locate


class Verdict(StrEnum):
    """How two figures stand to each other."""

    equal = "equal"
    explained = "explained"
    unexplained = "unexplained"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Our figure once a fault of HTA's is put in, after those before it."""

    fault: Fault
    value: float | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, rounded to the digits that HTA prints."""

    figure: str
    ours: float | None
    hta: float | None
    verdict: Verdict
    steps: tuple[Step, ...] = ()
    """The faults that change the figure, in the order in which they were put in."""


class FileComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    path: str
    rank: int | None
    hta_error: str | None
    """What HTA failed with; then there is nothing to compare."""
    rows: tuple[Row, ...] = ()


class HtaComparison(msgspec.Struct, frozen=True, kw_only=True):
    """All files."""

    hta_version: str
    files: tuple[FileComparison, ...]

    @property
    def unexplained(self) -> int:
        """Figures that differ and no known fault of HTA's says why."""
        return sum(row.verdict is Verdict.unexplained for file in self.files for row in file.rows)


def compare_with_hta(
    summaries: Sequence[RankSummary],
    *,
    kernels: tuple[Family, ...] = (),
    progress: Callable[[Path, int], None] | None = None,
) -> HtaComparison:
    """Compare what we say of traces with what HTA says of the same files, each file by itself.

    Args:
        summaries: of traces that are still where they were read.
        kernels: communication kernels that the user knows, as the summaries were made with.
        progress: called with a file and its size once it is done.

    Raises:
        MissingExtraError: HTA is not installed.
        InputError: a trace is gone.
    """
    require_hta()
    files = []
    for summary in summaries:
        with tempfile.TemporaryDirectory(prefix="tracelens-hta-") as folder:
            files.append(compare_file(summary, Path(folder), kernels))
        if progress is not None:
            progress(Path(summary.head.path), summary.head.bytes)
    return HtaComparison(hta_version=importlib.metadata.version("HolisticTraceAnalysis"), files=tuple(files))


def compare_file(summary: RankSummary, folder: Path, kernels: tuple[Family, ...]) -> FileComparison:
    """Compare one file.

    Args:
        summary: what we say of it.
        folder: for a copy that HTA can read, where it needs one.
        kernels: communication kernels that the user knows.
    """
    recording = read_recording(locate(summary.head.path), summary, kernels)
    try:
        theirs = figures_from_hta(summary, folder)
    except HtaFailure as failure:
        return FileComparison(path=summary.head.path, rank=summary.rank, hta_error=str(failure))
    rows = _rows(recording, theirs)
    return FileComparison(path=summary.head.path, rank=summary.rank, hta_error=None, rows=rows)


def _rows(recording: Recording, theirs: Figures) -> tuple[Row, ...]:
    ours = our_figures(recording)
    walk = list(stages(recording))
    return tuple(_compare(name, ours.get(name), value, walk) for name, value in theirs.items())


def _compare(name: str, ours: float | None, theirs: float | None, walk: Sequence[tuple[Fault | None, Figures]]) -> Row:
    digits = decimals_of(name)
    ours, theirs = _rounded(ours, digits), _rounded(theirs, digits)
    values = [(fault, _rounded(figures.get(name), digits)) for fault, figures in walk]
    steps = [
        Step(fault=fault, value=value)
        for (fault, value), (_, before) in zip(values[1:], values, strict=False)
        if fault is not None and value != before
    ]
    if ours == theirs:
        return Row(figure=name, ours=ours, hta=theirs, verdict=Verdict.equal)
    # the walk must begin at our figure and end at theirs
    explained = values[0][1] == ours and values[-1][1] == theirs
    verdict = Verdict.explained if explained else Verdict.unexplained
    return Row(figure=name, ours=ours, hta=theirs, verdict=verdict, steps=tuple(steps))


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits) + 0.0
