"""Weighing arguments: witnesses, contradictions, doubts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.inference.evidence import DECIDED, Case


def test_two_witnesses_are_surer_than_one() -> None:
    case = Case()
    case.decide("tp", 4, 0.8, "a")
    case.decide("tp", 4, 0.5, "b")
    assert case.verdict("tp").value == 4
    assert case.verdict("tp").confidence == pytest.approx(0.9)


def test_equal_arguments_for_two_values_leave_both_open() -> None:
    case = Case()
    case.decide("tp", 4, 0.9, "a")
    case.decide("tp", 2, 0.9, "b")
    assert case.verdict("tp").value is None
    assert set(case.verdict("tp").left) == {2, 4}


def test_a_doubt_beats_evidence_that_is_only_good() -> None:
    case = Case()
    case.decide("sharding", "zero1", 0.9, "a")
    case.leave("sharding", ("zero1", "zero2"), "one micro-batch")
    assert case.verdict("sharding").left == ("zero1", "zero2")


def test_a_doubt_yields_to_evidence_that_is_nearly_certain() -> None:
    case = Case()
    case.leave("cp", (1, 4), "heads or experts")
    case.decide("cp", 4, 0.98, "a ring")
    assert case.verdict("cp").value == 4


def test_what_speaks_against_a_value_is_told_with_it() -> None:
    case = Case()
    case.decide("tp", 4, 0.95, "activations")
    case.object_to("tp", "the group is called dp")
    (told,) = case.evidence(["tp"])
    assert told.supports == ("activations",)
    assert told.against == ("the group is called dp",)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(0.0, 0.99)), min_size=1, max_size=6))
def test_a_value_is_given_only_when_it_is_likelier_than_not(arguments: list[tuple[int, float]]) -> None:
    case = Case()
    for value, certainty in arguments:
        case.decide("pp", value, certainty, "")
    verdict = case.verdict("pp")
    if verdict.value is not None:
        assert verdict.confidence is not None
        assert verdict.confidence >= DECIDED - 0.001
        assert verdict.value in {value for value, _ in arguments}
