"""The ranks of a process group: whole, cut in both styles, completed, rebuilt, or honestly unknown."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tracelens.results import RanksSource
from tracelens.summary import LocalGroup
from tracelens.trace.groups import configured_groups, global_rank, local_rank, parse_ranks, resolve_groups
from tracelens.trace.schema import DistributedInfo, GroupConfig

CONFIGURED = LocalGroup(
    name="5", description="mesh_tp", size=64, ranks=tuple(range(64)), ranks_source=RanksSource.metadata
)


def records(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = {
        "group_name": pl.String,
        "group_id": pl.String,
        "group_description": pl.String,
        "group_size": pl.Int64,
        "group_ranks": pl.String,
        "rank_start": pl.Int64,
        "rank_stride": pl.Int64,
    }
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def resolve(row: dict[str, Any], *configured: LocalGroup, world_size: int | None = None) -> LocalGroup | None:
    groups, (index,) = resolve_groups(records(row), configured, world_size)
    return None if index is None else groups[index]


def test_a_whole_list_is_taken_as_the_record_writes_it() -> None:
    found = resolve({"group_name": "7", "group_size": 3, "group_ranks": "[1, 5, 9]"})
    assert found is not None
    assert (found.ranks, found.ranks_source) == ((1, 5, 9), RanksSource.record)


def test_a_cut_list_is_completed_from_the_configuration() -> None:
    cut = "[" + ", ".join(map(str, range(30))) + ", ...]"
    assert resolve({"group_name": "5", "group_size": 64, "group_ranks": cut}, CONFIGURED) == CONFIGURED


FIRST_THIRTY = "[" + ", ".join(str(8 * i) for i in range(30)) + ", ...]"
WITH_LAST = "[" + ", ".join(str(8 * i) for i in range(29)) + ", ..., 504]"


@pytest.mark.parametrize("text", [FIRST_THIRTY, WITH_LAST])
def test_a_cut_list_is_rebuilt_where_start_stride_and_what_is_left_agree(text: str) -> None:
    row = {"group_name": "9", "group_size": 64, "group_ranks": text, "rank_start": 0, "rank_stride": 8}
    found = resolve(row)
    assert found is not None
    assert found.ranks == tuple(range(0, 512, 8))
    assert found.ranks_source == RanksSource.rebuilt


def test_a_group_of_two_strides_is_not_rebuilt_from_the_first() -> None:
    # ranks 0,1,8,9,16,17,..: the stride of the first two says 1
    listed = [8 * (i // 2) + i % 2 for i in range(29)]
    text = "[" + ", ".join(map(str, listed)) + ", ..., 505]"
    row = {"group_name": "9", "group_size": 128, "group_ranks": text, "rank_start": 0, "rank_stride": 1}
    found = resolve(row)
    assert found is not None
    assert (found.ranks, found.ranks_source, found.size) == (None, None, 128)


def test_a_group_as_large_as_the_job_holds_every_rank() -> None:
    found = resolve({"group_name": "0", "group_size": 4, "group_ranks": None}, world_size=4)
    assert found is not None
    assert (found.ranks, found.ranks_source) == ((0, 1, 2, 3), RanksSource.rebuilt)


def test_a_record_that_says_nothing_has_no_group() -> None:
    assert resolve({}) is None


def test_groups_with_equal_ranks_stay_apart_by_name() -> None:
    rows = [{"group_name": name, "group_size": 2, "group_ranks": "[0, 1]"} for name in ("3", "4", "3")]
    groups, indices = resolve_groups(records(*rows), (), None)
    assert [group.name for group in groups] == ["3", "4"]
    assert indices == [0, 1, 0]


@pytest.mark.parametrize("name", ["12", 12, "d1b2c3d4e5f60718293a4b5c6d7e8f9001122334"])
def test_names_may_be_numbers_or_hashes(name: str | int) -> None:
    info = DistributedInfo(pg_config=[GroupConfig(pg_name=name, pg_size=2, ranks=[0, 1])])
    assert configured_groups(info)[0].name == str(name)


def test_a_configuration_cut_by_on_demand_tracing_leaves_ranks_unknown() -> None:
    info = DistributedInfo(pg_config=[GroupConfig(pg_name="0", pg_size=64, ranks="[0, 1, ..., 63]")])
    group = configured_groups(info)[0]
    assert (group.ranks, group.ranks_source, group.size) == (None, None, 64)


def test_parse_ranks_tells_a_cut_list() -> None:
    assert parse_ranks("[0, 2, ..., 14]") == ([0, 2, 14], True)
    assert parse_ranks("[]") == ([], False)


def test_ranks_are_translated_both_ways() -> None:
    group = LocalGroup(name="6", description=None, size=2, ranks=(1, 3), ranks_source=RanksSource.record)
    assert [global_rank(group, local) for local in (0, 1, 2, None)] == [1, 3, None, None]
    assert [local_rank(group, rank) for rank in (1, 3, 0, None)] == [0, 1, None, None]
