"""Traffic of one rank: what it sends per group, primitive and step, and the time that takes."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.collectives import Primitive, bus_factor
from tracelens.measurement.groups import GroupTable, mesh_of_group
from tracelens.results import Evidence
from tracelens.summary import LocalGroup, RankSummary

KEY = ("kind", "primitive", "dtype", "phase", "evidence", "orphan")
"""What tells rows apart within a rank; `kind` stands for one process group, the same one for ranks alike, and
`orphan` names kernels that no call explains."""

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
    "calls_sized": pl.Int64(),
    "calls_timed": pl.Int64(),
    "kernels": pl.Int64(),
    "unlinked": pl.Int64(),
    "payload_bytes": pl.Int64(),
    "wire_bytes": pl.Float64(),
    "timed_bytes": pl.Int64(),
    "busy_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
}
"""A rank's rows: sums over the steps used. Bytes are null when no call of the row has a size."""

# The contract's words; what lies outside of them is told as `other`.
_REPORTED = {p.value for p in Primitive} - {Primitive.gather, Primitive.scatter, Primitive.barrier}


def describe_groups(summary: RankSummary, table: GroupTable) -> pl.DataFrame:
    """Each process group of a rank: its index, its id in the table, and its `kind`.

    The kind is what ranks alike share: the mesh without its first rank (or the size), what the group is called,
    and which of the groups with those very ranks it is.
    """
    seen: dict[str, int] = {}
    rows = []
    for index, local in enumerate(summary.head.groups):
        group = table.id_of(local)
        slot = seen[group] = seen.get(group, 0) + 1
        rows.append((index, group, f"{_shape(local)} {local.description or ''} {slot}", local.name))
    schema = {"index": pl.Int32, "group": pl.String, "kind": pl.String, "name": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _shape(group: LocalGroup) -> str:
    mesh = mesh_of_group(group)
    return str(mesh) if mesh is not None else f"{group.size} ranks {group.name or ''}"


def measure_rank(
    summary: RankSummary, table: GroupTable, rank_index: int, steps: Sequence[int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of traffic and of group time of one rank.

    Args:
        summary: the rank.
        table: groups of the job.
        rank_index: number of the summary among those measured.
        steps: indices of the steps to use.

    Returns:
        `ROWS`, and per group `rank_index, group, calls, wire_bytes, busy_ns, exposed_ns` as sums over the steps.
    """
    calls = _keyed_calls(summary, table)
    kernels = _keyed_kernels(summary, calls)
    inside = calls.filter(pl.col("step").is_in(steps))
    launched = kernels.filter(pl.col("step").is_in(steps))
    rows = _sums(inside)
    for part in (
        _spread(inside, steps),
        _kernel_counts(summary, inside, launched),
        _time(summary, launched, KEY),
        _unlinked(kernels),
    ):
        rows = rows.join(part, on=KEY, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
    rows = rows.with_columns(
        pl.col("calls", "calls_min", "calls_max", "calls_sized", "calls_timed", "kernels", "unlinked").fill_null(0),
        calls_median=pl.col("calls_median").fill_null(0.0),
        rank_index=pl.lit(rank_index, pl.Int32),
        steps=pl.lit(len(steps), pl.Int64),
    )
    totals = _group_totals(summary, inside, launched).with_columns(rank_index=pl.lit(rank_index, pl.Int32))
    return rows.select([pl.col(name).cast(dtype) for name, dtype in ROWS.items()]), totals


def _keyed_calls(summary: RankSummary, table: GroupTable) -> pl.DataFrame:
    groups = describe_groups(summary, table)
    calls = summary.calls.rename({"group": "index"}).join(groups, on="index", how="left", maintain_order="left")
    reported = pl.col("primitive").is_in(list(_REPORTED))
    return calls.with_columns(
        primitive=pl.when(reported).then("primitive").otherwise(pl.lit(Primitive.other.value)),
        orphan=pl.lit(None, pl.String),
    )


def _keyed_kernels(summary: RankSummary, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels with the key of the call that owns them; those of no call go by their own name."""
    owned = calls.select("call", "group", *KEY[:-1], call_step="step")
    joined = summary.kernels.join(owned, left_on="owner", right_on="call", how="left", maintain_order="left")
    orphan = pl.col("owner").is_null()
    return joined.with_columns(
        orphan=pl.when(orphan).then(pl.coalesce("family", "name")),
        primitive=pl.when(orphan).then(pl.coalesce("hint", pl.lit(Primitive.other.value))).otherwise("primitive"),
        evidence=pl.when(orphan).then(pl.lit(Evidence.kernel_name.value)).otherwise("evidence"),
        step=pl.when(orphan).then("step").otherwise("call_step"),
    )


def _sums(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.group_by(*KEY, maintain_order=True).agg(
        group=pl.col("group").first(),
        name=pl.col("name").first(),
        group_size=pl.col("group_size").first(),
        calls=pl.len().cast(pl.Int64),
        calls_sized=pl.col("wire_bytes").is_not_null().sum(),
        calls_timed=(pl.col("kernels") > 0).sum(),
        payload_bytes=_known_sum("payload_bytes"),
        wire_bytes=_known_sum("wire_bytes"),
        timed_bytes=pl.col("payload_bytes").filter(pl.col("kernels") > 0).sum(),
    )


def _known_sum(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum())


def _spread(calls: pl.DataFrame, steps: Sequence[int]) -> pl.DataFrame:
    """Least, middle and most calls of a step; a step without any counts as zero."""
    per_step = calls.group_by(*KEY, "step").agg(calls=pl.len().cast(pl.Int64))
    grid = calls.select(KEY).unique().join(pl.DataFrame({"step": steps}, schema={"step": pl.Int32}), how="cross")
    return (
        grid.join(per_step, on=[*KEY, "step"], how="left", nulls_equal=True)
        .with_columns(pl.col("calls").fill_null(0))
        .group_by(KEY)
        .agg(
            calls_min=pl.col("calls").min(),
            calls_median=pl.col("calls").median(),
            calls_max=pl.col("calls").max(),
        )
    )


def _kernel_counts(summary: RankSummary, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels that serve each row; one that carries a send and a receive counts for both."""
    serving = summary.links.join(calls.select("call", *KEY), on="call").select("kernel", *KEY)
    alone = kernels.filter(pl.col("owner").is_null()).select("kernel", *KEY)
    return pl.concat([serving, alone]).unique().group_by(KEY).agg(kernels=pl.len().cast(pl.Int64))


def _time(summary: RankSummary, kernels: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Busy and exposed time of each key: unions within a step, so sums over distinct segments."""
    running = summary.segments.join(kernels.select("kernel", "step", *key), on="kernel")
    return (
        running.unique(["segment", "step", *key])
        .group_by(*key)
        .agg(busy_ns=pl.col("length_ns").sum(), exposed_ns=(pl.col("length_ns") - pl.col("covered_ns")).sum())
    )


def _unlinked(kernels: pl.DataFrame) -> pl.DataFrame:
    before = kernels.filter(pl.col("launch_ns").is_null() & pl.col("step").is_null())
    return before.group_by(KEY).agg(unlinked=pl.len().cast(pl.Int64))


def _group_totals(summary: RankSummary, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    sums = calls.group_by("group", maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64), wire_bytes=_known_sum("wire_bytes")
    )
    time = _time(summary, kernels, ["group"])
    joined = sums.join(time, on="group", how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
    return joined.with_columns(pl.col("calls").fill_null(0))


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
