"""Calls of many ranks put side by side: which call of one rank is the same as which of another, and on which clock.

A *lane* is a sequence of calls that all its ranks issue in one order: the collectives of a process group, or the
messages from one rank to another in it. Within a lane a call has a number, its `key`, that is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracelens.collectives import Primitive
from tracelens.many_ranks import Clock
from tracelens.measurement.clocks import align_clocks
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.pairing import pair_lanes
from tracelens.measurement.traffic import stack
from tracelens.summary import RankSummary

LANE = ("run", "group", "name", "src", "dst")
"""What tells lanes apart; `src` and `dst` are null for collectives."""

_KEPT = ("call", "primitive", "dtype", "group_size", "payload_bytes", "seq", "issue_ns", "launch_ns", "stream")
_READ = (*_KEPT, "group", "step", "peer", "gpu_start_ns", "gpu_end_ns")


@dataclass(frozen=True, slots=True)
class Alignment:
    """The calls of all ranks with their common numbers, and how the clocks of the ranks differ.

    Attributes:
        calls: a row per rank and call: `rank_index`, `rank`, `lane`, `key` (null: no counterpart can be named),
            `pairing`, `participants` (ranks of this key), `agrees` (equal primitive, dtype and size on all of them),
            `call`, `kernel` (the first that serves the call), `step` (number), `primitive`, `dtype`, `group_size`,
            `payload_bytes`, `issue_ns`, `launch_ns`, `start_ns`, `end_ns` (on the clock of each rank),
            `compute_before_ns` and `comm_before_ns` (what the rank launched before the call).
        lanes: `lane`, `LANE`, `ranks` (those read, ascending).
        clocks: one per rank that shares a call with the reference, directly or through others.
    """

    calls: pl.DataFrame
    lanes: pl.DataFrame
    clocks: tuple[Clock, ...]

    def offsets(self) -> pl.DataFrame:
        """`rank`, `offset_ns`: what a rank's clock is ahead of the reference; only ranks where it is known."""
        schema = {"rank": pl.Int64, "offset_ns": pl.Int64}
        return pl.DataFrame([(clock.rank, clock.offset_ns) for clock in self.clocks], schema=schema, orient="row")


def align(ranks: Sequence[RankSummary], table: GroupTable) -> Alignment | None:
    """Pair the calls of several ranks and measure how far their clocks are apart.

    Args:
        ranks: the summaries; those of unknown rank are left out.
        table: the groups of the job.

    Returns:
        None where fewer than two ranks are known.
    """
    if len({summary.rank for summary in ranks} - {None}) < 2:
        return None
    calls, lanes = _gather(ranks, table)
    calls = pair_lanes(calls)
    return Alignment(calls=calls, lanes=lanes, clocks=align_clocks(calls))


