"""The join, on calls written by hand: on which keys two sides meet, and what is said of what is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.collectives import Primitive
from tracelens.compared import Verdict
from tracelens.comparison.items import Item
from tracelens.comparison.join import join
from tracelens.comparison.reasons import cut_step
from tracelens.comparison.sizes import differing_sizes
from tracelens.results import Phase
from tracelens.topology import Mesh

TP: Mesh = ((8, 1),)


def item(**changes: Any) -> Item:
    usual: dict[str, Any] = {
        "mesh": TP,
        "primitive": Primitive.all_reduce,
        "dtype": "bf16",
        "phase": Phase.forward,
        "payload_bytes": 10_000,
        "calls": 4.0,
        "wire_bytes": 70_000.0,
    }
    return Item(**(usual | changes))


def verdicts(predicted: list[Item], measured: list[Item]) -> list[Verdict]:
    return [pair.verdict for pair in join(predicted, measured, 0.01)]


def test_equal_calls_match() -> None:
    assert verdicts([item()], [item()]) == [Verdict.match]


def test_bytes_may_differ_by_the_tolerance_and_calls_may_not() -> None:
    assert verdicts([item()], [item(payload_bytes=10_099, wire_bytes=70_699.0)]) == [Verdict.match]
    assert verdicts([item()], [item(payload_bytes=10_200, wire_bytes=71_400.0)]) == [Verdict.more]
    assert verdicts([item()], [item(calls=5.0)]) == [Verdict.more]
    assert verdicts([item()], [item(calls=3.0)]) == [Verdict.less]


def test_a_kibibyte_is_always_forgiven() -> None:
    assert verdicts([item(wire_bytes=8.0)], [item(payload_bytes=2, wire_bytes=1000.0)]) == [Verdict.match]


def test_calls_of_two_phases_are_two_things_and_not_one_that_differs() -> None:
    # the gradients that a ledger expects in backward are not the norm that the optimizer sums
    gradients = item(dtype="fp32", phase=Phase.backward, payload_bytes=10**8, calls=66.0, wire_bytes=10**10)
    norm = item(dtype="fp32", phase=Phase.optimizer, payload_bytes=4, calls=1.0, wire_bytes=2000.0)
    assert verdicts([gradients], [norm]) == [Verdict.absent, Verdict.unpredicted]
    for unknown in (None, Phase.mixed):
        norm_somewhere = item(dtype="fp32", phase=unknown, payload_bytes=4, calls=1.0, wire_bytes=2000.0)
        assert verdicts([gradients], [norm_somewhere]) == [Verdict.less]


def test_a_phase_that_the_trace_cannot_tell_does_not_part_equal_calls() -> None:
    predicted = [item(), item(phase=Phase.backward)]
    measured = [item(phase=Phase.mixed, calls=8.0, wire_bytes=140_000.0)]
    assert verdicts(predicted, measured) == [Verdict.match]


def calls_of(size: int, calls: float, **changes: Any) -> Item:
    """Calls of `size` bytes in a group of 8: 7/4 of them are sent."""
    return item(payload_bytes=size, calls=calls, wire_bytes=1.75 * size * calls, **changes)


def test_sizes_known_only_as_a_mean_match_the_true_ones() -> None:
    measured = [calls_of(4_000, 1.0), calls_of(16_000, 1.0)]
    assert verdicts([calls_of(10_000, 2.0, is_mean=True)], measured) == [Verdict.match]


def test_as_many_bytes_in_calls_of_other_sizes_are_no_match() -> None:
    # two of 10 kB, or one of 4 and one of 16: the larger is off by as much as the smaller, and is met last
    (pair,) = join([calls_of(10_000, 2.0)], [calls_of(4_000, 1.0), calls_of(16_000, 1.0)], 0.01)
    assert pair.verdict in (Verdict.more, Verdict.less)
    assert [
        (one.calls, one.predicted, one.measured) for one in differing_sizes(pair.predicted, pair.measured, 0.01)
    ] == [
        (1.0, 17_500.0, 7_000.0),
        (1.0, 17_500.0, 28_000.0),
    ]


# 16 equal units of a model and a root: 16 · 1,000,000 + 1,200,000 bytes, of which 3 % of the root are 0.2 %
UNITS, ROOT = 1_000_000, 1_200_000


@pytest.mark.parametrize("padding", [0, 100])
@pytest.mark.parametrize(("off", "verdict"), [(1.03, Verdict.more), (0.97, Verdict.less), (1.0, Verdict.match)])
def test_a_root_that_is_off_does_not_hide_among_the_equal_units(padding: int, off: float, verdict: Verdict) -> None:
    predicted = [calls_of(UNITS, 16.0), calls_of(ROOT, 1.0)]
    measured = [calls_of(UNITS + padding, 16.0), calls_of(round(ROOT * off), 1.0)]
    pairs = join(predicted, measured, 0.01)
    assert {pair.verdict for pair in pairs if pair.measured_calls == 1} <= {verdict}
    assert sum(pair.measured_calls for pair in pairs if pair.verdict is Verdict.match) == (17 if off == 1.0 else 16)


def test_nor_where_the_trace_cannot_tell_the_phase() -> None:
    predicted = [
        calls_of(UNITS, 16.0),
        calls_of(UNITS, 16.0, phase=Phase.backward),
        calls_of(ROOT, 1.0, phase=Phase.backward),
    ]
    measured = [calls_of(UNITS + 100, 32.0, phase=Phase.mixed), calls_of(1_236_000, 1.0, phase=Phase.mixed)]
    pairs = join(predicted, measured, 0.01)
    assert [(pair.verdict, pair.measured_calls) for pair in pairs] == [(Verdict.match, 32), (Verdict.more, 1)]


def test_many_sizes_known_by_their_sum_are_held_against_the_calls_in_their_place() -> None:
    """A row of many sizes is cut in buckets: 3 calls of 4-16 kB, 2 of 64-256 kB."""
    predicted = [calls_of(5_000, 2.0), calls_of(11_000, 1.0), calls_of(100_000, 2.0)]
    small = item(payload_bytes=None, calls=3.0, wire_bytes=1.75 * 21_000)
    large = item(payload_bytes=None, calls=2.0, wire_bytes=1.75 * 200_000)
    assert verdicts(predicted, [small, large]) == [Verdict.match]
    # 3 kB more below are 1.4 % of all and 14 % of their bucket
    more = item(payload_bytes=None, calls=3.0, wire_bytes=1.75 * 24_000)
    assert Verdict.more in verdicts(predicted, [more, large])


def test_messages_that_are_received_are_told_apart_by_their_size() -> None:
    """A receive sends nothing, so nothing but its size can differ."""
    predicted = item(primitive=Primitive.recv, payload_bytes=100_000, wire_bytes=0.0)
    measured = item(primitive=Primitive.recv, payload_bytes=50_000, wire_bytes=0.0)
    (pair,) = join([predicted], [measured], 0.01)
    assert pair.verdict is not Verdict.match


def test_calls_of_one_size_match_though_those_of_another_do_not() -> None:
    predicted = [item(), item(payload_bytes=500_000, calls=2.0, wire_bytes=1_750_000.0)]
    measured = [item(), item(payload_bytes=500_000, calls=3.0, wire_bytes=2_625_000.0)]
    pairs = join(predicted, measured, 0.01)
    assert [(pair.verdict, pair.measured_calls) for pair in pairs] == [(Verdict.match, 4), (Verdict.more, 3)]


def test_the_same_calls_in_another_dtype_stand_side_by_side() -> None:
    measured = item(dtype="fp32", payload_bytes=20_000, wire_bytes=140_000.0)
    (pair,) = join([item()], [measured], 0.01)
    assert (pair.verdict, pair.measured_bytes, pair.lead.dtype) == (Verdict.more, 140_000.0, "fp32")


def test_what_only_one_side_has_is_absent_or_unpredicted() -> None:
    other = item(mesh=((2, 8),))
    assert verdicts([item()], [other]) == [Verdict.absent, Verdict.unpredicted]


def test_calls_without_a_size_match_by_their_number() -> None:
    assert verdicts([item()], [item(payload_bytes=None, wire_bytes=None)]) == [Verdict.match]


KINDS = st.builds(
    item,
    mesh=st.sampled_from([TP, ((2, 8),), None]),
    primitive=st.sampled_from([Primitive.all_reduce, Primitive.all_gather]),
    dtype=st.sampled_from(["bf16", "fp32", None]),
    phase=st.sampled_from([Phase.forward, Phase.backward, None]),
    payload_bytes=st.sampled_from([None, 100, 5_000, 70_000]),
    calls=st.integers(1, 4).map(float),
    wire_bytes=st.one_of(st.none(), st.floats(0, 1e9)),
)


@given(st.lists(KINDS, max_size=6), st.lists(KINDS, max_size=6))
def test_every_call_of_both_sides_stands_in_exactly_one_pair(predicted: list[Item], measured: list[Item]) -> None:
    pairs = join(predicted, measured, 0.01)
    assert sorted(id(one) for pair in pairs for one in pair.predicted) == sorted(map(id, predicted))
    assert sorted(id(one) for pair in pairs for one in pair.measured) == sorted(map(id, measured))


@given(st.lists(KINDS, max_size=6))
def test_a_side_held_against_itself_is_one_match_after_another(items: list[Item]) -> None:
    assert {pair.verdict for pair in join(items, list(items), 0.01)} <= {Verdict.match}


def test_a_step_that_was_cut_off_is_told() -> None:
    # three steps: 4, 4 and 1 calls
    measured = item(calls=3.0, wire_bytes=52_500.0, fewest=1, most=4)
    (pair,) = join([item()], [measured], 0.01)
    assert pair.verdict is Verdict.less
    assert cut_step(pair) == "a step is cut: it holds 1 call, whole steps hold the 4 predicted"


def test_steps_that_are_all_alike_are_not_cut() -> None:
    (pair,) = join([item()], [item(calls=3.0, wire_bytes=52_500.0, fewest=3, most=3)], 0.01)
    assert cut_step(pair) is None
