"""Traffic of each rank: what it sends per group, primitive and step, and the time that takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracelens.collectives import Primitive, bus_factor
from tracelens.measurement.groups import GroupTable
from tracelens.results import Evidence
from tracelens.summary import RankSummary

KEY = ("kind", "primitive", "dtype", "phase", "evidence", "orphan")
"""What tells rows apart within a rank; `kind` stands for one process group, the same one for ranks alike, and
`orphan` names kernels that no call explains."""

_PER_RANK = ("rank_index", *KEY)

ROWS: dict[str, pl.DataType] = {
    "rank_index": pl.Int32(),
    "kind": pl.String(),
    "group": pl.String(),
    "name": pl.String(),
    "group_size": pl.Int64(),
    "primitive": pl.String(),
    "dtype": pl.String(),
    "phase": pl.String(),
    "evidence": pl.String(),
    "orphan": pl.String(),
    "steps": pl.Int64(),
    "calls": pl.Int64(),
    "calls_min": pl.Int64(),
    "calls_median": pl.Float64(),
    "calls_max": pl.Int64(),
    "calls_paid": pl.Int64(),
    "calls_sized": pl.Int64(),
    "calls_timed": pl.Int64(),
    "kernels": pl.Int64(),
    "unlinked": pl.Int64(),
    "payload_bytes": pl.Int64(),
    "wire_bytes": pl.Float64(),
    "timed_bytes": pl.Int64(),
    "busy_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "paid_busy_ns": pl.Int64(),
    "sized_busy_ns": pl.Int64(),
}
"""A rank's rows: sums over the steps used, of the calls that tell; `calls_paid` have a payload, `calls_sized` wire
bytes, `calls_timed` a kernel, and what none tells is null."""

REPORTED = frozenset(p.value for p in Primitive) - {Primitive.gather, Primitive.scatter, Primitive.barrier}
"""The contract's words; what lies outside of them is told as `other`."""


def describe_groups(summary: RankSummary, table: GroupTable) -> list[tuple[int, str, str, str | None]]:
    """Each process group of a rank: its index, its id in the table, its `kind` and its name.

    The kind is what ranks alike share: the mesh without its first rank (or the size), what the group is called,
    and which of the groups with those very ranks it is.
    """
    seen: dict[str, int] = {}
    rows = []
    for index, local in enumerate(summary.head.groups):
        group, shape = table.id_of(local), table.shape_of(local)
        slot = seen[group] = seen.get(group, 0) + 1
        rows.append((index, group, f"{shape} {local.description or ''} {slot}", local.name))
    return rows


_GROUPS = {"rank_index": pl.Int32, "index": pl.Int32, "group": pl.String, "kind": pl.String, "name": pl.String}
_BATCH = 512
"""Ranks whose frames meet at once: enough to make the cost of a query small, few enough to stay small in memory."""


