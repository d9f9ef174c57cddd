"""Waiting, links, experts and dilation in words and tables."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tracelens.many_ranks import Cause, Clock, ClockSource, Dilation, LastArrival, LinkUse, Routing, Skew
from tracelens.report.waiting import dilation_lines, link_table, routing_lines, skew_table

US = 1_000
MIB = 1024**2


def a_skew(**changes: Any) -> Skew:
    defaults: dict[str, Any] = {
        "group": "g0",
        "name": "1",
        "primitive": "all_reduce",
        "size": 4,
        "ranks": (0, 1, 2, 3),
        "pairing": "seq",
        "matched_calls": 40,
        "partly_matched_calls": 2,
        "unmatched_calls": 0,
        "conflicting_calls": 0,
        "late_profiler_calls": 0,
        "transfer_ns": 500 * US,
        "wait_ns": 900 * US,
        "behind_receive_ns": None,
        "complete": True,
        "busbw_bytes_per_s": 300e9,
        "last": None,
        "waits": (),
    }
    return Skew(**{**defaults, **changes})


def a_last(**changes: Any) -> LastArrival:
    defaults: dict[str, Any] = {
        "rank": 3,
        "calls": 30,
        "of": 40,
        "systematic": True,
        "late_ns": 25 * US,
        "cause": Cause.compute,
        "cause_ns": 20 * US,
    }
    return LastArrival(**{**defaults, **changes})


def a_link(**changes: Any) -> LinkUse:
    defaults: dict[str, Any] = {
        "group": "g0",
        "primitive": "all_gather",
        "from_bytes": 64 * MIB,
        "calls": 10,
        "transfer_ns": 100 * US,
        "algbw_bytes_per_s": 500e9,
        "busbw_bytes_per_s": 250e9,
        "spans_nodes": False,
        "inter_node_bytes_per_s": None,
        "link_bytes_per_s": 450e9,
        "link_fraction": 0.5,
        "complete": True,
    }
    return LinkUse(**{**defaults, **changes})


def a_clock(rank: int, offset: int, spread: int | None) -> Clock:
    return Clock(rank=rank, offset_ns=offset, spread_ns=spread, calls=9, hops=1, source=ClockSource.collectives)


def _texts(lines: list[Any]) -> list[str]:
    return [line.text for line in lines]


def test_the_longest_waiting_stands_first_with_who_came_last_and_why() -> None:
    rows = (a_skew(wait_ns=1 * US), a_skew(primitive="all_gather", last=a_last()))
    lines = _texts(skew_table(rows, None, {"g0": "mesh_tp"}, every_row=False))
    assert re.search(
        r"mesh_tp +all_gather +0-3 +42 +500 µs +900 µs +300 GB/s +3 \(30 of 40\) compute \+20.0 µs$", lines[2]
    )
    assert re.search(r"all_reduce .* 1.00 µs .* nobody$", lines[3])


def test_a_rank_that_is_not_last_more_than_chance_would_have_it_is_no_straggler() -> None:
    lines = _texts(skew_table((a_skew(last=a_last(systematic=False)),), None, {}, every_row=False))
    assert lines[2].endswith("3 (30 of 40) by chance")
    assert "compute" not in lines[2]


def test_too_few_calls_are_not_called_chance() -> None:
    last = a_last(systematic=False, too_few=True, calls=1, of=1)
    lines = _texts(skew_table((a_skew(last=last),), None, {}, every_row=False))
    assert lines[2].endswith("3 (1 of 1) too few")


def test_messages_are_late_now_for_one_rank_and_now_for_another_and_not_by_chance() -> None:
    row = a_skew(primitive="p2p", last=a_last(systematic=False, calls=16, of=48))
    assert _texts(skew_table((row,), None, {}, every_row=False))[2].endswith("3 (16 of 48) no one rank")


def test_missing_members_are_told_and_unknown_times_stay_unknown() -> None:
    row = a_skew(ranks=(0, 1), complete=False, transfer_ns=None, wait_ns=None, busbw_bytes_per_s=None)
    lines = _texts(skew_table((row,), None, {}, every_row=False))
    assert re.search(r"0-1 of 4 +42 +\? +\? +\? ", lines[2])


def test_calls_that_were_not_used_and_clocks_are_told_below() -> None:
    row = a_skew(unmatched_calls=3, late_profiler_calls=7)
    clocks = (a_clock(0, 0, 10), a_clock(1, -2 * US, 300), a_clock(2, 5 * US, 40))
    lines = _texts(skew_table((row,), clocks, {}, every_row=False))
    assert lines[3] == "  calls not used: 3 on one rank only, 7 before the last rank recorded"
    assert lines[4] == "  clocks of 3 ranks aligned: up to 7.00 µs apart, known to 300 ns"


def test_a_clock_that_one_call_places_is_not_called_exact() -> None:
    clocks = (a_clock(0, 0, 0), a_clock(1, 3 * US, None))
    lines = _texts(skew_table((a_skew(),), clocks, {}, every_row=False))
    assert lines[3] == "  clocks of 2 ranks aligned: up to 3.00 µs apart, of a single call for some"


def test_one_rank_makes_no_claim() -> None:
    assert skew_table(None, None, {}, every_row=False) == []
    assert link_table(None, {}, every_row=False) == []
    assert routing_lines(None) == []
    assert dilation_lines(None) == []


def test_links_of_a_kind_stand_together_as_the_median_of_their_groups() -> None:
    # GIVEN three groups of a kind with 200, 250 and 400 GB/s, and one call size that moves less
    links = (
        a_link(group="g0", busbw_bytes_per_s=200e9),
        a_link(group="g1", busbw_bytes_per_s=250e9),
        a_link(group="g2", busbw_bytes_per_s=400e9),
        a_link(group="g0", from_bytes=64, caveats=("small calls: latency, not bandwidth",)),
    )
    owners = dict.fromkeys(("g0", "g1", "g2"), "mesh_tp")
    lines = _texts(link_table(links, owners, every_row=False))
    assert re.search(r"mesh_tp +all_gather +3 +64.0 MiB +30 +100 µs +500 GB/s +250 GB/s +50.0 %$", lines[2])
    assert re.search(r"mesh_tp +all_gather +1 +64 B +10 ", lines[3])
    assert lines[4:] == ["  small calls: latency, not bandwidth"]


def test_experts_in_words() -> None:
    routing = Routing(
        dispatches=12,
        combines=12,
        unpaired=0,
        imbalance_median=1.31,
        imbalance_max=2.4,
        busiest=6,
        combine_wait_ns=900 * US,
        explained_wait_fraction=0.8,
        calls=(),
    )
    assert " ".join(text.strip() for text in _texts(routing_lines(routing))) == (
        "All-to-all in pairs, as experts have it: out 12 times, back 12 times; most received over mean 1.31 "
        "(median), 2.40 (worst); busiest rank 6; 900 µs waiting in combines, 80.0 % of it explained by unequal loads"
    )


@pytest.mark.parametrize(
    ("ranks", "cost_us", "where", "change"),
    [((0, 1), 404, "ranks 0-1", "404 µs longer"), ((3,), -224, "rank 3", "224 µs less")],
)
def test_what_overlap_costs_is_told_of_what_was_compared_only(
    ranks: tuple[int, ...], cost_us: int, where: str, change: str
) -> None:
    dilation = Dilation(
        ranks=ranks, kernels_alone=39, kernels_under=41, all_kernels_under=135, ratio=1.62, alone_ns=656 * US,
        cost_ns=cost_us * US, worst=None,
    )  # fmt: skip
    assert " ".join(text.strip() for text in _texts(dilation_lines(dilation))) == (
        f"Overlap, whole recording, {where}: matrix products take 1.62 times as long under communication; 41 of 135 "
        f"under it ran alone too, and took, by their medians, {change} than the 656 µs that they take alone"
    )
