"""Transfer and waiting that were put into ranks are found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.measurement.build import group
from tests.measurement.ranks import BASE_NS, US, Rank, meet, message, world
from tracelens.many_ranks import Cause, Skew
from tracelens.measurement.alignment import align
from tracelens.measurement.arrival import binomial_tail, judge_lateness
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.measure import measure
from tracelens.measurement.skew import measure_skew, time_calls
from tracelens.summary import RankSummary, SummaryHead
from tracelens.trace.summarize import summarize

HANDWRITTEN = Path(__file__).resolve().parents[2] / "fixtures" / "handwritten"


def skews(ranks: Sequence[RankSummary]) -> dict[str, Skew]:
    alignment = align(ranks, GroupTable(ranks))
    assert alignment is not None
    return {row.primitive: row for row in measure_skew(alignment, time_calls(ranks, alignment))}


def test_the_shortest_is_the_transfer_and_the_rest_is_waiting() -> None:
    # GIVEN rank 2 computes 90 us longer than the others before a transfer of 30 us
    ranks, groups = world(4, clocks=[0, 5 * US, 10**9, -(10**9)])
    for rank in ranks:
        rank.work((190 if rank.rank == 2 else 100) * US)
    meet(ranks, 30 * US, payload_bytes=4_000_000)
    # WHEN the ranks are put side by side
    row = skews([rank.summary(groups) for rank in ranks])["all_reduce"]
    # THEN three ranks wait 90 us, 67.5 us on average
    assert (row.transfer_ns, row.wait_ns) == (30 * US, 67_500)
    assert [(wait.rank, wait.wait_ns, wait.last) for wait in row.waits] == [
        (0, 90 * US, 0),
        (1, 90 * US, 0),
        (2, 0, 1),
        (3, 90 * US, 0),
    ]
    # AND bus bandwidth is 2·3/4·4 MB in the 30 us of the transfer
    assert row.busbw_bytes_per_s == pytest.approx(6e6 / 30e-6)
    assert (row.matched_calls, row.complete) == (1, True)


def test_an_all_to_all_that_does_not_tell_what_it_sends_has_no_rate() -> None:
    ranks, groups = world(4)
    meet(ranks, 30 * US, primitive="all_to_all", payload_bytes=4_000_000, wire_bytes=None)
    row = skews([rank.summary(groups) for rank in ranks])["all_to_all"]
    assert (row.transfer_ns, row.busbw_bytes_per_s) == (30 * US, None)
    # GIVEN another beside it that does: 3/4 of 4 MB in 40 us
    meet(ranks, 40 * US, primitive="all_to_all", payload_bytes=4_000_000, wire_bytes=3e6)
    found = measure([rank.summary(groups) for rank in ranks])
    assert found.skew is not None
    assert found.links is not None
    assert found.skew[0].busbw_bytes_per_s == pytest.approx(3e6 / 40e-6)
    (link,) = found.links
    assert link.calls == 1
    assert link.busbw_bytes_per_s == pytest.approx(3e6 / 40e-6)


def late_in(calls: int, of: int, *, cause: str) -> Skew:
    """Rank 5 of 8 comes 80 us late to `calls` of `of` calls, for a reason; rank 1 to the others."""
    ranks, groups = world(8)
    meet(ranks, 20 * US)
    for number in range(of):
        slow = 5 if number < calls else 1
        for rank in ranks:
            rank.work(100 * US)
            if rank.rank == slow and cause == "compute":
                rank.work(80 * US)
            elif rank.rank == slow:
                rank.now_ns += 80 * US
        meet(ranks, 20 * US)
    return skews([rank.summary(groups) for rank in ranks])["all_reduce"]


def test_the_last_rank_is_named_with_what_it_did_before() -> None:
    last = late_in(40, 47, cause="compute").last
    assert last is not None
    assert (last.rank, last.calls, last.of, last.systematic) == (5, 40, 47, True)
    assert (last.late_ns, last.cause, last.cause_ns) == (80 * US, Cause.compute, 80 * US)


def test_a_rank_whose_cpu_launches_late_is_late_by_launch() -> None:
    last = late_in(40, 47, cause="launch").last
    assert last is not None
    assert (last.rank, last.cause, last.cause_ns) == (5, Cause.launch, 80 * US)


def test_communication_in_another_group_is_a_cause() -> None:
    ranks = [Rank(rank) for rank in range(4)]
    groups = [group("three", range(3)), group("two", (2, 3))]
    meet(ranks[:3], 20 * US)
    for _ in range(12):
        meet(ranks[2:], 60 * US, group=1, primitive="all_gather")
        meet(ranks[:3], 20 * US)
        ranks[3].now_ns = ranks[2].now_ns
    last = skews([rank.summary(groups) for rank in ranks])["all_reduce"].last
    assert last is not None
    assert (last.rank, last.of, last.cause, last.cause_ns) == (2, 12, Cause.communication, 60 * US)


def test_nobody_is_last_where_nobody_waits() -> None:
    ranks, groups = world(4)
    for _ in range(20):
        meet(ranks, 20 * US)
    assert skews([rank.summary(groups) for rank in ranks])["all_reduce"].last is None


@pytest.mark.parametrize(
    ("last", "calls", "members", "waited", "told"),
    [
        # 10 of 11 of two: (11 + 1) / 2^11 twice over is 0.0117
        (10, 11, 2, 0.9, "systematic"),
        # 7 of 18 of eight: the tail is 0.0043, eight times that 0.0344; not half of the calls, but most of the waiting
        (7, 18, 8, 0.78, "systematic"),
        (7, 18, 8, 0.4, "too few"),
        (40, 47, 8, 0.9, "systematic"),
        # 13 % of the calls, where 12.5 % is fair: a rank that is late in half of them would not be so rare
        (6, 47, 8, 0.1, "chance"),
        # 55 %, where 50 % is fair, and three quarters would be a habit
        (26, 47, 2, 0.5, "chance"),
        # one, two or five in a row of two ranks happen by chance in every 1, 2 and 16 rows
        (1, 1, 2, 1.0, "too few"),
        (2, 2, 2, 1.0, "too few"),
        (5, 5, 2, 1.0, "too few"),
        (6, 6, 2, 1.0, "systematic"),
        (2, 2, 8, 1.0, "too few"),
        (3, 3, 8, 1.0, "systematic"),
        # seldom last, and the waiting is for it all the same: a few calls hold it
        (6, 47, 8, 0.8, "too few"),
    ],
)
def test_a_habit_chance_and_too_few_calls_are_told_apart(
    last: int, calls: int, members: int, waited: float, told: str
) -> None:
    systematic, too_few = judge_lateness(last, calls, members, members, waited)
    assert ("systematic" if systematic else "too few" if too_few else "chance") == told


@given(st.integers(2, 12), st.floats(0, 1), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_called_systematic_is_rare_by_chance(members: int, waited: float, data: st.DataObject) -> None:
    """The binomial tail, in whole numbers here."""
    calls = data.draw(st.integers(1, 60))
    last = data.draw(st.integers(1, calls))
    ways = sum(comb(calls, k) * (members - 1) ** (calls - k) for k in range(last, calls + 1))
    tail = ways / members**calls
    assert binomial_tail(last, calls, 1 / members) == pytest.approx(tail, rel=1e-9)
    systematic, too_few = judge_lateness(last, calls, members, members, waited)
    assert not (systematic and too_few)
    if systematic:
        assert members * tail < 0.05
        assert 2 * last >= calls or waited >= 0.5


def test_a_tail_of_many_calls_is_computed_too() -> None:
    # half of 20,000 or more: half, and half of the middle term sqrt(2 / (pi n)) beside it
    assert binomial_tail(10_000, 20_000, 0.5) == pytest.approx(0.5 + 0.5 * 0.0056418, abs=1e-5)
    assert binomial_tail(0, 20_000, 0.5) == pytest.approx(1.0)


def test_the_rank_that_costs_the_waiting_is_named_before_the_one_that_is_last_more_often() -> None:
    # GIVEN rank 1 comes 20 us late to six calls, rank 2 400 us late to five, of four ranks
    ranks, groups = world(4)
    meet(ranks, 20 * US)
    for slow, by in [(1, 20)] * 6 + [(2, 400)] * 5:
        ranks[slow].work(by * US)
        meet(ranks, 20 * US)
    row = skews([rank.summary(groups) for rank in ranks])["all_reduce"]
    # THEN three ranks wait 5 times 400 us for rank 2: 1.5 ms as the mean of four, of 1.59 in all
    assert row.last is not None
    assert (row.last.rank, row.last.calls, row.last.of) == (2, 5, 11)
    assert (row.last.waited_ns, row.wait_ns) == (1_500 * US, 1_590 * US)
    # 4 times the tail of 5 or more of 11 at a quarter each is 0.46, and the waiting is in five calls
    assert (row.last.systematic, row.last.too_few) == (False, True)


def test_a_real_optimizer_waits_for_its_slowest_rank_to_launch(shared_traces: Path) -> None:
    """All-gathers in which rank 1 of nanogpt came last hold 14.2 of 18.3 ms of waiting, summed up from the JSON."""
    files = sorted((shared_traces / "nanogpt_sharded_dp8").glob("*-trace.json.gz"))
    rows = skews([summarize(file) for file in files])
    for primitive, waited, waiting in (("all_gather", 14.2, 18.3), ("reduce_scatter", 13.5, 14.0)):
        last = rows[primitive].last
        assert last is not None
        assert (last.rank, last.systematic) == (1, True)
        assert (last.waited_ns or 0) / 1e6 == pytest.approx(waited, abs=0.06)
        assert (rows[primitive].wait_ns or 0) / 1e6 == pytest.approx(waiting, abs=0.06)


def test_one_rank_gives_no_claim_and_null_in_the_measurement() -> None:
    ranks, groups = world(4)
    meet(ranks, 20 * US)
    measurement = measure([ranks[0].summary(groups)])
    assert (measurement.skew, measurement.pipeline, measurement.routing, measurement.clocks) == (None, None, None, None)


@pytest.mark.parametrize(("read", "claims"), [((0, 1, 2, 3), True), ((0, 1), True), ((0,), None)])
def test_bandwidth_is_claimed_with_enough_members_only(read: tuple[int, ...], claims: bool | None) -> None:
    ranks, groups = world(4)
    for _ in range(3):
        meet(ranks, 20 * US)
    kept = [ranks[number].summary(groups) for number in read]
    if claims is None:
        assert measure(kept).skew is None
        return
    row = skews(kept)["all_reduce"]
    assert (row.busbw_bytes_per_s is not None, row.complete) == (claims, len(read) == 4)


def test_a_quarter_of_the_members_tells_no_bandwidth() -> None:
    ranks, groups = world(8)
    meet(ranks, 20 * US)
    row = skews([rank.summary(groups) for rank in ranks[:2]])["all_reduce"]
    assert (row.busbw_bytes_per_s, row.transfer_ns, row.complete) == (None, 20 * US, False)


def test_the_wait_inside_a_receive_is_no_transfer() -> None:
    """Users' symptom U9: sender 30 us, receiver 5.03 ms, same end, 8 MB."""
    ranks, groups = world(2)
    ranks[0].work(5_000 * US)
    message(ranks[0], ranks[1], 30 * US, payload_bytes=8_000_000)
    both = [rank.summary(groups) for rank in ranks]
    row = skews(both)["p2p"]
    assert row.transfer_ns == 30 * US
    assert [(wait.rank, wait.wait_ns) for wait in row.waits] == [(0, 0), (1, 5_000 * US)]
    assert row.busbw_bytes_per_s == pytest.approx(8e6 / 30e-6)
    assert measure(both[1:]).skew is None, "the receiver alone claims nothing"


