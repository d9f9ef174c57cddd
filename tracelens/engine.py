"""The map over files: a summary of each, made here, by a pool of processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from tracelens.cache import SummaryCache
from tracelens.engines.base import Engine, Outcome
from tracelens.engines.cluster import Dask
from tracelens.engines.local import InProcess, Pool
from tracelens.errors import InputError, Problem
from tracelens.results import Skipped
from tracelens.summary import RankSummary
from tracelens.trace.discover import Discovery, Source
from tracelens.trace.kernels import Family
from tracelens.trace.remote import Location
from tracelens.trace.summarize import summarize

FileProgress = Callable[[Location, int], None]

POOL_WORTH_BYTES = 16 << 20
"""Compressed bytes below which starting processes takes longer than reading."""


class Summaries(msgspec.Struct, frozen=True):
    """What a discovery gave: a summary per file that could be read, and the others with the reason."""

    ranks: tuple[RankSummary, ...]
    sources: tuple[Source, ...] = ()
    """The file behind each of `ranks`."""
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()
    is_one_job: bool = False
    """Files of other jobs and runs are among the skipped."""


def summarize_all(
    discovery: Discovery,
    *,
    jobs: int = 1,
    progress: FileProgress | None = None,
    kernels: tuple[Family, ...] = (),
    scheduler: str | None = None,
    cache: SummaryCache | None = None,
) -> Summaries:
    """Summarize every file of a discovery.

    A single file that can't be read is an error; one of several is left out and named.

    Args:
        discovery: the files.
        jobs: processes to use on this machine.
        progress: called with a file and the compressed bytes done of it.
        kernels: communication kernels that the user knows, beside the built-in table.
        scheduler: address or scheduler file of a Dask cluster that does the work instead of this machine.
        cache: where summaries are kept; a cluster's workers must see its folder.

    Raises:
        InputError: no file could be read, or the only one could not.
        UsageError: no cluster answers at the scheduler's address.
    """
    sources = discovery.sources
    engine = _choose_engine(sources, jobs, scheduler)
    tick = progress if isinstance(engine, InProcess) else None
    work = partial(summarize_source, kernels=kernels, cache=cache, progress=tick)
    outcomes: list[Outcome | None] = [None] * len(sources)
    for index, outcome in engine.run(work, sources):
        outcomes[index] = outcome
        if progress is not None:
            progress(sources[index].path, sources[index].bytes)
    ranks = tuple(outcome for outcome in outcomes if isinstance(outcome, RankSummary))
    errors = [outcome for outcome in outcomes if isinstance(outcome, InputError)]
    if errors and not ranks:
        raise errors[0]
    skipped = tuple(
        Skipped(path=str(source.path), why=outcome.message)
        for source, outcome in zip(sources, outcomes, strict=True)
        if isinstance(outcome, InputError)
    )
    read = tuple(source for source, outcome in zip(sources, outcomes, strict=True) if isinstance(outcome, RankSummary))
    return Summaries(ranks=ranks, sources=read, skipped=discovery.skipped + skipped)


def _choose_engine(sources: tuple[Source, ...], jobs: int, scheduler: str | None) -> Engine:
    if scheduler is not None:
        return Dask(scheduler)
    if jobs > 1 and len(sources) > 1 and sum(source.bytes for source in sources) > POOL_WORTH_BYTES:
        return Pool(jobs)
    return InProcess()


def summarize_source(
    source: Source,
    *,
    kernels: tuple[Family, ...] = (),
    cache: SummaryCache | None = None,
    progress: FileProgress | None = None,
) -> Outcome:
    """One file to its summary, or to the reason why there is none."""
    tick: Callable[[int], None] | None = None if progress is None else partial(progress, source.path)
    try:
        if cache is not None:
            return cache.summarize(source.path, kernels=kernels)
        return summarize(source.path, progress=tick, kernels=kernels)
    except InputError as error:
        return error
