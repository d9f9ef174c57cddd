"""A sample of a job's ranks: as many as the layout needs, chosen by what the first one knows of its groups.

Ranks that differ in nothing but their numbers send alike. So one rank tells most, its next neighbour and the last one
of each of its groups tell the strides and whether the far end does the same, and every stage of a pipeline is another
program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.errors import Problem, Severity
from tracelens.summary import RankSummary
from tracelens.topology import format_ranks
from tracelens.trace.discover import Discovery, Source, rank_from_name
from tracelens.units import noun, plural

_MOST_STAGES = 64


def sources_by_rank(discovery: Discovery) -> dict[int, Source]:
    """The files whose names tell a rank; the first one of each rank."""
    found: dict[int, Source] = {}
    for source in discovery.sources:
        rank = rank_from_name(source.path.name)
        if rank is not None:
            found.setdefault(rank, source)
    return found


def choose_ranks(first: RankSummary, available: Mapping[int, Source]) -> list[int]:
    """The ranks that tell the layout, ascending.

    Args:
        first: the summary of any rank.
        available: the ranks that could be read.
    """
    used = set(first.calls["group"].drop_nulls())
    p2p = first.calls.filter(pl.col("primitive").is_in(["send", "recv"]))
    staged = set(p2p["group"].drop_nulls())
    wanted = {min(available), max(available)}
    for index, group in enumerate(first.head.groups):
        if index not in used or not group.ranks:
            continue
        members = sorted(group.ranks)
        ends = {members[0], members[1 % len(members)], members[-1]}
        wanted |= set(members[:_MOST_STAGES]) if index in staged else ends
    return sorted(rank for rank in wanted if rank in available)


def describe_sample(ranks: Sequence[int], available: int) -> Problem:
    """Say which ranks were read."""
    told = f"{len(ranks)} of {plural(available, 'rank')} {noun(len(ranks), 'was', 'were')} read"
    message = f"{told}: {format_ranks(ranks)} (--ranks sample)"
    return Problem(code="ranks-sampled", severity=Severity.info, message=message)


def names_tell_nothing() -> Problem:
    """Say why all ranks were read."""
    message = "all ranks were read: the names of the files do not tell which is which"
    return Problem(code="ranks-not-sampled", severity=Severity.warning, message=message)