def test_a_kernel_that_sends_and_receives_waits_once() -> None:
    ranks, groups = world(2)
    ranks[0].work(500 * US)
    begin, end = [rank.now_ns for rank in ranks], ranks[0].now_ns + 40 * US
    for rank, start in zip(ranks, begin, strict=True):
        peer = 1 - rank.rank
        rank.batch(start, end, [{"primitive": "send", "peer": peer}, {"primitive": "recv", "peer": peer}])
    row = skews([rank.summary(groups) for rank in ranks])["p2p"]
    assert [(wait.rank, wait.wait_ns) for wait in row.waits] == [(0, 0), (1, 500 * US)]
    assert row.matched_calls == 2


def test_waiting_behind_a_receive_is_charged_to_the_receive() -> None:
    """Rank 1 posts a receive early; its all-reduce with rank 2 stands behind it on the GPU."""
    ranks = [Rank(rank) for rank in range(3)]
    groups = [group("p", (0, 1)), group("t", (1, 2))]
    ranks[0].work(400 * US)
    launched = ranks[1].now_ns
    message(ranks[0], ranks[1], 10 * US, group=0)
    meet(ranks[1:], 20 * US, group=1)
    ranks[1].calls[-1]["launch_ns"] = launched  # queued long before the receive was over
    row = skews([rank.summary(groups) for rank in ranks])["all_reduce"]
    assert row.last is not None
    assert (row.last.rank, row.last.cause) == (1, Cause.receive)
    # rank 2 waited 410 us; 400 of them are rank 1's own wait for the message
    assert (row.waits[1].wait_ns, row.behind_receive_ns) == (410 * US, 200 * US)


