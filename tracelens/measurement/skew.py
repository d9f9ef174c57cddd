"""Transfer and waiting: who comes late to the calls of a group, and what the others spend on it.

The last rank to arrive waits for nobody, so the shortest participant's time is the transfer and what the others spend
beyond it is waiting. That needs no clocks; clocks tell which calls a late profiler spoils and what stood in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tracelens.collectives import Primitive, bus_factor
from tracelens.many_ranks import RankWait, Skew
from tracelens.measurement.alignment import P2P, Alignment
from tracelens.measurement.arrival import NOTABLE_NS, NOTABLE_SHARE, find_last_arrivals
from tracelens.summary import RankSummary

ROW = ("pg", "what")
"""What a row of the result stands for: a process group and a primitive, or `p2p` for all messages of a group."""

# A kernel that begins this soon after a receive on its GPU was held up by it, if it was launched before its end.
_BEHIND_NS = 20_000


def time_calls(ranks: Sequence[RankSummary], alignment: Alignment) -> pl.DataFrame:
    """Transfer and waiting of every kernel of a paired call.

    Args:
        ranks: the summaries, in the order that the alignment was made from.
        alignment: their calls.

    Returns:
        Of the calls with times on two ranks or more: the columns of `Alignment.calls`, `offset_ns`, `duration_ns`,
        `transfer_ns` (of the call), `timed` (participants with times), `is_last`, `is_late_profiler`, `behind_ns`,
        `owned` (whether the kernel is charged to this row) and `wait_ns` (of the kernel).
    """
    calls = alignment.calls.join(alignment.offsets(), on="rank", how="left")
    paired = pl.col("key").is_not_null() & pl.col("agrees") & (pl.col("end_ns") >= pl.col("start_ns"))
    calls = (
        calls.filter(paired)
        .with_columns(
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            timed=pl.col("rank").n_unique().over("lane", "key"),
        )
        .filter(pl.col("timed") > 1)
    )
    duration = pl.col("duration_ns")
    calls = calls.with_columns(
        transfer_ns=duration.min().over("lane", "key"),
        is_last=duration.rank("ordinal").over("lane", "key") == 1,
    )
    calls = _find_late_profilers(calls, ranks)
    return _find_receives_in_front(_charge_kernels(calls))


def _find_late_profilers(calls: pl.DataFrame, ranks: Sequence[RankSummary]) -> pl.DataFrame:
    """Mark calls that some ranks entered before the recording of the last one began: its start-up is what they saw."""
    windows = pl.DataFrame(
        [(index, summary.head.start_ns) for index, summary in enumerate(ranks)],
        schema={"rank_index": pl.Int32, "window_ns": pl.Int64},
        orient="row",
    )
    entered = pl.col("start_ns") - pl.col("offset_ns")
    began = pl.col("window_ns") - pl.col("offset_ns")
    late = began.filter("is_last").first() > entered.filter(~pl.col("is_last")).min()
    # a recording that is known by its kernels only "begins" with the first of them, which tells nothing
    told = (pl.col("window_ns") < pl.col("start_ns")).filter("is_last").first()
    return (
        calls.join(windows, on="rank_index", how="left", maintain_order="left")
        .with_columns(is_late_profiler=(late & told).over("lane", "key").fill_null(value=False))
        .drop("window_ns")
    )


def _charge_kernels(calls: pl.DataFrame) -> pl.DataFrame:
    """Waiting of each kernel, charged once: one that both sends and receives is done when both transfers are."""
    # a call whose kernel is not known stands for itself
    served = pl.coalesce(pl.col("kernel").cast(pl.Int64), -1 - pl.col("call").cast(pl.Int64))
    kernel = ("rank_index", "served")
    wait = pl.col("duration_ns") - pl.col("transfer_ns").max().over(kernel)
    ordered = calls.with_columns(served=served).sort("rank_index", "served", "call")
    return ordered.with_columns(owned=pl.int_range(pl.len()).over(kernel) == 0, wait_ns=wait.clip(0)).drop("served")


def _find_receives_in_front(calls: pl.DataFrame) -> pl.DataFrame:
    """How much of each row's waiting is due to a receive that blocked the last rank: `behind_ns`."""
    receives = calls.filter((pl.col("primitive") == Primitive.recv.value) & (pl.col("wait_ns") > 0))
    receives = receives.select(
        "rank_index", receive_end_ns="end_ns", receive_wait_ns="wait_ns", receive_kernel="kernel"
    ).sort("receive_end_ns")
    last = (
        calls.filter(pl.col("is_last") & (pl.col("what") != P2P))
        .sort("start_ns")
        .join_asof(
            receives,
            left_on="start_ns",
            right_on="receive_end_ns",
            by="rank_index",
            tolerance=_BEHIND_NS,
            check_sortedness=False,
        )
        .filter(pl.col("launch_ns") < pl.col("receive_end_ns"))
        .select("lane", "key", "receive_wait_ns")
    )
    # min_horizontal passes over nulls
    behind = pl.when(pl.col("receive_wait_ns").is_not_null()).then(pl.min_horizontal("wait_ns", "receive_wait_ns"))
    return (
        calls.join(last.unique(["lane", "key"]), on=["lane", "key"], how="left", maintain_order="left")
        .with_columns(behind_ns=behind.fill_null(0))
        .drop("receive_wait_ns")
    )


