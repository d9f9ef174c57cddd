"""Pipelines whose order, schedule and bubble are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.measurement.build import group
from tests.measurement.ranks import US, Rank
from tracelens.engine import summarize_all
from tracelens.many_ranks import Pipeline
from tracelens.measurement.measure import measure
from tracelens.measurement.stages import name_schedule
from tracelens.summary import RankSummary
from tracelens.trace.discover import discover

AUTOGRAD = 1


class Schedule:
    """Runs the orders of stages: a block begins when its input is there, and messages take `transfer` each."""

    def __init__(self, ranks: Sequence[Rank], forward_ns: Sequence[int], backward_ns: Sequence[int], transfer_ns: int):
        self.ranks, self.transfer_ns = ranks, transfer_ns
        self.lengths = {"F": forward_ns, "B": backward_ns, "W": backward_ns}
        self.sent: dict[tuple[str, int, int], int] = {}
        self.receives: dict[tuple[str, int, int], tuple[Rank, int, int]] = {}

    def run(self, orders: Sequence[str]) -> None:
        """Play all orders; whoever can go on goes on."""
        places, counts = [0] * len(orders), [{"F": 0, "B": 0, "W": 0} for _ in orders]
        while any(place < len(order) for place, order in zip(places, orders, strict=True)):
            before = list(places)
            for stage, order in enumerate(orders):
                while places[stage] < len(order) and self._block(stage, order[places[stage]], counts[stage]):
                    places[stage] += 1
            assert places != before, "the orders wait for one another"

    def _block(self, stage: int, kind: str, counts: dict[str, int]) -> bool:
        number, last = counts[kind], len(self.ranks) - 1
        source = stage - 1 if kind == "F" else stage + 1
        target = stage + 1 if kind == "F" else stage - 1
        rank = self.ranks[stage]
        if kind == "W":
            rank.work(self.lengths[kind][stage], thread=AUTOGRAD)
            return True
        if 0 <= source <= last:
            ready = self.sent.get((kind, source, number))
            if ready is None:
                return False
            self._receive(rank, source, ready)
        rank.work(self.lengths[kind][stage], thread=AUTOGRAD if kind == "B" else 0)
        counts[kind] += 1
        if 0 <= target <= last:
            end = rank.now_ns + self.transfer_ns
            self.sent[kind, stage, number] = end
            begin = rank.now_ns
            rank.call(begin, end, primitive="send", peer=self.ranks[target].rank)
            rank.now_ns = begin  # the message goes on its own stream, under the next block
        return True

    def _receive(self, rank: Rank, source: int, ready: int) -> None:
        end = max(ready, rank.now_ns + self.transfer_ns)
        rank.call(rank.now_ns, end, primitive="recv", peer=self.ranks[source].rank)


def one_f_one_b(stages: int, microbatches: int) -> list[str]:
    ahead = [min(microbatches, stages - 1 - stage) for stage in range(stages)]
    return ["F" * a + "FB" * (microbatches - a) + "B" * a for a in ahead]


def gpipe(stages: int, microbatches: int) -> list[str]:
    return ["F" * microbatches + "B" * microbatches] * stages


def play(
    orders: Sequence[str],
    *,
    forward_ns: Sequence[int] | None = None,
    backward_ns: Sequence[int] | None = None,
    transfer_ns: int = 1,
    numbers: Sequence[int] | None = None,
    clocks: Sequence[int] | None = None,
) -> list[RankSummary]:
    stages = len(orders)
    ranks = [Rank(number) for number in numbers or range(stages)]
    for rank, clock in zip(ranks, clocks or [0] * stages, strict=True):
        rank.clock_ns = clock
    schedule = Schedule(ranks, forward_ns or [100 * US] * stages, backward_ns or [200 * US] * stages, transfer_ns)
    schedule.run(orders)
    groups = [group("pp", sorted(rank.rank for rank in ranks))]
    return [rank.summary(groups) for rank in ranks]


def pipeline(ranks: Sequence[RankSummary]) -> Pipeline:
    found = measure(ranks).pipeline
    assert found is not None
    return found


@pytest.mark.parametrize(("orders", "name"), [(one_f_one_b, "1f1b"), (gpipe, "gpipe")])
def test_the_bubble_is_what_the_formula_promises_when_stages_are_equal(orders: object, name: str) -> None:
    # GIVEN 4 equal stages, 8 micro-batches and messages that take next to nothing
    found = pipeline(play(orders(4, 8)))  # type: ignore[operator]
    # THEN the bubble is (p-1)/m of the work, whichever way blocks are ordered
    [run] = found.runs
    assert (found.stages, found.microbatches, found.virtual_stages, found.schedule) == (4, 8, 1, name)
    assert run.ranks == (0, 1, 2, 3)
    assert found.ideal_bubble_over_work == 3 / 8
    assert run.bubble_over_work == pytest.approx(3 / 8, rel=1e-3)
    assert run.bubble_fraction == pytest.approx(3 / 11, rel=1e-3)
    assert run.imbalance == pytest.approx(1.0)
    assert [stage.order for stage in run.stages] == orders(4, 8)  # type: ignore[operator]


def test_all_of_the_bubble_that_waits_for_a_message_hides_in_its_kernel() -> None:
    [run] = pipeline(play(one_f_one_b(4, 8))).runs
    # the last stage waits for nothing but its first and its last messages, the first one for all of its gradients
    assert all(stage.wait_in_p2p_ns <= stage.bubble_ns for stage in run.stages)
    assert run.stages[0].wait_in_p2p_ns == pytest.approx(run.stages[0].bubble_ns, rel=0.01)


def test_a_slow_stage_shows_as_imbalance_and_not_as_more_micro_batches() -> None:
    [run] = pipeline(
        play(one_f_one_b(4, 8), forward_ns=[100 * US] * 3 + [200 * US], backward_ns=[200 * US] * 3 + [400 * US])
    ).runs
    assert run.imbalance == pytest.approx(2 / 1.25)
    assert run.stages[3].forward_ns == 200 * US
    assert run.stages[3].bubble_ns < run.stages[0].bubble_ns
    assert (run.microbatches, run.schedule) == (8, "1f1b")


def test_stages_are_ordered_by_who_hears_first_from_whom_and_not_by_rank() -> None:
    [run] = pipeline(play(one_f_one_b(4, 8), numbers=[6, 2, 0, 4])).runs
    assert (run.ranks, run.order_from) == ((6, 2, 0, 4), "messages")
    assert [stage.stage for stage in run.stages] == [0, 1, 2, 3]


def test_clocks_apart_change_nothing() -> None:
    straight = pipeline(play(one_f_one_b(3, 6))).runs[0]
    apart = pipeline(play(one_f_one_b(3, 6), clocks=[0, 10**9, -(10**9)])).runs[0]
    assert apart.span_ns == pytest.approx(straight.span_ns, abs=10)
    assert apart.bubble_fraction == pytest.approx(straight.bubble_fraction, abs=1e-4)


def test_with_a_stage_missing_there_is_no_bubble_to_tell() -> None:
    found = pipeline(play(one_f_one_b(4, 8))[1:3])
    [run] = found.runs
    assert (run.complete, run.microbatches, run.bubble_fraction) == (False, None, None)
    assert [stage.stage for stage in run.stages] == [1, 2]


def test_messages_that_go_around_are_no_pipeline() -> None:
    """Ring attention: everybody sends on and receives at once."""
    ranks = [Rank(rank) for rank in range(4)]
    for _ in range(3):
        begin = max(rank.now_ns for rank in ranks)
        for rank in ranks:
            to, source = (rank.rank + 1) % 4, (rank.rank - 1) % 4
            parts = [{"primitive": "send", "peer": to}, {"primitive": "recv", "peer": source}]
            rank.batch(begin, begin + 10 * US, parts)
            rank.work(50 * US)
    assert measure([rank.summary([group("cp", range(4))]) for rank in ranks]).pipeline is None


@given(
    st.integers(2, 5),
    st.integers(1, 6),
    st.lists(st.integers(10 * US, 300 * US), min_size=10, max_size=10),
    st.integers(1, 20 * US),
)
@settings(max_examples=12, deadline=None)
def test_work_transfer_and_bubble_are_the_whole_span(stages: int, m: int, times: list[int], transfer: int) -> None:
    orders = one_f_one_b(stages, m)
    ranks = play(orders, forward_ns=times[:stages], backward_ns=times[5 : 5 + stages], transfer_ns=transfer)
    [run] = pipeline(ranks).runs
    for place, stage in enumerate(run.stages):
        assert stage.work_ns == m * (times[place] + times[5 + place])
        assert stage.work_ns + stage.transfer_ns + stage.bubble_ns == run.span_ns
        assert 0 <= stage.wait_in_p2p_ns <= stage.bubble_ns


def test_backward_of_the_weights_is_drawn_apart_where_a_message_comes_between() -> None:
    # GIVEN zero bubble on three stages: after each message of gradients the weights' own
    orders = ["FFFBWBWBW", "FFBWFBWBW", "FBWFBWFBW"]
    found = pipeline(play(orders, backward_ns=[100 * US] * 3))
    [run] = found.runs
    # THEN stages that send gradients show them apart; the first one sends none, and its two are one block
    assert [stage.order for stage in run.stages] == ["FFFBBB", *orders[1:]]
    assert (found.microbatches, found.virtual_stages, found.schedule) == (3, 1, "zero_bubble")
    assert [block.kind for block in run.stages[2].blocks if block.kind not in ("send", "receive")][:3] == [
        "forward",
        "backward",
        "backward_weight",
    ]


def test_a_v_turns_around_on_the_last_rank() -> None:
    assert name_schedule(["FFFFBWBWBWBW", "FFBWBW"], 2, 2) == "zbv"


def test_zero_bubble_is_told_by_weights_that_follow_their_message() -> None:
    assert name_schedule(["FFBWBW", "FBWFBW"], 2, 1) == "zero_bubble"
    assert name_schedule(["FFBB", "FFBB"], 2, 1) == "gpipe"
    assert name_schedule(["FFBB", "FBFB"], 2, 1) == "1f1b"
    assert name_schedule(["FBFB", "FFBB"], 2, 1) is None


@pytest.mark.parametrize(
    ("folder", "stages", "virtual", "microbatches", "schedule"),
    [
        ("pp4_1f1b_dp2", 4, 1, 8, "1f1b"),
        ("pp4_interleaved_tp2", 4, 2, 8, "interleaved_1f1b"),
        ("mg_pp4_1f1b_tp2", 4, 1, 8, "1f1b"),
    ],
)
def test_what_frameworks_really_ran_is_read_from_their_traces(
    shared_traces: Path, folder: str, stages: int, virtual: int, microbatches: int, schedule: str
) -> None:
    found = pipeline(summarize_all(discover([shared_traces / "framework" / folder])).ranks)
    assert (found.stages, found.virtual_stages, found.microbatches) == (stages, virtual, microbatches)
    assert found.schedule == schedule
    assert [run.ranks for run in found.runs] == [(0, 2, 4, 6), (1, 3, 5, 7)]