def _gather(ranks: Sequence[RankSummary], table: GroupTable) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All calls of all ranks in the order of issue, each with its lane; and the lanes."""
    runs = _number_runs(ranks)
    groups = [row for n, summary in enumerate(ranks) for row in _groups(summary, table, n, runs[n])]
    calls = _slim(ranks).join(_frame(groups, _GROUPS), on=["rank_index", "index"], how="left", nulls_equal=True)
    steps = [(n, i, step.number) for n, summary in enumerate(ranks) for i, step in enumerate(summary.head.steps)]
    calls = calls.join(_frame(steps, _STEPS), on=["rank_index", "step_index"], how="left")
    nameless = pl.col("group").is_null()
    stream = pl.format("stream {}", "stream")
    calls = calls.with_columns(
        name=pl.when(nameless).then(stream).otherwise("name"),
        run=pl.when(nameless).then(pl.col("rank_index").replace_strict(runs, return_dtype=pl.Int32)).otherwise("run"),
    ).filter(pl.col("name").is_not_null() & (pl.col("group_size").is_null() | (pl.col("group_size") > 1)))
    lanes = calls.group_by(*LANE).agg(ranks=pl.col("rank").unique().sort()).sort(*LANE).with_row_index("lane")
    calls = calls.join(lanes.drop("ranks"), on=LANE, nulls_equal=True).drop(*LANE, "index", "step_index", "stream")
    return calls.sort("lane", "rank", "issue_ns", "call"), lanes


_GROUPS = {"rank_index": pl.Int32, "index": pl.Int32, "run": pl.Int32, "group": pl.String, "name": pl.String}
_STEPS = {"rank_index": pl.Int32, "step_index": pl.Int32, "step": pl.Int64}


def _frame(rows: Sequence[tuple[Any, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def _number_runs(ranks: Sequence[RankSummary]) -> dict[int, int]:
    """The run of each summary: a rank that holds a step twice was recorded in two runs."""
    seen: dict[int | None, list[set[int | None]]] = {}
    runs = {}
    for index, summary in enumerate(ranks):
        numbers = {step.number for step in summary.head.steps} or {None}
        earlier = seen.setdefault(summary.rank, [])
        runs[index] = sum(bool(numbers & other) for other in earlier)
        earlier.append(numbers)
    return runs


def _slim(ranks: Sequence[RankSummary]) -> pl.DataFrame:
    """The calls of ranks that are known with what alignment needs; a message says from where to where it goes."""
    known = _frame(
        [(n, s.rank) for n, s in enumerate(ranks) if s.rank is not None], {"rank_index": pl.Int32, "rank": pl.Int64}
    )
    first = (
        stack([summary.links for summary in ranks]).group_by("rank_index", "call").agg(kernel=pl.col("kernel").min())
    )
    me = pl.col("rank")
    sends, receives = (pl.col("primitive") == p.value for p in (Primitive.send, Primitive.recv))
    calls = stack([summary.calls.select(_READ) for summary in ranks])
    return (
        calls.filter(~(sends | receives) | pl.col("peer").is_not_null())
        .join(known, on="rank_index")
        .join(first, on=["rank_index", "call"], how="left")
        .join(_spent_before(ranks), on=["rank_index", "call"], how="left")
        .select(
            "rank_index",
            "rank",
            pl.col("group").alias("index"),
            pl.col("step").alias("step_index"),
            *_KEPT,
            "kernel",
            pl.col("gpu_start_ns").alias("start_ns"),
            pl.col("gpu_end_ns").alias("end_ns"),
            "compute_before_ns",
            "comm_before_ns",
            src=pl.when(sends).then(me).when(receives).then("peer"),
            dst=pl.when(sends).then("peer").when(receives).then(me),
        )
    )


def _spent_before(ranks: Sequence[RankSummary]) -> pl.DataFrame:
    """Compute and communication that each rank launched before each call, ns."""
    compute = stack([summary.compute.select("after_call", "busy_ns") for summary in ranks]).select(
        "rank_index", call=pl.col("after_call").cast(pl.Int64).fill_null(-1) + 1, compute="busy_ns"
    )
    kernels = stack([summary.kernels.select("owner", "start_ns", "end_ns") for summary in ranks]).drop_nulls("owner")
    comm = kernels.select(
        "rank_index", call=pl.col("owner").cast(pl.Int64) + 1, comm=pl.col("end_ns") - pl.col("start_ns")
    )
    spent = pl.concat([compute, comm], how="diagonal").group_by("rank_index", "call").sum()
    calls = stack([summary.calls.select(pl.col("call").cast(pl.Int64)) for summary in ranks])
    both = calls.join(spent, on=["rank_index", "call"], how="left").sort("rank_index", "call")
    sums = {f"{what}_before_ns": pl.col(what).fill_null(0).cum_sum().over("rank_index") for what in ("compute", "comm")}
    return both.select("rank_index", pl.col("call").cast(pl.UInt32), **sums)


def _groups(summary: RankSummary, table: GroupTable, rank_index: int, run: int) -> list[tuple[int, int, int, str, str]]:
    """Each process group of a rank; one without a name goes by its place among those of equal ranks."""
    seen: dict[str, int] = {}
    rows = []
    for index, local in enumerate(summary.head.groups):
        group = table.id_of(local)
        slot = seen[group] = seen.get(group, 0) + 1
        rows.append((rank_index, index, run, group, local.name or f"#{slot}"))
    return rows