def test_a_late_profiler_is_set_aside_and_reported() -> None:
    # GIVEN rank 1 begins to record 5 ms after the others went into their first call, which it enters 20 us later
    ranks, groups = world(4)
    ranks[1].now_ns += 5_020 * US
    for _ in range(5):
        meet(ranks, 20 * US)
    summaries = [rank.summary(groups) for rank in ranks]
    began = {1: BASE_NS + 5_000 * US}
    summaries = [replace(s, head=_with_start(s, began.get(n, BASE_NS - 1000 * US))) for n, s in enumerate(summaries)]
    measurement = measure(summaries)
    # THEN that call counts nowhere, and is named
    assert measurement.skew is not None
    [row] = measurement.skew
    assert (row.late_profiler_calls, row.wait_ns, row.transfer_ns) == (1, 0, 80 * US)
    [problem] = [problem for problem in measurement.run.problems if problem.code == "profiler-started-late"]
    assert "rank 1 began" in problem.message


def test_a_recording_that_is_known_by_its_kernels_only_is_not_called_late() -> None:
    ranks, groups = world(2)
    ranks[1].now_ns += 5_000 * US
    meet(ranks, 20 * US)
    summaries = [rank.summary(groups) for rank in ranks]
    first = [int(summary.calls["gpu_start_ns"][0]) for summary in summaries]
    summaries = [replace(s, head=_with_start(s, at)) for s, at in zip(summaries, first, strict=True)]
    row = skews(summaries)["all_reduce"]
    assert (row.late_profiler_calls, row.waits[0].wait_ns) == (0, 5_000 * US)


