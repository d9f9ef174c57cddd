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

_ROW = ("run", "group", "name", "what")
_CAUSES = (
    (Cause.receive, "behind"),
    (Cause.compute, "compute"),
    (Cause.communication, "communication"),
    (Cause.launch, "launch"),
)
"""Tried in this order: a receive in front is communication too, and a late launch may follow from either."""


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
    excess = {name: (pl.col(name) - pl.col(f"{name}_others")).median() for name in ("compute", "communication")}
    by_rank = last.group_by(*_ROW, "rank").agg(
        calls=pl.len(),
        members=pl.col("timed").median(),
        late=pl.col("late").median(),
        behind=pl.col("behind").median(),
        launch=pl.when(pl.col("queued") < NOTABLE_NS).then(pl.col("entered") - pl.col("entered_others")).median(),
        **excess,
    )
    most = by_rank.with_columns(of=pl.col("calls").sum().over(_ROW)).sort("calls", "rank", descending=[True, False])
    rows = most.unique(_ROW, keep="first", maintain_order=True).iter_rows(named=True)
    return {tuple(row[name] for name in _ROW): _arrival(row) for row in rows}


def _with_deeds(used: pl.DataFrame) -> pl.DataFrame:
    """What each rank did since its last call of the lane, and when its CPU launched this one."""
    since = ("lane", "rank")
    ordered = used.sort("lane", "rank", "call")
    offset = pl.col("offset_ns")
    return ordered.with_columns(
        compute=pl.col("compute_before_ns").diff().over(since),
        communication=pl.col("comm_before_ns").diff().over(since) - pl.col("duration_ns").shift(1).over(since),
        entered=pl.col("launch_ns") - offset,
        queued=pl.col("start_ns") - pl.col("launch_ns"),
    )


def _compare(calls: pl.DataFrame) -> pl.DataFrame:
    """Of each call the middle one of those who waited, and how long the first of them waited."""
    others = calls.filter(~pl.col("is_last")).group_by("lane", "key")
    return others.agg(
        late=pl.col("wait_ns").max(),
        behind=pl.col("behind_ns").max(),
        compute_others=pl.col("compute").median(),
        communication_others=pl.col("communication").median(),
        entered_others=_median_time("entered"),
    )


def _median_time(name: str) -> pl.Expr:
    """A median that keeps ns: floats do not hold times since the epoch."""
    return pl.col(name).sort().get(pl.col(name).len() // 2, null_on_oob=True)


def _arrival(row: dict[str, Any]) -> LastArrival:
    cause, extra = Cause.unknown, None
    for candidate, column in _CAUSES:
        if row[column] is not None and row[column] >= _EXPLAINS * row["late"] and row[column] > 0:
            cause, extra = candidate, round(min(row[column], row["late"]))
            break
    return LastArrival(
        rank=row["rank"],
        calls=row["calls"],
        of=row["of"],
        systematic=is_systematic(row["calls"], row["of"], round(row["members"])),
        late_ns=round(row["late"]),
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
