"""Whatever is missing from the ranks, what is measured is finite, adds up, and claims no more than it can."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.measurement.ranks import US, Rank, meet, world
from tests.measurement.test_pipeline import one_f_one_b, play
from tests.measurement.test_routing import TO_2, layers
from tracelens.measurement.measure import measure
from tracelens.summary import RankSummary


def experts() -> list[RankSummary]:
    ranks, groups = world(4)
    layers(ranks, [TO_2] * 3, ns_per_token=1000)
    return [rank.summary(groups) for rank in ranks]


def data_parallel() -> list[RankSummary]:
    ranks, groups = world(4, clocks=[0, 10 * US, -10 * US, 10**12])
    for step in range(3):
        for rank in ranks:
            rank.step = step
            rank.work((100 + 30 * rank.rank) * US)
        meet(ranks, 20 * US, seq=step)
        meet(ranks, 20 * US, primitive="broadcast", payload_bytes=None)
    return [rank.summary(groups, steps=(3, 4, 5)) for rank in ranks]


def pipelined() -> list[RankSummary]:
    return play(one_f_one_b(4, 4))


KINDS = {"experts": experts(), "data_parallel": data_parallel(), "pipelined": pipelined()}


@st.composite
def damaged(draw: st.DrawFn) -> list[RankSummary]:
    """Some of the ranks, each without some calls, kernels, times, numbers, groups or its place in time."""
    ranks = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    kept = draw(st.lists(st.sampled_from(ranks), min_size=1, max_size=len(ranks), unique_by=lambda s: s.rank))
    return [_damage(draw, summary) for summary in kept]


def _damage(draw: st.DrawFn, summary: RankSummary) -> RankSummary:
    def column(name: str, value: Any) -> Callable[[RankSummary], RankSummary]:
        rows = draw(st.sets(st.integers(0, max(len(summary.calls) - 1, 0))))
        hit = pl.col("call").is_in(list(rows))
        dtype = summary.calls.schema[name]
        changed = pl.when(hit).then(pl.lit(value, dtype)).otherwise(name).alias(name)
        return lambda s: replace(s, calls=s.calls.with_columns(changed))

    def head(**fields: Any) -> Callable[[RankSummary], RankSummary]:
        return lambda s: replace(s, head=msgspec.structs.replace(s.head, **fields))

    gone = draw(st.sets(st.integers(0, 20)))
    silent = tuple(msgspec.structs.replace(g, ranks=None, ranks_source=None) for g in summary.head.groups)
    choices: list[Callable[[RankSummary], RankSummary]] = [
        lambda s: s,
        lambda s: replace(s, compute=s.compute.clear()),
        lambda s: replace(s, compute=s.compute.filter(~pl.col("after_call").is_in(list(gone)).fill_null(value=False))),
        lambda s: replace(s, links=s.links.clear(), kernels=s.kernels.clear(), segments=s.segments.clear()),
        column("gpu_start_ns", None),
        column("gpu_end_ns", None),
        column("gpu_end_ns", summary.head.start_ns),
        column("seq", None),
        column("step", None),
        column("group", None),
        column("peer", None),
        column("payload_bytes", None),
        column("group_size", None),
        head(start_ns=None),
        head(steps=()),
        head(groups=silent),
        head(rank=None),
    ]
    if not summary.head.steps:
        return summary
    for change in draw(st.lists(st.sampled_from(choices), max_size=3)):
        summary = change(summary)
    return summary if summary.head.steps else replace(summary, calls=summary.calls.with_columns(step=_no_step()))


def _no_step() -> pl.Expr:
    return pl.lit(None, pl.Int32)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) else []


@given(damaged())
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_nothing_that_is_missing_breaks_the_measurement(ranks: list[RankSummary]) -> None:
    measurement = measure(ranks)
    numbers = _numbers(json.loads(msgspec.json.encode(measurement)))
    assert all(math.isfinite(number) for number in numbers)
    if len({summary.rank for summary in ranks} - {None}) < 2:
        assert measurement.skew is None
        return
    for row in measurement.skew or ():
        assert all(wait.wait_ns >= 0 for wait in row.waits)
        assert row.transfer_ns is None or row.transfer_ns >= 0
        assert len(row.ranks) > 1
        assert row.busbw_bytes_per_s is None or row.primitive == "p2p" or 2 * len(row.ranks) >= (row.size or 0)
    for run in measurement.pipeline.runs if measurement.pipeline else ():
        assert run.bubble_fraction is None or 0 <= run.bubble_fraction <= 1
        assert run.complete or run.bubble_fraction is None


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_in_any_order_give_the_same_measurement(kind: str) -> None:
    ranks = KINDS[kind]
    assert msgspec.json.encode(measure(ranks)) == msgspec.json.encode(measure(ranks[::-1]))


def test_a_rank_that_only_idles_beside_others_is_no_harm() -> None:
    ranks, groups = world(3)
    meet(ranks[:2], US)
    alone = Rank(2)
    measurement = measure([*(rank.summary(groups) for rank in ranks[:2]), alone.summary(groups)])
    assert measurement.skew is not None
    assert measurement.skew[0].ranks == (0, 1)
