"""Calls of a dry run as the frame of measured calls, so that one code sums both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.measurement.rows import merge_group_time
from tracelens.measurement.sizes import merge_sizes, sum_sizes, with_sizes
from tracelens.results import GroupTime, SizeRow

CALLS: dict[str, pl.DataType] = {
    "rank_index": pl.Int32(),
    "rank_class": pl.Int32(),
    "step": pl.Int32(),
    "kind": pl.String(),
    "group": pl.String(),
    "primitive": pl.String(),
    "dtype": pl.String(),
    "phase": pl.String(),
    "payload_bytes": pl.Int64(),
    "wire_bytes": pl.Float64(),
    "kernels": pl.Int64(),
}
"""A row per call; `kind` tells groups apart, and is the group here: each rank is a class of its own."""


def frame_of(calls: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Calls, each with the keys of `CALLS`, as a frame."""
    return pl.DataFrame(list(calls), schema=CALLS)


def size_rows(calls: pl.DataFrame, steps: Sequence[int]) -> tuple[SizeRow, ...]:
    """What each rank sends in each group with calls of each size; times are unknown.

    Args:
        calls: `CALLS` of all ranks.
        steps: how many steps of each rank count.
    """
    untimed = pl.lit(None, pl.Float64)
    sums = sum_sizes(with_sizes(calls)).with_columns(busy_ns=untimed, exposed_ns=untimed)
    return merge_sizes(sums, dict(enumerate(steps)))


def group_rows(calls: pl.DataFrame, steps: Sequence[Sequence[int]]) -> tuple[GroupTime, ...]:
    """What each rank sends in each group, all primitives together; times are unknown.

    Args:
        calls: `CALLS` of all ranks.
        steps: the steps of each rank that count.
    """
    known = pl.col("wire_bytes").is_not_null()
    totals = calls.group_by("rank_index", "group", maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64),
        calls_sized=known.sum(),
        calls_timed=(pl.col("kernels") > 0).sum(),
        wire_bytes=pl.when(known.any()).then(pl.col("wire_bytes").sum()),
        busy_ns=pl.lit(None, pl.Int64),
        exposed_ns=pl.lit(None, pl.Int64),
    )
    return merge_group_time(totals, range(len(steps)), steps)
