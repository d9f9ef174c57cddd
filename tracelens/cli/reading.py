"""Paths to summaries, with a progress bar: what every command that reads traces begins with."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tracelens.cache import SummaryCache
from tracelens.cli.options import Reading
from tracelens.cli.progress import reading_progress
from tracelens.engine import Summaries, summarize_all
from tracelens.errors import UsageError
from tracelens.measurement.jobs import gather_job
from tracelens.report.saved import is_saved
from tracelens.results import Skipped
from tracelens.sampling import choose_ranks, describe_sample, names_tell_nothing, sources_by_rank
from tracelens.trace.discover import Discovery, discover, rank_from_name
from tracelens.trace.kernels import Family, read_families


def read(reading: Reading, discovery: Discovery | None = None) -> Summaries:
    """Summarise the traces behind the paths, or those of a discovery that was made before.

    Raises:
        InputError: no path leads to a trace that can be read.
        UsageError: a path is a saved result.
    """
    for path in reading.paths:
        if is_saved(path):
            raise UsageError(
                f"`{path}` is a saved result, not a trace",
                hint="give the traces; `analyze`, `diff` and `check` read a saved result too",
            )
    found = discovery or discover(reading.paths)
    if reading.ranks == "sample":
        return _read_sample(reading, found)
    return _read_all(reading, found)


def read_job(reading: Reading) -> Summaries:
    """Summarise the traces behind the paths, and keep those of one run of one job; the others are skipped and named.

    Raises:
        InputError: no path leads to a trace that can be read.
    """
    return gather_job(read(reading))


def _read_all(reading: Reading, found: Discovery) -> Summaries:
    total_bytes = sum(source.bytes for source in found.sources)
    with reading_progress(total_bytes, sys.stderr, wanted=reading.progress) as report:
        return summarize_all(
            found,
            jobs=reading.jobs,
            progress=report,
            kernels=known_kernels(reading),
            scheduler=reading.engine,
            cache=_cache(reading),
        )


def _cache(reading: Reading) -> SummaryCache | None:
    """The cache that the user names; its folder is made when the first summary is kept.

    Raises:
        UsageError: a file stands where the folder would.
    """
    if reading.cache is None:
        return None
    folder = Path(reading.cache)
    if next(path for path in (folder, *folder.absolute().parents) if path.exists()).is_dir():
        return SummaryCache(folder)
    raise UsageError(f"--cache: `{folder}` is no folder, so that nothing could be kept there", hint="name a folder")


def _read_sample(reading: Reading, found: Discovery) -> Summaries:
    """One rank, and those that its groups say are worth reading."""
    available = sources_by_rank(found)
    if not available:
        problem = names_tell_nothing()
        read_all = _read_all(reading, found)
        return msgspec.structs.replace(read_all, problems=(*read_all.problems, problem))
    first = _read_all(reading, Discovery((available[min(available)],), ()))
    ranks = choose_ranks(first.ranks[0], available)
    others = tuple(available[rank] for rank in ranks if rank != min(available))
    rest = _read_all(reading, Discovery(others, ())) if others else Summaries(ranks=())
    nameless = tuple(
        Skipped(path=str(source.path), why="its name tells no rank (--ranks sample)")
        for source in found.sources
        if rank_from_name(source.path.name) is None
    )
    return Summaries(
        ranks=first.ranks + rest.ranks,
        sources=first.sources + rest.sources,
        skipped=found.skipped + rest.skipped + nameless,
        problems=(*first.problems, *rest.problems, describe_sample(ranks, len(available))),
    )


def known_kernels(reading: Reading) -> tuple[Family, ...]:
    """The communication kernels that the user names with `--kernels`.

    Raises:
        InputError: the file can't be read, or is no table of kernels.
    """
    return () if reading.kernels is None else read_families(Path(reading.kernels))