def measure_skew(alignment: Alignment, timed: pl.DataFrame) -> tuple[Skew, ...]:
    """Transfer, waiting and the last to arrive, per process group and primitive; most waiting first.

    Args:
        alignment: the calls of all ranks.
        timed: as `time_calls` gives them.
    """
    counts = _count_pairs(alignment)
    used = timed.filter(~pl.col("is_late_profiler"))
    late = timed.filter("is_late_profiler").unique(["lane", "key"]).group_by(*ROW).agg(late=pl.len())
    sums = _sum_times(used)
    waits = _sum_waits(used)
    arrivals = find_last_arrivals(used)
    joined = counts
    for part in (late, sums, _bandwidths(used), waits):
        joined = joined.join(part, on=ROW, how="left", nulls_equal=True)
    told = joined.join(alignment.groups, on="pg").with_columns(pl.col("what").cast(pl.String))
    order = ("wait_ns", "run", "group", "name", "what")
    rows = told.sort(order, descending=[True, False, False, False, False], nulls_last=True)
    return tuple(_skew(row, arrivals.get(tuple(row[name] for name in ROW))) for row in rows.iter_rows(named=True))


def _count_pairs(alignment: Alignment) -> pl.DataFrame:
    """Of each row the ranks read, the size of the group, and how many calls were paired."""
    members = alignment.lanes.select("lane", members=pl.col("ranks").list.len())
    p2p = pl.col("what") == P2P
    used = ("pg", "what", "lane", "key", "rank", "call", "participants", "agrees", "group_size", "pairing")
    calls = alignment.calls.select(used).join(members, on="lane").with_columns(one_end=p2p & (pl.col("members") < 2))
    keyed = pl.coalesce("key", -1 - pl.col("call").cast(pl.Int64) - pl.col("rank") * (1 << 32))
    paired = pl.col("participants") == pl.max_horizontal("members", pl.lit(2))
    heads = calls.with_columns(keyed=keyed).unique(["lane", "keyed"], maintain_order=True)
    conflicting = ~pl.col("agrees") & pl.col("key").is_not_null()
    counted = heads.group_by(*ROW).agg(
        matched=(paired & ~conflicting).sum(),
        partly=((pl.col("participants") > 1) & ~paired & ~conflicting).sum(),
        unmatched=((pl.col("participants") == 1) & ~conflicting).sum(),
        conflicting=conflicting.sum(),
    )
    about = calls.group_by(*ROW).agg(
        size=pl.col("group_size").max(),
        ranks=pl.col("rank").unique().sort(),
        pairing=pl.col("pairing").mode().sort().first(),
        one_end=pl.col("one_end").any(),
    )
    return counted.join(about, on=ROW, nulls_equal=True).filter(pl.col("ranks").list.len() > 1)


def _sum_times(used: pl.DataFrame) -> pl.DataFrame:
    """Transfer (once per call, or per kernel where calls share one) and mean waiting per rank."""
    owned = used.filter("owned")
    transfer = owned.unique(["lane", "key"]).group_by(*ROW).agg(transfer_ns=pl.col("transfer_ns").sum())
    waiting = owned.group_by(*ROW).agg(
        wait_ns=(pl.col("wait_ns").sum() / pl.col("rank").n_unique()).round().cast(pl.Int64),
        behind_ns=(pl.col("behind_ns").sum() / pl.col("rank").n_unique()).round().cast(pl.Int64),
    )
    return waiting.join(transfer, on=ROW, how="left", nulls_equal=True)


def _sum_waits(used: pl.DataFrame) -> pl.DataFrame:
    notable = pl.col("wait_ns").max().over("lane", "key") >= pl.max_horizontal(
        pl.lit(NOTABLE_NS), pl.col("transfer_ns") * NOTABLE_SHARE
    )
    per_rank = (
        used.with_columns(counts=notable)
        .group_by(*ROW, "rank")
        .agg(
            wait_ns=pl.col("wait_ns").filter("owned").sum(),
            calls=pl.len().cast(pl.Int64),
            last=(pl.col("is_last") & pl.col("counts")).sum().cast(pl.Int64),
        )
        .sort("rank")
    )
    return per_rank.group_by(*ROW, maintain_order=True).agg(waits=pl.struct("rank", "wait_ns", "calls", "last"))


def _bandwidths(used: pl.DataFrame) -> pl.DataFrame:
    """Algorithm bandwidth, bytes/s: payload over transfer of the calls with times on all ranks that were read."""
    whole = used.filter(
        (pl.col("timed") == pl.col("participants")) & (pl.col("payload_bytes") >= 0) & (pl.col("transfer_ns") > 0)
    )
    once = whole.filter("owned").unique(["lane", "key"])
    return once.group_by(*ROW).agg(algbw=pl.col("payload_bytes").sum() / pl.col("transfer_ns").sum() * 1e9)


def _skew(row: dict[str, Any], last: Any) -> Skew:
    is_p2p = row["what"] == P2P
    read, size = len(row["ranks"]), row["size"]
    complete = not row["one_end"] if is_p2p else size is not None and read >= size
    enough = complete if is_p2p else size is not None and 2 * read >= size
    return Skew(
        group=row["group"],
        name=row["name"],
        primitive=row["what"],
        size=size,
        ranks=tuple(row["ranks"]),
        pairing=row["pairing"],
        matched_calls=row["matched"],
        partly_matched_calls=row["partly"],
        unmatched_calls=row["unmatched"],
        conflicting_calls=row["conflicting"],
        late_profiler_calls=row["late"] or 0,
        transfer_ns=row["transfer_ns"],
        wait_ns=row["wait_ns"],
        behind_receive_ns=row["behind_ns"],
        complete=complete,
        busbw_bytes_per_s=_busbw(row, is_p2p=is_p2p) if enough else None,
        last=last,
        waits=tuple(RankWait(**wait) for wait in row["waits"] or ()),
    )


def _busbw(row: dict[str, Any], *, is_p2p: bool) -> float | None:
    primitive = Primitive.send if is_p2p else Primitive(row["what"])
    factor = None if row["size"] is None else bus_factor(primitive, row["size"])
    return None if factor is None or not row["algbw"] else row["algbw"] * factor
