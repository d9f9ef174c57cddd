"""Calls of several ranks are paired, and their clocks found, from recordings that begin and end where they like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.measurement.ranks import US, Rank, meet, world
from tracelens.measurement.alignment import Alignment, align
from tracelens.measurement.groups import GroupTable
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

HANDWRITTEN = Path(__file__).resolve().parents[2] / "fixtures" / "handwritten"


def aligned(ranks: Sequence[RankSummary]) -> Alignment:
    alignment = align(ranks, GroupTable(ranks))
    assert alignment is not None
    return alignment


def recorded(steps: int, *, clocks: Sequence[int] | None = None, size: int = 4, seq: bool = False) -> list[RankSummary]:
    """Steps of three collectives: two alike and one of another size."""
    ranks, groups = world(size, clocks=clocks)
    for step in range(steps):
        for number, payload in enumerate((1 << 20, 1 << 20, 1 << 10)):
            for rank in ranks:
                rank.step = step
                rank.work((100 + 7 * rank.rank * (step + number + 1)) * US)
            fields = {"seq": 10 + 3 * step + number} if seq else {}
            meet(ranks, 30 * US, payload_bytes=payload, **fields)
    return [rank.summary(groups, steps=range(5, 5 + steps)) for rank in ranks]


def keep(summary: RankSummary, calls: pl.Expr) -> RankSummary:
    """The recording with only some of its calls."""
    return replace(summary, calls=summary.calls.filter(calls))


def pairs(alignment: Alignment) -> set[tuple[int, ...]]:
    """The calls that stand together, as the numbers that each rank gave them."""
    together = alignment.calls.drop_nulls("key").sort("rank").group_by("lane", "key").agg("rank", "call")
    return {tuple(call) for rank, call in together.select("rank", "call").iter_rows() if len(rank) > 1}


def test_one_rank_is_aligned_with_nothing() -> None:
    [first, *_] = recorded(1)
    assert align([first], GroupTable([first])) is None
    assert align([first, first], GroupTable([first])) is None, "the same rank twice is one rank"


def test_whole_recordings_are_paired_in_place() -> None:
    alignment = aligned(recorded(3))
    assert pairs(alignment) == {(n, n, n, n) for n in range(9)}
    assert set(alignment.calls["pairing"]) == {"ordinal"}
    assert alignment.calls["agrees"].all()


def test_a_window_that_began_a_step_later_is_paired_from_its_end() -> None:
    whole = recorded(3)
    late = keep(whole[2], pl.col("step") > 0)
    alignment = aligned([whole[0], whole[1], late, whole[3]])
    assert pairs(alignment) == {(n, n, n) for n in range(3)} | {(n, n, n, n) for n in range(3, 9)}


def test_a_window_that_ended_a_step_earlier_is_paired_from_its_beginning() -> None:
    whole = recorded(3)
    alignment = aligned([whole[0], keep(whole[1], pl.col("step") < 2), *whole[2:]])
    assert pairs(alignment) == {(n, n, n, n) for n in range(6)} | {(n, n, n) for n in range(6, 9)}


def test_windows_of_equal_length_that_began_at_different_steps_are_not_paired_in_place() -> None:
    whole = recorded(3)
    early, late = keep(whole[0], pl.col("step") < 2), keep(whole[1], pl.col("step") > 0)
    assert pairs(aligned([early, late])) == {(n, n) for n in range(3, 6)}


def test_lost_calls_at_the_head_shift_the_others() -> None:
    whole = recorded(2)
    alignment = aligned([whole[0], keep(whole[1], pl.col("call") >= 2), *whole[2:]])
    assert {(n, n, n, n) for n in range(2, 6)} <= pairs(alignment)


def test_without_steps_the_shift_is_found_by_when_calls_end() -> None:
    """All calls are alike and no step tells anything: only the true shift makes the ends fall together."""
    ranks, groups = world(2, clocks=[0, 77_000 * US])
    for number in range(12):
        ranks[0].work((100 + number * number) * US)
        ranks[1].work(90 * US)
        meet(ranks, 30 * US)
    silent = [
        replace(s, calls=s.calls.with_columns(step=pl.lit(None, pl.Int32))) for s in (r.summary(groups) for r in ranks)
    ]
    cut = keep(silent[1], pl.col("call") >= 3)
    alignment = aligned([silent[0], cut])
    assert pairs(alignment) == {(n, n) for n in range(3, 12)}
    assert alignment.clocks[1].offset_ns == 77_000 * US


def test_a_call_lost_in_the_middle_costs_its_own_step_only() -> None:
    whole = recorded(4)
    alignment = aligned([keep(whole[0], pl.col("call") != 5), *whole[1:]])
    found = pairs(alignment)
    assert {(n, n, n, n) for n in (0, 1, 2, 6, 7, 8, 9, 10, 11)} <= found
    assert not any(len(set(pair)) > 1 for pair in found if not {3, 4, 5} & set(pair))


def test_sequence_numbers_pair_calls_wherever_they_stand() -> None:
    whole = recorded(3, seq=True)
    alignment = aligned([whole[0], keep(whole[1], pl.col("call") % 2 == 0), *whole[2:]])
    assert pairs(alignment) == {(n,) * (4 if n % 2 == 0 else 3) for n in range(9)}
    assert set(alignment.calls["pairing"]) == {"seq"}


def test_calls_that_share_a_sequence_number_are_told_apart_by_order() -> None:
    ranks, groups = world(2)
    for payload in (100, 200):
        meet(ranks, US, payload_bytes=payload, seq=7)
    assert pairs(aligned([rank.summary(groups) for rank in ranks])) == {(0, 0), (1, 1)}


def test_a_pair_of_unlike_calls_is_no_pair_of_equals() -> None:
    ranks, groups = world(2)
    ranks[0].call(ranks[0].now_ns, ranks[0].now_ns + US, payload_bytes=100, seq=1)
    ranks[1].call(ranks[1].now_ns, ranks[1].now_ns + US, payload_bytes=200, seq=1)
    assert not aligned([rank.summary(groups) for rank in ranks]).calls["agrees"].any()


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=2, max_size=5),
    st.lists(st.integers(0, 10**7), min_size=1, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_any_clock_offsets_are_recovered_exactly(clocks: list[int], work: list[int]) -> None:
    ranks, groups = world(len(clocks), clocks=clocks)
    for number, ns in enumerate(work):
        ranks[number % len(ranks)].work(ns)
        meet(ranks, 1000)
    found = aligned([rank.summary(groups) for rank in ranks]).clocks
    assert [clock.offset_ns for clock in found] == [clock - clocks[0] for clock in clocks]
    # one call has no spread
    assert {clock.spread_ns for clock in found[1:]} == {0 if len(work) > 1 else None}


def test_clocks_are_carried_from_group_to_group() -> None:
    """Rank 2 shares no call with rank 0, only with rank 1, which does."""
    from tests.measurement.build import group

    offsets = [0, 5_000 * US, -3_000 * US]
    ranks = [Rank(rank, clock_ns=offset) for rank, offset in enumerate(offsets)]
    groups = [group("a", (0, 1)), group("b", (1, 2))]
    for _ in range(3):
        meet(ranks[:2], US, group=0)
        meet(ranks[1:], US, group=1)
    clocks = aligned([rank.summary(groups) for rank in ranks]).clocks
    assert [(clock.rank, clock.offset_ns, clock.hops) for clock in clocks] == [
        (0, 0, 0),
        (1, 5_000 * US, 1),
        (2, -3_000 * US, 2),
    ]


@pytest.mark.parametrize(
    ("folder", "offset_ns"),
    [("fault_24_clocks_three_milliseconds_apart", 3_000_000), ("fault_25_clock_off_and_first_step_missing", 400_000)],
)
def test_the_clocks_of_handwritten_traces_are_those_of_their_truth(folder: str, offset_ns: int) -> None:
    ranks = [summarize(HANDWRITTEN / folder / f"rank{rank}.json") for rank in range(2)]
    clocks = aligned(ranks).clocks
    assert [clock.offset_ns for clock in clocks] == [0, offset_ns]
    # how well is known where there are several calls
    assert [clock.spread_ns is None for clock in clocks] == [False, clocks[1].calls == 1]
