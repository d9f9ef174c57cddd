"""The map over files: in this process, or in a pool of processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from tracelens.errors import InputError, Problem
from tracelens.results import Skipped
from tracelens.summary import RankSummary
from tracelens.trace.discover import Discovery, Source
from tracelens.trace.kernels import Family
from tracelens.trace.summarize import summarize

FileProgress = Callable[[Path, int], None]

POOL_WORTH_BYTES = 16 << 20
"""Compressed bytes below which starting processes takes longer than reading."""


class Summaries(msgspec.Struct, frozen=True):
    """What a discovery gave: a summary per file that could be read, and the others with the reason."""

    ranks: tuple[RankSummary, ...]
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()


def summarize_all(
    discovery: Discovery,
    *,
    jobs: int = 1,
    progress: FileProgress | None = None,
    kernels: tuple[Family, ...] = (),
) -> Summaries:
    """Summarize every file of a discovery.

    A single file that can't be read is an error; one of several is left out and named.

    Args:
        discovery: the files.
        jobs: processes to use.
        progress: called with a file and the compressed bytes done of it.
        kernels: communication kernels that the user knows, beside the built-in table.

    Raises:
        InputError: no file could be read, or the only one could not.
    """
    outcomes = list(_run(discovery.sources, jobs, progress, kernels))
    ranks = tuple(outcome for outcome in outcomes if isinstance(outcome, RankSummary))
    errors = [outcome for outcome in outcomes if isinstance(outcome, InputError)]
    if errors and not ranks:
        raise errors[0]
    skipped = tuple(
        Skipped(path=str(source.path), why=outcome.message)
        for source, outcome in zip(discovery.sources, outcomes, strict=True)
        if isinstance(outcome, InputError)
    )
    return Summaries(ranks=ranks, skipped=discovery.skipped + skipped)


def _run(
    sources: tuple[Source, ...], jobs: int, progress: FileProgress | None, kernels: tuple[Family, ...]
) -> Iterator[RankSummary | InputError]:
    if jobs > 1 and len(sources) > 1 and sum(source.bytes for source in sources) > POOL_WORTH_BYTES:
        yield from _run_pool(sources, jobs, progress, kernels)
        return
    for source in sources:
        tick = None if progress is None else lambda done, path=source.path: progress(path, done)
        yield _summarize_or_error(source.path, tick, kernels)


def _run_pool(
    sources: tuple[Source, ...], jobs: int, progress: FileProgress | None, kernels: tuple[Family, ...]
) -> Iterator[RankSummary | InputError]:
    # forked children would inherit polars' threads in an unknown state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(sources)), mp_context=context) as pool:
        futures = [pool.submit(_summarize_or_error, source.path, None, kernels) for source in sources]
        try:
            for source, future in zip(sources, futures, strict=True):
                yield future.result()
                if progress is not None:
                    progress(source.path, source.bytes)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _summarize_or_error(
    path: Path, progress: Callable[[int], None] | None, kernels: tuple[Family, ...]
) -> RankSummary | InputError:
    try:
        return summarize(path, progress=progress, kernels=kernels)
    except InputError as error:
        return error