def _with_start(summary: RankSummary, start_ns: int) -> SummaryHead:
    return msgspec.structs.replace(summary.head, start_ns=start_ns)


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=8),
)
@settings(max_examples=40, deadline=None)
def test_transfer_and_waiting_add_up_to_what_the_kernels_took(size: int, calls: list[tuple[int, int, int]]) -> None:
    ranks, groups = world(size)
    for slow, ns, transfer in calls:
        ranks[slow % size].work(ns)
        meet(ranks, transfer)
    row = skews([rank.summary(groups) for rank in ranks])["all_reduce"]
    assert row.transfer_ns == sum(transfer for _, _, transfer in calls)
    busy = {rank.rank: sum(k["end_ns"] - k["start_ns"] for k in rank.kernels) for rank in ranks}
    assert {wait.rank: wait.wait_ns + row.transfer_ns for wait in row.waits} == busy


def test_time_mostly_waiting_as_users_reported_it() -> None:
    """Fault 26: 10 ms on one rank, 30 us on the other, the same end; bandwidth comes from the 30 us."""
    folder = HANDWRITTEN / "fault_26_time_mostly_waiting"
    row = skews([summarize(folder / f"rank{rank}.json") for rank in range(2)])["all_reduce"]
    assert row.transfer_ns == 30 * US
    assert sorted(wait.wait_ns for wait in row.waits) == [0, 9_970 * US]


def test_sequence_numbers_on_some_ranks_only_pair_by_place() -> None:
    """Fault 33."""
    folder = HANDWRITTEN / "fault_33_sequence_numbers_on_some_ranks_only"
    rows = skews([summarize(folder / f"rank{rank}.json") for rank in range(2)])
    assert {row.pairing for row in rows.values()} == {"ordinal"}
    assert all(row.unmatched_calls == 0 for row in rows.values())
