"""The last rank to arrive: whether it is always the same one, and what it did before."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from tracelens.many_ranks import Cause, LastArrival

# Shorter waits are the noise of launches and of ring order: nobody is called late for them.
NOTABLE_NS = 10_000
NOTABLE_SHARE = 0.1

_CHANCE = 0.05
_HABIT = 0.5
"""Share of calls, or of waiting, that makes a rank the one to look at; of two ranks the fair share alone is as much."""
_HABIT_OF_FAIR = 1.5
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
    """The rank that most waiting was for, in the calls of each row in which somebody waited.

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
        waited=pl.col("waited").sum(),
        **parts,
    )
    took = calls.group_by(*_ROW, "rank").agg(took=pl.len())
    waiting = used.filter("owned").group_by(*_ROW).agg(waiting=pl.col("wait_ns").sum(), ranks=pl.col("rank").n_unique())
    most = (
        by_rank.with_columns(of=pl.col("calls").sum().over(_ROW))
        .join(took, on=[*_ROW, "rank"])
        .join(waiting, on=_ROW)
        .sort("waited", "calls", "rank", descending=[True, True, False])
    )
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
    """Of each call the middle one of those who waited, how long the first of them waited, and all of them together."""
    others = calls.filter(~pl.col("is_last")).group_by("lane", "key")
    return others.agg(
        late=pl.col("wait_ns").max(),
        behind=pl.col("behind_ns").max(),
        waited=pl.col("wait_ns").filter("owned").sum(),
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
    share = row["waited"] / row["waiting"] if row["waiting"] else 0.0
    systematic, too_few = judge_lateness(row["calls"], row["took"], round(row["members"]), row["ranks"], share)
    return LastArrival(
        rank=row["rank"],
        calls=row["calls"],
        of=row["of"],
        systematic=systematic,
        too_few=too_few,
        waited_ns=round(row["waited"] / row["ranks"]),
        late_ns=round(row["late"]),
        late_total_ns=round(row["total"]),
        cause=cause,
        cause_ns=extra,
    )


def judge_lateness(last: int, calls: int, members: int, ranks: int, waited_share: float) -> tuple[bool, bool]:
    """Whether a rank is last too often for chance, and, if not, whether the calls are too few to call it chance.

    Were all members of a call last equally often, some one of the ranks would be as often as this one with at most the
    binomial tail times the number of ranks (Bonferroni). That it is chance is said only where a rank with a habit would
    hardly have come last so rarely, and where this one does not hold the waiting.

    Args:
        last: calls to which the rank came last.
        calls: those that it took part in.
        members: participants of a call.
        ranks: all ranks of the row, any of which might have been the one to stand out.
        waited_share: of the waiting, the part that was for this rank.
    """
    fair = 1 / members
    habit = max(_HABIT, _HABIT_OF_FAIR * fair)
    stands_out = max(last / calls, waited_share) >= _HABIT and last / calls > fair
    if stands_out and ranks * binomial_tail(last, calls, fair) < _CHANCE:
        return True, False
    missed = 1 - binomial_tail(last + 1, calls, habit)
    return False, missed >= _CHANCE or waited_share >= habit


def binomial_tail(least: int, calls: int, probability: float) -> float:
    """The probability of `least` or more of `calls` independent events."""
    whole = math.lgamma(calls + 1)
    yes, no = math.log(probability), math.log1p(-probability)
    terms = (
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(calls - k + 1) + k * yes + (calls - k) * no)
        for k in range(max(0, least), calls + 1)
    )
    return min(1.0, math.fsum(terms))
