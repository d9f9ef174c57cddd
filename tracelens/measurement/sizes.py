"""Traffic by the size of its calls: what a prediction of each call, or a second run, is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any

import msgspec
import polars as pl

from tracelens.measurement.groups import GroupTable
from tracelens.measurement.traffic import describe_groups, report_primitive, stack
from tracelens.results import SizeRow
from tracelens.summary import RankSummary

MOST_SIZES = 32
"""Sizes that a kind of call may have; beyond, such as where data decide them, they are put in buckets."""
_BUCKET = 2
"""Sizes of one bucket lie within a factor of 2^_BUCKET."""

_BATCH = 512
"""Ranks whose calls meet in one frame."""

_GROUPS = {"rank_index": pl.Int32, "index": pl.Int32, "group": pl.String, "kind": pl.String}
_STEPS = {"rank_index": pl.Int32, "step": pl.Int32, "rank_class": pl.Int32}
_KEY = ("kind", "primitive", "dtype", "phase")
_SIZED = (*_KEY, "from_bytes", "to_bytes")
_STEP_KEY = ("rank_index", "rank_class", "step", *_SIZED)
_COUNTS = ("calls", "calls_with_bytes", "calls_with_time")
_SUMS = ("payload_bytes", "wire_bytes", "busy_ns", "exposed_ns")


def measure_sizes(
    ranks: Sequence[RankSummary], table: GroupTable, steps: Sequence[Sequence[int]], classes: Sequence[int]
) -> tuple[SizeRow, ...]:
    """What each class of ranks sends in each group with calls of each size, per step.

    Args:
        ranks: the summaries.
        table: the groups of the job.
        steps: the indices of the steps to use, per summary.
        classes: the class of each summary.
    """
    parts = [
        _steps_of_ranks(ranks[batch], table, steps[batch], classes[batch], batch.start)
        for batch in (slice(first, first + _BATCH) for first in range(0, len(ranks), _BATCH))
    ]
    if not parts:
        return ()
    used: dict[int, int] = {}
    for use, number in zip(steps, classes, strict=True):
        used[number] = used.get(number, 0) + len(use)
    return merge_sizes(pl.concat(parts), used)


def merge_sizes(sums: pl.DataFrame, used: Mapping[int, int]) -> tuple[SizeRow, ...]:
    """Rows of classes out of sums of single ranks and steps.

    Args:
        sums: of `sum_sizes`, with `busy_ns` and `exposed_ns`.
        used: steps of each class, of all its ranks together.
    """
    of_steps = [pl.col(name).alias(f"{name}_of_steps") for name in (*_COUNTS, *_SUMS)]
    rows = (
        sums.group_by("rank_class", *_SIZED, maintain_order=True)
        .agg(pl.col("group").first(), *of_steps, pl.col("step"))
        .sort("rank_class", "kind", "primitive", "dtype", "phase", "from_bytes", nulls_last=True, maintain_order=True)
    )
    return tuple(_size_row(row, used[row["rank_class"]]) for row in rows.iter_rows(named=True))


def _steps_of_ranks(
    ranks: Sequence[RankSummary],
    table: GroupTable,
    steps: Sequence[Sequence[int]],
    classes: Sequence[int],
    first: int,
) -> pl.DataFrame:
    """Sums per rank, its class, key, size and step."""
    groups = [(n, *row[:3]) for n, summary in enumerate(ranks, first) for row in describe_groups(summary, table)]
    kinds = pl.DataFrame(groups, schema=_GROUPS, orient="row")
    numbered = enumerate(zip(steps, classes, strict=True), first)
    used = [(n, step, number) for n, (use, number) in numbered for step in use]
    inside = pl.DataFrame(used, schema=_STEPS, orient="row")
    calls = (
        stack([summary.calls for summary in ranks], first)
        .join(inside, on=["rank_index", "step"], maintain_order="left")
        .rename({"group": "index"})
        .join(kinds, on=["rank_index", "index"], how="left", maintain_order="left")
        .with_columns(primitive=report_primitive())
    )
    calls = with_sizes(calls)
    key = list(_STEP_KEY)
    sums = sum_sizes(calls)
    kernels = stack([summary.kernels.select("kernel", call="owner") for summary in ranks], first)
    owned = kernels.join(calls.select("call", *key), on=["rank_index", "call"])
    time = (
        stack([summary.segments for summary in ranks], first)
        .join(owned, on=["rank_index", "kernel"])
        .unique(["segment", *key])
        .group_by(key)
        .agg(busy_ns=pl.col("length_ns").sum(), exposed_ns=(pl.col("length_ns") - pl.col("covered_ns")).sum())
    )
    return sums.join(time, on=key, how="left", nulls_equal=True, maintain_order="left")


def sum_sizes(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls and bytes per rank, its class, key, size and step, without times.

    Args:
        calls: of `with_sizes`: one row per call with `rank_index, rank_class, step, kind, group, primitive, dtype,
            phase, payload_bytes, wire_bytes, kernels`.
    """
    return calls.group_by(_STEP_KEY, maintain_order=True).agg(
        group=pl.col("group").first(),
        calls=pl.len().cast(pl.Int64),
        calls_with_bytes=pl.col("wire_bytes").is_not_null().sum(),
        calls_with_time=(pl.col("kernels") > 0).sum(),
        payload_bytes=_known_sum("payload_bytes"),
        wire_bytes=_known_sum("wire_bytes"),
    )


