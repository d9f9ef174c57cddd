"""HolisticTraceAnalysis, kept quiet and given files that it can read."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.crosscheck.figures import KINDS, OVERLAP, Figures, label_of
from tracelens.errors import InputError, MissingExtraError, UsageError
from tracelens.summary import RankSummary
from tracelens.trace.discover import discover
from tracelens.trace.remote import Location, locate
from tracelens.trace.source import is_archive, read_chunks
from tracelens.trace.summarize import summarize

if TYPE_CHECKING:
    from hta.trace_analysis import TraceAnalysis

_GZIP_MAGIC = b"\x1f\x8b"


def open_hta(paths: Sequence[str | Path], *, include_last_profiler_step: bool = False) -> TraceAnalysis:
    """Open traces in HTA, for its own analyses: critical path, queue lengths, call stacks, idle time.

    HTA is told the rank of each file as our summaries tell it, or the lowest free number where no file tells one.
    Files that it would not accept (zstd, other suffixes, behind a URL) are given to it as temporary copies, which live
    as long as the object returned.

    Args:
        paths: files, folders, globs and URLs, as everywhere.
        include_last_profiler_step: keep the step that HTA drops by default.

    Raises:
        MissingExtraError: HTA is not installed.
        InputError: a file can't be read, or is a summary, which HTA can't read.
        UsageError: two files are of one rank.
    """
    files = [source.path for source in discover(paths).sources]
    ranked = _by_rank([(file, summarize(file).rank) for file in files])
    module = _import_hta()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracelens-hta-"))
        readable = {rank: str(readable_by_hta(file, Path(folder))) for rank, file in ranked.items()}
        with quiet():
            analysis = module.TraceAnalysis(
                trace_files=readable, trace_dir=folder, include_last_profiler_step=include_last_profiler_step
            )
        weakref.finalize(analysis, stack.pop_all().close)
    return analysis


def _by_rank(files: Sequence[tuple[Location, int | None]]) -> dict[int, Location]:
    ranked: dict[int, Location] = {}
    for file, rank in files:
        if rank is not None and rank in ranked:
            raise UsageError(
                f"`{ranked[rank]}` and `{file}` are both of rank {rank}, and HTA takes one file a rank",
                hint="give the files of one recording window",
            )
        if rank is not None:
            ranked[rank] = file
    free = (number for number in range(len(files)) if number not in ranked)
    return ranked | {next(free): file for file, rank in files if rank is None}


class HtaFailure(Exception):  # noqa: N818 - not ours: what HTA raised, in one line
    """HTA failed on a file. It has no errors of its own: it raises what pandas or a list happens to raise."""


def figures_from_hta(summary: RankSummary, folder: Path) -> Figures:
    """What HTA prints of one file, under the names of `figures.figures_of`.

    Args:
        summary: of the file.
        folder: for a copy, where HTA needs one.

    Raises:
        HtaFailure: HTA can't read the file, or fails in an analysis.
        InputError: the file is a summary, or can't be read.
    """
    file, module = readable_by_hta(locate(summary.head.path), folder), _import_hta()
    try:
        with quiet():
            analysis = module.TraceAnalysis(trace_files={summary.rank or 0: str(file)}, trace_dir=str(folder))
            overlap = analysis.get_comm_comp_overlap(visualize=False)
            times = analysis.get_temporal_breakdown(visualize=False)
            kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1 << 30, duration_ratio=1.0)
    except Exception as error:
        raise HtaFailure(_describe(error)) from error
    return {
        OVERLAP: _known(overlap["comp_comm_overlap_pctg"].iloc[0]),
        **_temporal(times.iloc[0]),
        **_breakdown({row["kernel_type"]: row for _, row in kinds.iterrows()}),
        **{f"{kind} added up µs": _known(kernels[kernels.kernel_type == kind]["sum (us)"].sum()) for kind in KINDS},
    }


def _describe(error: Exception) -> str:
    """One line: what, and in which function of HTA."""
    home = Path(importlib.import_module("hta").__path__[0])
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if home in Path(frame.filename).parents]
    where = f" in {frames[-1].name}" if frames else ""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}{where}" + (f": {text}" if text else "")


def _temporal(row: Any) -> Figures:
    parts = {"compute": "compute_time", "non-compute": "non_compute_time", "idle": "idle_time"}
    times = {f"{name} µs": _known(row[f"{column}(us)"]) for name, column in parts.items()}
    shares = {f"{name} %": _known(row[f"{column}_pctg"]) for name, column in parts.items()}
    return {"kernel time µs": _known(row["kernel_time(us)"]), **times, **shares}


def _breakdown(rows: Mapping[str, Any]) -> Figures:
    labels = [label_of(state) for state in range(1, 8)]
    none = {"sum": 0.0, "percentage": 0.0}
    return {f"{label} µs": _known(rows.get(label, none)["sum"]) for label in labels} | {
        f"{label} share": _known(rows.get(label, none)["percentage"]) for label in labels
    }


def _known(value: Any) -> float | None:
    number = float(value)
    return None if number != number else number  # HTA says NaN where there is nothing to divide by


def readable_by_hta(file: Location, folder: Path) -> Path:
    """The file itself where its suffix says what HTA believes of it, else a plain copy in the folder.

    Raises:
        InputError: the file is a summary, or can't be read.
    """
    if is_archive(file):
        raise InputError(
            f"`{file}` is a summary, and HTA reads traces only", hint="give the trace that the summary was made of"
        )
    if isinstance(file, Path) and _is_what_its_suffix_says(file):
        return file.resolve()
    copy = Path(tempfile.mkstemp(suffix=".json", dir=folder)[1])
    with copy.open("wb") as target:
        target.writelines(read_chunks(file))
    return copy


def _is_what_its_suffix_says(file: Path) -> bool:
    """HTA goes by the suffix alone, and knows `.gz` and `.json`."""
    with file.open("rb") as opened:
        start = opened.read(2)
    is_plain = file.suffix == ".json" and start[:1] in b"{[ \t\r\n"
    return is_plain or (file.suffix == ".gz" and start == _GZIP_MAGIC)


def require_hta() -> None:
    """Find out early that HTA is not there.

    Raises:
        MissingExtraError: HTA is not installed.
    """
    _import_hta()


def _import_hta() -> Any:
    try:
        with quiet():
            return importlib.import_module("hta.trace_analysis")
    except ImportError as error:
        raise MissingExtraError.for_extra("hta", what="crosscheck") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """HTA writes to the terminal while it loads and warns of its own use of pandas: none of it is our result."""
    logger = logging.getLogger("hta")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _no_stderr():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate


def _no_stderr() -> contextlib.redirect_stderr[io.StringIO]:
    return contextlib.redirect_stderr(io.StringIO())
