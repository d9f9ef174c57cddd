"""Rows of single ranks to rows of classes, as the results tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.collectives import Primitive
from tracelens.measurement.traffic import KEY, bandwidths
from tracelens.results import GroupTime, Traffic
from tracelens.summary import RankSummary

_BASIS = ("calls", "calls_sized", "calls_timed")
_SUMMED = (*_BASIS, "calls_paid", "kernels", "unlinked", "timed_bytes", "paid_busy_ns")
_PER_STEP = ("payload_bytes", "wire_bytes", "busy_ns", "exposed_ns", "sized_busy_ns")


def merge_traffic(
    rows: pl.DataFrame, ranks: Sequence[RankSummary], classes: Sequence[int], steps: Sequence[Sequence[int]]
) -> tuple[Traffic, ...]:
    """The traffic of each class, means over its ranks and their steps; the largest senders first.

    Args:
        rows: `traffic.ROWS` of all ranks.
        ranks: the summaries.
        classes: the class of each summary.
        steps: the steps used of each summary.
    """
    merged = (
        rows.join(_members(classes, steps), on="rank_index")
        .group_by("rank_class", *KEY, maintain_order=True)
        .agg(
            pl.col("group", "group_size", "class_steps").first(),
            names=pl.col("name").drop_nulls().unique(maintain_order=True),
            steps_used=pl.col("steps").min(),
            least=pl.col("calls_min").min(),
            middle=pl.col("calls_median").median(),
            most=pl.col("calls_max").max(),
            **{name: pl.col(name).sum() for name in _SUMMED},
            **{name: _known_sum(name) for name in _PER_STEP},
        )
        .with_columns(_per_step(name) for name in _PER_STEP)
        .sort("rank_class", "wire_bytes_per_step", descending=[False, True], nulls_last=True, maintain_order=True)
    )
    members = {
        number: sorted({s.rank for s, c in zip(ranks, classes, strict=True) if c == number and s.rank is not None})
        for number in set(classes)
    }
    return tuple(_traffic(row, members[row["rank_class"]]) for row in merged.iter_rows(named=True))


def _members(classes: Sequence[int], steps: Sequence[Sequence[int]]) -> pl.DataFrame:
    """The class of each summary, and how many steps all of that class have together."""
    frame = pl.DataFrame(
        {"rank_index": range(len(classes)), "rank_class": classes, "own": [len(used) for used in steps]},
        schema={"rank_index": pl.Int32, "rank_class": pl.Int32, "own": pl.Int64},
    )
    return frame.with_columns(class_steps=pl.col("own").sum().over("rank_class")).drop("own")


def _known_sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())


def _per_step(name: str) -> pl.Expr:
    """The mean per step, rounded here and nowhere before."""
    mean = pl.col(name) / pl.col("class_steps")
    return pl.when(pl.col("class_steps") > 0).then(mean.round(0)).cast(pl.Int64).alias(f"{name}_per_step")


def _traffic(row: Mapping[str, Any], members: Sequence[int]) -> Traffic:
    steps = row["class_steps"] or 1
    algorithm, bus = bandwidths(Primitive(row["primitive"]), row["group_size"], row["timed_bytes"], row["paid_busy_ns"])
    spread = {"min": row["least"], "median": row["middle"], "max": row["most"], "mean": row["calls"] / steps}
    told = {
        "ranks": members,
        "class": row["rank_class"],
        "axis": None,
        "calls_per_step": spread,
        "kernels_per_step": row["kernels"] / steps,
        "unlinked_kernels": row["unlinked"],
        "algbw_bytes_per_s": algorithm,
        # a payload of unknown splits says nothing of what a link carried
        "busbw_bytes_per_s": bus if row["calls_sized"] == row["calls_paid"] else None,
        "kernel": row["orphan"],
        "calls_with_payload": row["calls_paid"] if row["calls"] else None,
        **_basis(row),
    }
    same = ("group", "names", "primitive", "dtype", "phase", "evidence", "steps_used")
    told |= {name: row[name] for name in same} | {f"{n}_per_step": row[f"{n}_per_step"] for n in _PER_STEP}
    return msgspec.convert(told, Traffic)


def _basis(row: Mapping[str, Any]) -> dict[str, int | None]:
    names = ("calls", "calls_with_bytes", "calls_with_time")
    return {name: row[own] if row["calls"] else None for name, own in zip(names, _BASIS, strict=True)}


def merge_group_time(
    totals: pl.DataFrame, classes: Sequence[int], steps: Sequence[Sequence[int]]
) -> tuple[GroupTime, ...]:
    """What each class spends in each group, means over its ranks and their steps."""
    sums = ("wire_bytes", "busy_ns", "exposed_ns")
    merged = (
        totals.join(_members(classes, steps), on="rank_index")
        .group_by("rank_class", "group", maintain_order=True)
        .agg(pl.col("class_steps").first(), pl.col(_BASIS).sum(), *[_known_sum(name).alias(name) for name in sums])
        .with_columns(_per_step(name) for name in sums)
        .with_columns(calls_per_step=pl.col("calls") / pl.col("class_steps").clip(1))
        .sort("rank_class", "exposed_ns_per_step", descending=[False, True], nulls_last=True, maintain_order=True)
    )
    wanted = ("group", "calls_per_step", *(f"{name}_per_step" for name in sums))
    return tuple(
        msgspec.convert({"class": row["rank_class"], **_basis(row)} | {name: row[name] for name in wanted}, GroupTime)
        for row in merged.iter_rows(named=True)
    )
