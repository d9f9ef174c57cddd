"""The last rank to arrive: whether it is always the same one, and what it did before."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from tracelens.many_ranks import Cause, LastArrival

# Shorter waits are the noise of launches and of ring order: nobody is called late for them.
NOTABLE_NS = 10_000
NOTABLE_SHARE = 0.1

_SYSTEMATIC_SHARE = 0.5
_CHANCE = 0.01
_EXPLAINS = 0.5

_ROW = ("pg", "what")
_CAUSES = (
    (Cause.receive, "behind"),
    (Cause.compute, "compute"),
    (Cause.communication, "communication"),
    (Cause.launch, "idle"),
)
"""Tried in this order: a receive in front is communication too."""

_DEEDS = ("compute", "communication", "idle")
"""What fills the time between two calls; all in all a rank is late by what it has more of them than the others."""


def find_last_arrivals(used: pl.DataFrame) -> dict[tuple[Any, ...], LastArrival]:
    """The rank that came last most often to the calls of each row in which somebody waited.

    Args:
        used: as `skew.time_calls` gives them, without those that a late profiler spoils.

    Returns:
        By the values of `_ROW`; rows in which nobody waits are left out.
    """
    longest = pl.col("wait_ns").max().over("lane", "key")
    notable = longest >= pl.max_horizontal(pl.lit(NOTABLE_NS), pl.col("transfer_ns") * NOTABLE_SHARE)
    # a kernel that carries a send and a receive stands in two lanes but comes late once
    calls = _with_deeds(used).filter(notable)
    if calls.is_empty():
        return {}
    last = calls.join(_compare(calls), on=["lane", "key"]).filter("is_last")
    parts = {name: _share_of_lateness(name) for name in _DEEDS}
    by_rank = last.group_by(*_ROW, "rank").agg(
        calls=pl.len(),
        members=pl.col("timed").median(),
        late=pl.col("late").median(),
        total=pl.col("late").sum(),
        behind=pl.col("behind").sum(),
        **parts,
    )
    most = by_rank.with_columns(of=pl.col("calls").sum().over(_ROW)).sort("calls", "rank", descending=[True, False])
    rows = most.unique(_ROW, keep="first", maintain_order=True).iter_rows(named=True)
    return {tuple(row[name] for name in _ROW): _arrival(row) for row in rows}


def _with_deeds(used: pl.DataFrame) -> pl.DataFrame:
    """What each rank did between its last call of the lane and this one: compute, communication, and nothing."""
    before = {name: pl.col(name).shift(1).over("lane", "rank") for name in ("end_ns", *_AT_END.values())}
    gap = pl.col("start_ns") - before["end_ns"]
    compute, comm = (pl.col(start) - before[end] for start, end in _AT_END.items())
    return used.sort("lane", "rank", "call").with_columns(
        compute=compute, communication=comm, idle=gap - compute - comm
    )


_AT_END = {"compute_at_start_ns": "compute_at_end_ns", "comm_at_start_ns": "comm_at_end_ns"}


def _compare(calls: pl.DataFrame) -> pl.DataFrame:
    """Of each call the middle one of those who waited, and how long the first of them waited."""
    others = calls.filter(~pl.col("is_last")).group_by("lane", "key")
    return others.agg(
        late=pl.col("wait_ns").max(),
        behind=pl.col("behind_ns").max(),
        **{f"{name}_others": pl.col(name).median() for name in _DEEDS},
    )


def _share_of_lateness(name: str) -> pl.Expr:
    """How much of its lateness a rank did more of something than the others, over all calls, ns."""
    excess = pl.col(name) - pl.col(f"{name}_others")
    return pl.min_horizontal(excess.clip(0), "late").sum()


def _arrival(row: dict[str, Any]) -> LastArrival:
    cause, extra = Cause.unknown, None
    for candidate, column in _CAUSES:
        if row[column] and row[column] >= _EXPLAINS * row["total"]:
            cause, extra = candidate, round(row[column] / row["calls"])
            break
    return LastArrival(
        rank=row["rank"],
        calls=row["calls"],
        of=row["of"],
        systematic=is_systematic(row["calls"], row["of"], round(row["members"])),
        late_ns=round(row["late"]),
        late_total_ns=round(row["total"]),
        cause=cause,
        cause_ns=extra,
    )


def is_systematic(last: int, calls: int, members: int) -> bool:
    """Whether one of `members` ranks is last too often for chance.

    At least in half of the calls; and if all were last equally often, some rank would be as often as this one with a
    probability below one in a hundred (Chernoff's bound of the binomial tail, times the number of ranks).
    """
    share, fair = last / calls, 1 / members
    if share < _SYSTEMATIC_SHARE or share <= fair:
        return False
    rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - fair))
    divergence = share * math.log(share / fair) + rest
    return members * math.exp(-calls * divergence) < _CHANCE
