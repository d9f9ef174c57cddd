"""Calls of many ranks put side by side: which call of one rank is the same as which of another, and on which clock.

A *lane* is a sequence of calls that all its ranks issue in one order: the collectives of a process group, or the
messages from one rank to another in it. Within a lane a call has a number, its `key`, that is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tracelens.collectives import Primitive
from tracelens.many_ranks import Clock
from tracelens.measurement.clocks import align_clocks
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.pairing import kind_of, pair_lanes
from tracelens.measurement.traffic import stack
from tracelens.summary import RankSummary

P2P = "p2p"
WHAT = pl.Enum([*(primitive.value for primitive in Primitive), P2P])
"""What a call is, in one byte: a primitive; messages of both ends go by `p2p`."""

_READ = (
    *("call", "primitive", "dtype", "group", "group_size", "payload_bytes", "seq", "issue_ns", "launch_ns"),
    *("stream", "step", "peer", "gpu_start_ns", "gpu_end_ns", "wire_bytes"),
)
_BATCH = 512
"""Ranks whose whole calls meet at once; of all ranks only what alignment needs does, a hundred bytes a call."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The calls of all ranks with their common numbers, and how the clocks of the ranks differ.

    Attributes:
        calls: a row per rank and call: `rank_index`, `rank`, `pg`, `lane`, `key` (null: no counterpart can be named),
            `pairing`, `participants` (ranks of this key), `agrees` (equal primitive, dtype and size on all of them),
            `call`, `kernel` (the first that serves the call), `step` (number), `primitive`, `what`, `group_size`,
            `payload_bytes` (null of an all-to-all that does not tell what it sends), `launch_ns`, `start_ns`, `end_ns`
            (on the clock of each rank), and what the rank's GPU had done by then: `compute_at_start_ns`,
            `compute_at_end_ns`, `comm_at_start_ns`, `comm_at_end_ns`.
        lanes: `lane`, `pg`, `src` and `dst` (null for collectives), `ranks` (those read, ascending).
        groups: `pg` (a number for each process group), `run`, `group` (its id in the table), `name`.
        clocks: one per rank that shares a call with the reference, directly or through others.
    """

    calls: pl.DataFrame
    lanes: pl.DataFrame
    groups: pl.DataFrame
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
    calls, lanes, groups = _gather(ranks, table)
    calls = pair_lanes(calls)
    return Alignment(calls=calls, lanes=lanes, groups=groups, clocks=align_clocks(calls))


def _gather(ranks: Sequence[RankSummary], table: GroupTable) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """All calls of all ranks in the order of issue, each with its lane; the lanes; and the process groups."""
    numbers = _Numbers(table, _number_runs(ranks))
    firsts = range(0, len(ranks), _BATCH)
    calls = pl.concat([_slim(ranks[first : first + _BATCH], first, numbers) for first in firsts])
    lanes = calls.group_by(*_LANE).agg(ranks=pl.col("rank").unique().sort()).sort(*_LANE).with_row_index("lane")
    calls = (
        calls.with_row_index("order")
        .join(lanes.drop("ranks"), on=_LANE, nulls_equal=True)
        .drop("src", "dst")
        .sort("lane", "rank", "order")
        .drop("order")
    )
    return calls, lanes, numbers.groups()


_LANE = ("pg", "src", "dst")


class _Numbers:
    """A number for each process group; one without a name goes by its place among those of equal ranks."""

    def __init__(self, table: GroupTable, runs: dict[int, int]) -> None:
        self._table, self._runs = table, runs
        self._numbers: dict[tuple[int, str | None, str], int] = {}

    def _number(self, run: int, group: str | None, name: str) -> int:
        return self._numbers.setdefault((run, group, name), len(self._numbers))

    def of_ranks(self, ranks: Sequence[RankSummary], first: int) -> pl.DataFrame:
        """`rank_index`, `index` of a group in the head of its rank, `pg`."""
        rows = []
        for n, summary in enumerate(ranks, first):
            seen: dict[str, int] = {}
            for index, local in enumerate(summary.head.groups):
                group = self._table.id_of(local)
                slot = seen[group] = seen.get(group, 0) + 1
                rows.append((n, index, self._number(self._runs[n], group, local.name or f"#{slot}")))
        return _frame(rows, {"rank_index": pl.Int32, "index": pl.Int32, "pg": pl.UInt32})

    def of_streams(self, calls: pl.DataFrame) -> pl.DataFrame:
        """`rank_index`, `stream`, `stream_pg`: calls of no group go by their stream."""
        pairs = calls.filter(pl.col("index").is_null()).select("rank_index", "stream").drop_nulls().unique()
        rows = [(n, s, self._number(self._runs[n], None, f"stream {s}")) for n, s in pairs.sort(pl.all()).iter_rows()]
        return _frame(rows, {"rank_index": pl.Int32, "stream": pl.Int64, "stream_pg": pl.UInt32})

    def groups(self) -> pl.DataFrame:
        """The process groups by number."""
        rows = [(number, *key) for key, number in self._numbers.items()]
        return _frame(rows, {"pg": pl.UInt32, "run": pl.Int32, "group": pl.String, "name": pl.String})


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


def _slim(ranks: Sequence[RankSummary], first: int, numbers: _Numbers) -> pl.DataFrame:
    """The calls of ranks that are known with what alignment needs; a message says from where to where it goes."""
    steps = [(n, i, step.number) for n, summary in enumerate(ranks, first) for i, step in enumerate(summary.head.steps)]
    links = stack([summary.links for summary in ranks], first)
    kernels = links.group_by("rank_index", "call").agg(kernel=pl.col("kernel").min())
    sends, receives = (pl.col("primitive") == p.value for p in (Primitive.send, Primitive.recv))
    exchanges = pl.col("primitive") == Primitive.all_to_all.value
    spent = ("compute_at_start_ns", "compute_at_end_ns", "comm_at_start_ns", "comm_at_end_ns")
    return (
        _grouped_calls(ranks, first, numbers)
        .join(_frame(steps, _STEPS), on=["rank_index", "step_index"], how="left")
        .join(kernels, on=["rank_index", "call"], how="left")
        .join(_spent_until(ranks, first), on=["rank_index", "call"], how="left")
        .sort("rank_index", "issue_ns", "call")
        .select(
            *("rank_index", "rank", "pg", "call", "kernel"),
            pl.col("primitive").cast(WHAT),
            pl.when(sends | receives).then(pl.lit(P2P)).otherwise("primitive").cast(WHAT).alias("what"),
            kind_of(sends | receives),
            "group_size",
            # how much of an all-to-all of unknown splits travels is not known, so no rate can be made of it
            pl.when(~exchanges | pl.col("wire_bytes").is_not_null()).then("payload_bytes"),
            *("step", "seq", "launch_ns"),
            pl.col("gpu_start_ns").alias("start_ns"),
            pl.col("gpu_end_ns").alias("end_ns"),
            *spent,
            src=pl.when(sends).then("rank").when(receives).then("peer"),
            dst=pl.when(sends).then("peer").when(receives).then("rank"),
        )
    )


def _grouped_calls(ranks: Sequence[RankSummary], first: int, numbers: _Numbers) -> pl.DataFrame:
    """The calls of ranks that are known, with `rank` and `pg`; none of groups of one, no message without a peer."""
    known = [(n, summary.rank) for n, summary in enumerate(ranks, first) if summary.rank is not None]
    p2p = pl.col("primitive").is_in([Primitive.send.value, Primitive.recv.value])
    alone = (pl.col("group_size") <= 1).fill_null(value=False)
    calls = stack([summary.calls.select(_READ) for summary in ranks], first)
    calls = calls.rename({"group": "index", "step": "step_index"}).filter(
        (~p2p | pl.col("peer").is_not_null()) & ~alone
    )
    return (
        calls.join(_frame(known, {"rank_index": pl.Int32, "rank": pl.Int64}), on="rank_index")
        .join(numbers.of_ranks(ranks, first), on=["rank_index", "index"], how="left")
        .join(numbers.of_streams(calls), on=["rank_index", "stream"], how="left")
        .with_columns(pg=pl.when(pl.col("index").is_null()).then("stream_pg").otherwise("pg"))
        .filter(pl.col("pg").is_not_null())
    )


_STEPS = {"rank_index": pl.Int32, "step_index": pl.Int32, "step": pl.Int64}


def _spent_until(ranks: Sequence[RankSummary], first: int) -> pl.DataFrame:
    """Compute and communication that each rank's GPU had done when a call began and when it ended, ns."""
    parts = []
    for summary in ranks:
        calls, compute, kernels = summary.calls, summary.compute, summary.kernels
        busy = _running_total(compute["start_ns"], compute["end_ns"], compute["busy_ns"])
        comm = _running_total(kernels["start_ns"], kernels["end_ns"], kernels["end_ns"] - kernels["start_ns"])
        start, end = calls["gpu_start_ns"], calls["gpu_end_ns"]
        parts.append(
            pl.DataFrame(
                {
                    "call": calls["call"],
                    "compute_at_start_ns": busy(start),
                    "compute_at_end_ns": busy(end),
                    "comm_at_start_ns": comm(start),
                    "comm_at_end_ns": comm(end),
                }
            )
        )
    return stack(parts, first)


def _running_total(starts: pl.Series, ends: pl.Series, ns: pl.Series) -> Callable[[pl.Series], pl.Series]:
    """What was done up to a time, of work that is spread evenly between its starts and ends.

    Args:
        starts: when pieces of work begin.
        ends: when they end.
        ns: how long each piece is.
    """
    begin, end = starts.to_numpy(), ends.to_numpy()
    rate = ns.to_numpy() / np.maximum(end - begin, 1)
    points, where = np.unique(np.concatenate((begin, end)), return_inverse=True)
    slopes = np.bincount(where, np.concatenate((rate, -rate)), minlength=points.size).cumsum()
    lengths = np.diff(points)
    totals = np.concatenate(([0.0], (slopes[:-1] * lengths).cumsum())) if points.size else points

    def until(times: pl.Series) -> pl.Series:
        at = times.fill_null(0).to_numpy()
        done = np.interp(at - points[0], points - points[0], totals) if points.size else np.zeros(at.size)
        known = pl.Series(done, dtype=pl.Float64).round().cast(pl.Int64)
        return pl.select(pl.when(times.is_not_null()).then(known)).to_series()

    return until