def _known_sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())


def with_sizes(calls: pl.DataFrame) -> pl.DataFrame:
    """Each call with the bounds of its size: the size itself, or its bucket where there are many."""
    payload = pl.col("payload_bytes")
    many = payload.n_unique().over("rank_class", *_KEY) > MOST_SIZES
    floor = (payload.clip(1).cast(pl.Float64).log(2) / _BUCKET + 1e-9).floor() * _BUCKET
    first = pl.lit(2.0).pow(floor).cast(pl.Int64)
    return calls.with_columns(
        from_bytes=pl.when(many).then(first).otherwise(payload),
        to_bytes=pl.when(many).then(first * 2**_BUCKET - 1).otherwise(payload),
    )


def _size_row(row: Mapping[str, Any], rank_steps: int) -> SizeRow:
    """Means over all steps of all ranks of the class; a step without such a call counts as zero."""
    calls = row["calls_of_steps"]
    missing = rank_steps - len(calls)
    filled = sorted(calls) + [0] * missing
    told: dict[str, Any] = {
        "class": row["rank_class"],
        "steps_used": rank_steps,
        "calls_per_step": {
            "min": 0 if missing else min(calls),
            "median": median(filled),
            "max": max(calls),
            "mean": sum(calls) / rank_steps,
        },
        "busy_spread_ns": _spread(row["step"], row["busy_ns_of_steps"], missing),
        "exposed_spread_ns": _spread(row["step"], row["exposed_ns_of_steps"], missing),
    }
    told |= {f"{name}_per_step": _mean(row[f"{name}_of_steps"], rank_steps) for name in _SUMS}
    told |= {name: sum(row[f"{name}_of_steps"]) for name in _COUNTS}
    told |= {name: row[name] for name in ("group", *_SIZED[1:])}
    return msgspec.convert(told, SizeRow)


def _mean(values: Sequence[float | None], rank_steps: int) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / rank_steps) if known else None


def _spread(steps: Sequence[int], values: Sequence[float | None], missing: int) -> int | None:
    """Standard deviation between steps of the mean over ranks; None with fewer than two steps."""
    by_step: dict[int, list[float]] = {}
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            by_step.setdefault(step, []).append(value)
    means = [sum(own) / len(own) for own in by_step.values()]
    if len(means) < 2 or missing:
        return None
    middle = sum(means) / len(means)
    return round(sqrt(sum((mean - middle) ** 2 for mean in means) / (len(means) - 1)))
