"""Calls of many ranks put side by side: which call of one rank is the same as which of another, and on which clock.

A *lane* is a sequence of calls that all its ranks issue in one order: the collectives of a process group, or the
messages from one rank to another in it. Within a lane a call has a number, its `key`, that is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens.collectives import Primitive
from tracelens.many_ranks import Clock
from tracelens.measurement.clocks import align_clocks
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.pairing import pair_lanes
from tracelens.summary import RankSummary

LANE = ("run", "group", "name", "src", "dst")
"""What tells lanes apart; `src` and `dst` are null for collectives."""

_KEPT = ("call", "primitive", "dtype", "group_size", "payload_bytes", "seq", "issue_ns", "launch_ns", "stream")


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
    frames = [_slim(summary, n) for n, summary in enumerate(ranks) if summary.rank is not None]
    groups = pl.concat([_groups(summary, table, n, runs[n]) for n, summary in enumerate(ranks)])
    calls = pl.concat(frames).join(groups, on=["rank_index", "index"], how="left", nulls_equal=True)
    steps = pl.concat([_step_numbers(summary, n) for n, summary in enumerate(ranks)])
    calls = calls.join(steps, on=["rank_index", "step_index"], how="left")
    nameless = pl.col("group").is_null()
    stream = pl.format("stream {}", "stream")
    calls = calls.with_columns(
        name=pl.when(nameless).then(stream).otherwise("name"),
        run=pl.when(nameless).then(pl.col("rank_index").replace_strict(runs, return_dtype=pl.Int32)).otherwise("run"),
    ).filter(pl.col("name").is_not_null() & (pl.col("group_size").is_null() | (pl.col("group_size") > 1)))
    lanes = calls.group_by(*LANE).agg(ranks=pl.col("rank").unique().sort()).sort(*LANE).with_row_index("lane")
    calls = calls.join(lanes.drop("ranks"), on=LANE, nulls_equal=True).drop(*LANE, "index", "step_index", "stream")
    return calls.sort("lane", "rank", "issue_ns", "call"), lanes


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


def _slim(summary: RankSummary, rank_index: int) -> pl.DataFrame:
    """The calls of one rank with what alignment needs; a message says from where to where it goes."""
    before = _spent_before(summary)
    first = summary.links.group_by("call").agg(kernel=pl.col("kernel").min())
    me = pl.lit(summary.rank, pl.Int64)
    sends, receives = (pl.col("primitive") == p.value for p in (Primitive.send, Primitive.recv))
    return (
        summary.calls.filter(~(sends | receives) | pl.col("peer").is_not_null())
        .join(first, on="call", how="left", maintain_order="left")
        .select(
            pl.lit(rank_index, pl.Int32).alias("rank_index"),
            me.alias("rank"),
            pl.col("group").alias("index"),
            pl.col("step").alias("step_index"),
            *_KEPT,
            "kernel",
            pl.col("gpu_start_ns").alias("start_ns"),
            pl.col("gpu_end_ns").alias("end_ns"),
            src=pl.when(sends).then(me).when(receives).then("peer"),
            dst=pl.when(sends).then("peer").when(receives).then(me),
            compute_before_ns=pl.col("call").map_batches(lambda call: before[0].gather(call), return_dtype=pl.Int64),
            comm_before_ns=pl.col("call").map_batches(lambda call: before[1].gather(call), return_dtype=pl.Int64),
        )
    )


def _spent_before(summary: RankSummary) -> tuple[pl.Series, pl.Series]:
    """Compute and communication that were launched before each call, ns."""
    kernels = summary.kernels.drop_nulls("owner")
    spent = (
        (summary.compute["after_call"].cast(pl.Int64).fill_null(-1) + 1, summary.compute["busy_ns"]),
        (kernels["owner"].cast(pl.Int64) + 1, kernels["end_ns"] - kernels["start_ns"]),
    )
    count = len(summary.calls) + 1
    sums = (np.bincount(at.to_numpy(), weights=ns.to_numpy(), minlength=count) for at, ns in spent)
    compute, comm = (pl.Series(np.cumsum(ns)[:-1], dtype=pl.Int64) for ns in sums)
    return compute, comm


def _groups(summary: RankSummary, table: GroupTable, rank_index: int, run: int) -> pl.DataFrame:
    """Each process group of a rank; one without a name goes by its place among those of equal ranks."""
    seen: dict[str, int] = {}
    rows = []
    for index, local in enumerate(summary.head.groups):
        group = table.id_of(local)
        slot = seen[group] = seen.get(group, 0) + 1
        rows.append((rank_index, index, run, group, local.name or f"#{slot}"))
    schema = {"rank_index": pl.Int32, "index": pl.Int32, "run": pl.Int32, "group": pl.String, "name": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _step_numbers(summary: RankSummary, rank_index: int) -> pl.DataFrame:
    rows = [(rank_index, index, step.number) for index, step in enumerate(summary.head.steps)]
    return pl.DataFrame(rows, schema={"rank_index": pl.Int32, "step_index": pl.Int32, "step": pl.Int64}, orient="row")
