"""Summaries built by hand, for tests of what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tracelens.results import RanksSource
from tracelens.summary import FRAMES, LocalGroup, RankSummary, StepSpan, SummaryHead


def group(name: str, ranks: Sequence[int], description: str | None = None) -> LocalGroup:
    return LocalGroup(
        name=name,
        description=description,
        size=len(ranks),
        ranks=tuple(ranks),
        ranks_source=RanksSource.metadata,
    )


def call(number: int, **fields: Any) -> dict[str, Any]:
    """A call with the fields that most tests do not care about filled in."""
    usual = {
        "call": number,
        "primitive": "all_reduce",
        "dtype": "bf16",
        "group": 0,
        "group_size": 2,
        "step": 0,
        "issue_ns": number * 100,
        "issue_end_ns": number * 100 + 50,
        "kernels": 0,
        "payload_bytes": 1000,
        "wire_bytes": 1000.0,
        "evidence": "metadata",
    }
    return usual | fields


def summary(
    rank: int | None = 0,
    *,
    calls: Sequence[dict[str, Any]] = (),
    groups: Sequence[LocalGroup] = (),
    steps: Sequence[int] = (3,),
    **head: Any,
) -> RankSummary:
    frames = {name: pl.DataFrame(schema=schema) for name, schema in FRAMES.items()}
    frames["calls"] = pl.DataFrame(list(calls), schema=FRAMES["calls"])
    spans = tuple(StepSpan(number=n, cpu_start_ns=1000 * n, cpu_end_ns=1000 * n + 900) for n in steps)
    usual: dict[str, Any] = {
        "path": f"rank{rank}.json",
        "bytes": 1,
        "events": len(calls),
        "rank": rank,
        "rank_source": "metadata",
        "world_size": 2,
        "backend": "nccl",
        "start_ns": 1000 * (steps[0] if steps else 0),
        "end_ns": 1000 * (steps[-1] + 1 if steps else 1),
    }
    return RankSummary(head=SummaryHead(**(usual | {"steps": spans, "groups": tuple(groups)} | head)), **frames)
