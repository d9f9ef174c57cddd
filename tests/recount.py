"""A summary retold in the words of `tests.witness`, so that one comparison covers all of it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracelens.summary import RankSummary

_KEY = ("name", "primitive", "dtype")
_TIMES = ("kernels", "busy_ns", "exposed_ns")


def recount(summary: RankSummary) -> dict[str, Any]:
    """What a summary says of its rank, in the form of `witness.witness`."""
    head = summary.head
    calls = _named_calls(summary)
    served = summary.links.group_by("kernel").agg("call")
    alone = served.filter(pl.col("call").list.len() == 1).select("kernel", call=pl.col("call").list.first())
    orphans = summary.kernels.join(summary.links, on="kernel", how="anti")
    return {
        "rank": summary.rank,
        "world_size": head.world_size,
        "traffic": _traffic(summary, calls, alone),
        "shared": _shared(summary, calls, served.filter(pl.col("call").list.len() > 1)),
        "unattributed": _times(summary, orphans["kernel"]),
        "comm_ns": head.comm_ns,
        "overlap_ns": head.overlap_ns,
        "comm_overlap_pct": 100 * head.overlap_ns / head.comm_ns if head.comm_ns else None,
        "time": {
            head.steps[row.pop("step")].number: row
            for row in summary.budget.drop("untimed_calls").iter_rows(named=True)
        },
        "coverage": {
            "calls": len(calls),
            "calls_with_kernel": int((calls["kernels"] > 0).sum()),
            "kernels": len(summary.kernels),
            "kernels_with_call": len(served),
        },
    }


def _named_calls(summary: RankSummary) -> pl.DataFrame:
    groups = summary.head.groups
    names = [None if index is None else groups[index].name for index in summary.calls["group"]]
    return summary.calls.with_columns(name=pl.Series(names, dtype=pl.String))


def _traffic(summary: RankSummary, calls: pl.DataFrame, alone: pl.DataFrame) -> dict[Any, dict[str, Any]]:
    steps = [step.number for step in summary.head.steps]
    rows = {}
    for key, own in calls.group_by(_KEY, maintain_order=True):
        by_step = own.drop_nulls("step").group_by("step").len().iter_rows()
        index = own["group"][0]
        ranks = None if index is None else summary.head.groups[index].ranks
        rows[key] = {
            "calls": len(own),
            "calls_by_step": {steps[step]: calls for step, calls in by_step},
            "payload_bytes": own["payload_bytes"].sum(),
            "wire_bytes": round(own["wire_bytes"].sum()),
            "ranks": ranks,
            "peers": set(own["peer"].drop_nulls()),
            **_times(summary, alone.filter(pl.col("call").is_in(own["call"].implode()))["kernel"]),
        }
    return rows


def _shared(summary: RankSummary, calls: pl.DataFrame, served: pl.DataFrame) -> dict[Any, dict[str, int]]:
    told = (
        served.explode("call")
        .join(calls.select("call", "name", "primitive"), on="call")
        .sort("kernel", "call")
        .group_by("kernel", maintain_order=True)
        .agg(pl.col("name").first(), pl.col("primitive").unique().sort())
    )
    return {
        (name, tuple(primitives)): _times(summary, own["kernel"])
        for (name, primitives), own in told.group_by("name", "primitive")
    }


def _times(summary: RankSummary, kernels: pl.Series) -> dict[str, int]:
    running = summary.segments.filter(pl.col("kernel").is_in(kernels.implode())).unique("segment")
    busy = int(running["length_ns"].sum())
    counted = (len(kernels), busy, busy - int(running["covered_ns"].sum()))
    return dict(zip(_TIMES, counted, strict=True))
