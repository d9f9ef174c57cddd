"""How far the clocks of ranks are apart: a synchronous collective ends on all its ranks at once."""

from __future__ import annotations

import polars as pl

from tracelens.collectives import Primitive
from tracelens.many_ranks import Clock, ClockSource

# No rank can leave these before the last one has come. The root of a broadcast may leave early.
SYNCHRONOUS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_MESSAGES = frozenset({Primitive.send.value, Primitive.recv.value})


def align_clocks(calls: pl.DataFrame) -> tuple[Clock, ...]:
    """Offsets of all ranks that can be reached from the lowest one over calls that they share.

    The offset of a rank is the median, over the calls that it shares with ranks already placed, of how much later it
    saw them end. What no collective reaches is placed by its messages. Every step outward adds the error of one more
    median: `hops` says how many there are.

    Args:
        calls: `rank`, `lane`, `key`, `participants`, `agrees`, `primitive`, `end_ns`.

    Returns:
        The reference first, then by rank.
    """
    ends = calls.filter(
        pl.col("key").is_not_null() & pl.col("agrees") & (pl.col("participants") > 1) & pl.col("end_ns").is_not_null()
    ).select("rank", "lane", "key", "primitive", "end_ns")
    if ends.is_empty():
        return ()
    # medians are floats, which hold ns since the epoch no better than to 256: count from the first end of each rank
    first = dict(ends.group_by("rank").agg(pl.col("end_ns").min()).iter_rows())
    ends = ends.with_columns(end_ns=pl.col("end_ns") - pl.col("end_ns").min().over("rank"))
    reference = min(first)
    placed = pl.DataFrame([(reference, 0, 0, 0, 0, ClockSource.reference.value)], schema=_PLACED, orient="row")
    for source, kinds in ((ClockSource.collectives, SYNCHRONOUS), (ClockSource.messages, SYNCHRONOUS | _MESSAGES)):
        placed = _place_all(ends.filter(pl.col("primitive").is_in(list(kinds))), placed, source)
    return tuple(
        Clock(
            rank=rank,
            offset_ns=offset + first[rank] - first[reference],
            spread_ns=spread,
            calls=count,
            hops=hops,
            source=ClockSource(source),
        )
        for rank, offset, spread, count, hops, source in placed.sort("rank").iter_rows()
    )


_PLACED = {
    "rank": pl.Int64,
    "offset_ns": pl.Int64,
    "spread_ns": pl.Int64,
    "calls": pl.Int64,
    "hops": pl.Int64,
    "source": pl.String,
}


def _place_all(ends: pl.DataFrame, placed: pl.DataFrame, source: ClockSource) -> pl.DataFrame:
    """Place rank after rank, those next to placed ones first, until nothing more can be reached."""
    while True:
        new = _place_next(ends, placed, source)
        if new.is_empty():
            return placed
        placed = pl.concat([placed, new])


def _place_next(ends: pl.DataFrame, placed: pl.DataFrame, source: ClockSource) -> pl.DataFrame:
    joined = ends.join(placed.select("rank", "offset_ns", "hops"), on="rank", how="left")
    known = joined.drop_nulls("offset_ns")
    common = known.group_by("lane", "key").agg(
        common_ns=(pl.col("end_ns") - pl.col("offset_ns")).median(), hops=pl.col("hops").max() + 1
    )
    later = pl.col("end_ns") - pl.col("common_ns")
    return (
        joined.filter(pl.col("offset_ns").is_null())
        .drop("hops")
        .join(common, on=["lane", "key"])
        .group_by("rank")
        .agg(
            offset_ns=later.median().round().cast(pl.Int64),
            # the distance of a single call from itself tells nothing
            spread_ns=pl.when(pl.len() > 1).then((later - later.median()).abs().median().round().cast(pl.Int64)),
            calls=pl.len().cast(pl.Int64),
            hops=pl.col("hops").min(),
            source=pl.lit(source.value),
        )
        .select(*_PLACED)
    )