def measure_traffic(
    ranks: Sequence[RankSummary], table: GroupTable, steps: Sequence[Sequence[int]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of traffic and of group time of every rank.

    Args:
        ranks: the summaries.
        table: groups of the job.
        steps: indices of the steps to use, per summary.

    Returns:
        `ROWS`, and per group `rank_index, group, calls, calls_sized, calls_timed, wire_bytes, busy_ns,
        exposed_ns` as sums over the steps.
    """
    measured = [
        _measure_batch(_Batch(ranks[first : first + _BATCH], table, steps[first : first + _BATCH], first))
        for first in range(0, len(ranks), _BATCH)
    ]
    return pl.concat([rows for rows, _ in measured]), pl.concat([totals for _, totals in measured])


class _Batch:
    """The frames of some ranks, one below the other, with `rank_index`."""

    def __init__(
        self, ranks: Sequence[RankSummary], table: GroupTable, steps: Sequence[Sequence[int]], first: int
    ) -> None:
        self.calls = stack([summary.calls for summary in ranks], first)
        self.kernels = stack([summary.kernels for summary in ranks], first)
        self.links = stack([summary.links for summary in ranks], first)
        self.segments = stack([summary.segments for summary in ranks], first)
        groups = [(n, *row) for n, summary in enumerate(ranks, first) for row in describe_groups(summary, table)]
        self.groups = pl.DataFrame(groups, schema=_GROUPS, orient="row")
        used = [(n, step) for n, use in enumerate(steps, first) for step in use]
        self.used = pl.DataFrame(used, schema={"rank_index": pl.Int32, "step": pl.Int32}, orient="row")
        counts = [(n, len(use)) for n, use in enumerate(steps, first)]
        self.steps = pl.DataFrame(counts, schema={"rank_index": pl.Int32, "steps": pl.Int64}, orient="row")


def stack(frames: Sequence[pl.DataFrame], first: int = 0) -> pl.DataFrame:
    """Frames of single ranks one below the other, with `rank_index` counted from `first`."""
    numbers = np.repeat(np.arange(first, first + len(frames), dtype=np.int32), [len(frame) for frame in frames])
    return pl.concat(frames).with_columns(rank_index=pl.Series(numbers))


def _measure_batch(batch: _Batch) -> tuple[pl.DataFrame, pl.DataFrame]:
    calls = _keyed_calls(batch)
    kernels = _keyed_kernels(batch, calls)
    inside = calls.join(batch.used, on=["rank_index", "step"], how="semi", maintain_order="left")
    launched = kernels.join(batch.used, on=["rank_index", "step"], how="semi", maintain_order="left")
    rows = _sums(inside)
    for part in (
        _spread(inside, batch),
        _kernel_counts(batch, inside, launched),
        _time(batch, launched, _PER_RANK),
        _unlinked(kernels),
    ):
        part = part.sort(_PER_RANK, nulls_last=True)  # rows that only this part has come in an order of their own
        rows = rows.join(part, on=_PER_RANK, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
    rows = (
        rows.join(batch.steps, on="rank_index", how="left", maintain_order="left")
        .with_columns(
            pl.col("calls", "calls_min", "calls_max", "calls_paid", *_TOLD_OF, "kernels", "unlinked").fill_null(0),
            calls_median=pl.col("calls_median").fill_null(0.0),
        )
        .sort("rank_index", maintain_order=True)
    )
    return rows.select([pl.col(name).cast(dtype) for name, dtype in ROWS.items()]), _group_totals(
        batch, inside, launched
    )


def _keyed_calls(batch: _Batch) -> pl.DataFrame:
    calls = batch.calls.rename({"group": "index"}).join(
        batch.groups, on=["rank_index", "index"], how="left", maintain_order="left"
    )
    return calls.with_columns(
        primitive=report_primitive(),
        orphan=pl.lit(None, pl.String),
    )


def report_primitive() -> pl.Expr:
    """The primitive in the contract's words."""
    reported = pl.col("primitive").is_in(list(REPORTED))
    return pl.when(reported).then("primitive").otherwise(pl.lit(Primitive.other.value))


def _keyed_kernels(batch: _Batch, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels with the key of the call that owns them; those of no call go by their own name."""
    known = {"paid": pl.col("payload_bytes").is_not_null(), "sized": pl.col("wire_bytes").is_not_null()}
    owned = calls.select("rank_index", "call", "group", *KEY[:-1], call_step="step", **known)
    joined = batch.kernels.join(
        owned, left_on=["rank_index", "owner"], right_on=["rank_index", "call"], how="left", maintain_order="left"
    )
    orphan = pl.col("owner").is_null()
    return joined.with_columns(
        orphan=pl.when(orphan).then(pl.coalesce("family", "name")),
        primitive=pl.when(orphan).then(pl.coalesce("hint", pl.lit(Primitive.other.value))).otherwise("primitive"),
        evidence=pl.when(orphan).then(pl.lit(Evidence.kernel_name.value)).otherwise("evidence"),
        step=pl.when(orphan).then("step").otherwise("call_step"),
    )


def _sums(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.group_by(*_PER_RANK, maintain_order=True).agg(
        group=pl.col("group").first(),
        name=pl.col("name").first(),
        group_size=pl.col("group_size").first(),
        calls=pl.len().cast(pl.Int64),
        calls_paid=pl.col("payload_bytes").is_not_null().sum(),
        **_told_of(),
        payload_bytes=_known_sum("payload_bytes"),
        wire_bytes=_known_sum("wire_bytes"),
        timed_bytes=pl.col("payload_bytes").filter(pl.col("kernels") > 0).sum(),
    )


_TOLD_OF = ("calls_sized", "calls_timed")


def _told_of() -> dict[str, pl.Expr]:
    """How many calls have bytes, and how many a kernel."""
    return {"calls_sized": pl.col("wire_bytes").is_not_null().sum(), "calls_timed": (pl.col("kernels") > 0).sum()}


def _known_sum(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())


def _spread(calls: pl.DataFrame, batch: _Batch) -> pl.DataFrame:
    """Least, middle and most calls of a step; a step without any counts as zero."""
    per_step = calls.group_by(*_PER_RANK, "step").agg(calls=pl.len().cast(pl.Int64))
    grid = calls.select(_PER_RANK).unique().join(batch.used, on="rank_index")
    return (
        grid.join(per_step, on=[*_PER_RANK, "step"], how="left", nulls_equal=True)
        .with_columns(pl.col("calls").fill_null(0))
        .group_by(_PER_RANK)
        .agg(
            calls_min=pl.col("calls").min(),
            calls_median=pl.col("calls").median(),
            calls_max=pl.col("calls").max(),
        )
    )


def _kernel_counts(batch: _Batch, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels that serve each row; one that carries a send and a receive counts for both."""
    keyed = calls.select("call", *_PER_RANK)
    serving = batch.links.join(keyed, on=["rank_index", "call"]).select("kernel", *_PER_RANK)
    alone = kernels.filter(pl.col("owner").is_null()).select("kernel", *_PER_RANK)
    return pl.concat([serving, alone]).unique().group_by(_PER_RANK).agg(kernels=pl.len().cast(pl.Int64))


def _time(batch: _Batch, kernels: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Busy and exposed time of each key: unions within a step, so sums over distinct segments.

    `paid_busy_ns` and `sized_busy_ns` are those of kernels whose call tells its payload, and its wire bytes.
    """
    others = [name for name in key if name != "rank_index"]
    told = kernels.select("rank_index", "kernel", "step", *others, pl.col("paid", "sized").fill_null(value=False))
    running = batch.segments.join(told, on=["rank_index", "kernel"])
    length = pl.col("length_ns")
    return (
        running.group_by("segment", "step", *key)
        .agg(pl.col("length_ns", "covered_ns").first(), pl.col("paid", "sized").any())
        .group_by(*key)
        .agg(
            busy_ns=length.sum(),
            exposed_ns=(length - pl.col("covered_ns")).sum(),
            paid_busy_ns=length.filter("paid").sum(),
            sized_busy_ns=length.filter("sized").sum(),
        )
    )


def _unlinked(kernels: pl.DataFrame) -> pl.DataFrame:
    before = kernels.filter(pl.col("launch_ns").is_null() & pl.col("step").is_null())
    return before.group_by(_PER_RANK).agg(unlinked=pl.len().cast(pl.Int64))


def _group_totals(batch: _Batch, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    key = ["rank_index", "group"]
    sums = calls.group_by(key, maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64), **_told_of(), wire_bytes=_known_sum("wire_bytes")
    )
    time = _time(batch, kernels, key).drop("paid_busy_ns", "sized_busy_ns")
    joined = sums.join(time, on=key, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
    return joined.with_columns(pl.col("calls", *_TOLD_OF).fill_null(0)).sort("rank_index", maintain_order=True)


def bandwidths(
    primitive: Primitive, group_size: int | None, payload_bytes: int | None, busy_ns: int | None
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth, bytes/s, of calls that move `payload_bytes` in `busy_ns`.

    Source: nccl-tests, doc/PERFORMANCE.md. Busy time is a union, so concurrent kernels are not counted twice.
    """
    if not payload_bytes or not busy_ns:
        return None, None
    algorithm = payload_bytes / (busy_ns / 1e9)
    factor = None if group_size is None else bus_factor(primitive, group_size)
    return algorithm, None if factor is None else algorithm * factor
