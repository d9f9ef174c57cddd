"""Process groups of one rank: what the trace head and the records say, put together.

The ranks of a record are text, cut at 30 entries (torch/csrc/profiler/util.cpp): up to 2.6 the first 30, then
`...`; since 2.7 the first 29, `...` and the last. The full list is in `distributedInfo.pg_config`, or can be
rebuilt from start, stride and size where those agree with what is left of the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tracelens.results import RanksSource
from tracelens.summary import LocalGroup
from tracelens.trace.schema import DistributedInfo, GroupConfig

GROUP_KEY = (
    "group_name",
    "group_id",
    "group_description",
    "group_size",
    "group_ranks",
    "rank_start",
    "rank_stride",
)


def configured_groups(info: DistributedInfo | None) -> tuple[LocalGroup, ...]:
    """The groups of `pg_config`, in its order."""
    if info is None or not isinstance(info.pg_config, list):
        return ()
    return tuple(_configured(entry) for entry in info.pg_config)


def _configured(entry: GroupConfig) -> LocalGroup:
    ranks: tuple[int, ...] | None = None
    if isinstance(entry.ranks, list):
        ranks = tuple(entry.ranks)
    elif isinstance(entry.ranks, str):
        listed, cut = parse_ranks(entry.ranks)
        ranks = None if cut else tuple(listed) or None
    return LocalGroup(
        name=None if entry.pg_name is None else str(entry.pg_name),
        description=entry.pg_desc,
        size=entry.pg_size if entry.pg_size is not None else len(ranks) if ranks else None,
        ranks=ranks,
        ranks_source=RanksSource.metadata if ranks else None,
        backend=entry.backend_config,
    )


def parse_ranks(text: str) -> tuple[list[int], bool]:
    """The ranks in a record's text, and whether the list was cut.

    >>> parse_ranks("[0, 1, ..., 7]")
    ([0, 1, 7], True)
    """
    return [int(number) for number in re.findall(r"-?\d+", text)], "..." in text


def resolve_groups(
    records: pl.DataFrame, configured: Sequence[LocalGroup], world_size: int | None
) -> tuple[list[LocalGroup], list[int | None]]:
    """Name the group of each record.

    Args:
        records: the columns `GROUP_KEY`.
        configured: the groups of `pg_config`.
        world_size: number of ranks of the job, where it is known.

    Returns:
        The groups, those of `pg_config` first, and for each record the index of its group (None where the record
        says nothing about a group).
    """
    groups = list(configured)
    by_name: dict[str, int] = {group.name: index for index, group in enumerate(groups) if group.name is not None}
    unique = records.select(*GROUP_KEY).unique(maintain_order=True)
    index_of: dict[tuple[object, ...], int | None] = {}
    for row in unique.iter_rows(named=True):
        index_of[tuple(row.values())] = _index_of(row, groups, by_name, world_size)
    keys = records.select(*GROUP_KEY).iter_rows()
    return groups, [index_of[key] for key in keys]


def _index_of(
    row: Mapping[str, object],
    groups: list[LocalGroup],
    by_name: dict[str, int],
    world_size: int | None,
) -> int | None:
    found = _from_record(row)
    if found.name is None and found.ranks is None and found.size is None:
        return None
    known = by_name.get(found.name) if found.name is not None else None
    if known is not None and groups[known].ranks is not None:
        return known
    if known is not None:
        groups[known] = msgspec.structs.replace(
            found, description=groups[known].description or found.description, backend=groups[known].backend
        )
        return known
    if found.name is None:
        for index, group in enumerate(groups):
            if group.name is None and group.ranks == found.ranks and group.size == found.size:
                return index
    if found.ranks is None and found.size is not None and found.size == world_size:
        found = msgspec.structs.replace(found, ranks=tuple(range(found.size)), ranks_source=RanksSource.rebuilt)
    groups.append(found)
    if found.name is not None:
        by_name[found.name] = len(groups) - 1
    return len(groups) - 1


def _from_record(row: Mapping[str, object]) -> LocalGroup:
    name = row["group_name"] or row["group_id"]
    size = _integer(row["group_size"])
    listed, cut = parse_ranks(str(row["group_ranks"] or ""))
    ranks: tuple[int, ...] | None = tuple(listed) if listed and not cut else None
    source = RanksSource.record if ranks else None
    if ranks is None and size is not None:
        ranks = _rebuild(_integer(row["rank_start"]), _integer(row["rank_stride"]), size, listed)
        source = RanksSource.rebuilt if ranks else None
    description = row["group_description"]
    return LocalGroup(
        name=None if name is None else str(name),
        description=None if description is None else str(description),
        size=size if size is not None else len(ranks) if ranks else None,
        ranks=ranks,
        ranks_source=source,
    )


def _rebuild(start: int | None, stride: int | None, size: int, listed: Sequence[int]) -> tuple[int, ...] | None:
    """Ranks from start, stride and size, if all that is left of the list agrees.

    The stride is only that of the first two ranks, so a group of several strides does not.
    """
    if start is None or stride is None or stride <= 0 or size < 1:
        return None
    ranks = tuple(start + stride * index for index in range(size))
    first, last = list(listed[:-1]), listed[-1:]
    matches_head = list(ranks[: len(listed)]) == list(listed)
    matches_ends = list(ranks[: len(first)]) == first and list(ranks[-1:]) == list(last)
    return ranks if not listed or matches_head or matches_ends else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def global_rank(group: LocalGroup | None, local: int | None) -> int | None:
    """The global rank of a group-local one; None where the ranks are unknown or do not hold it."""
    if group is None or group.ranks is None or local is None or not 0 <= local < len(group.ranks):
        return None
    return group.ranks[local]


def local_rank(group: LocalGroup, rank: int | None) -> int | None:
    """The place of a global rank in a group; None where it is unknown."""
    if rank is None or group.ranks is None or rank not in group.ranks:
        return None
    return group.ranks.index(rank)


def parse_splits(text: str | None) -> tuple[list[int], bool]:
    """Split sizes of an all-to-all and whether the list was cut at 30 entries; [] for equal splits."""
    return parse_ranks(text) if text else ([], False)
