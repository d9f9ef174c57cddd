"""Formulas are arithmetic, text and equations at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.ledger.expressions import Number, Symbol, add, ceil_to, ceiling, floor, maximum

x, y, z = Symbol("x"), Symbol("y"), Symbol("z")
numbers = st.integers(min_value=1, max_value=10**6)


@given(numbers, numbers, numbers)
def test_a_formula_evaluates_as_python_does(a: int, b: int, c: int) -> None:
    formula = (x + 2 * y - 3) * z / y + maximum(x, z) - ceil_to(x, y)
    expected = (a + 2 * b - 3) * c / b + max(a, c) - -(-a // b) * b

    assert formula.evaluate({"x": a, "y": b, "z": c}) == pytest.approx(expected, rel=1e-12)


@given(numbers, numbers)
def test_whole_quotients_stay_whole_numbers(a: int, b: int) -> None:
    value = (x * y / y).evaluate({"x": a, "y": b})

    assert value == a
    assert isinstance(value, int)


def test_text_puts_brackets_only_where_they_matter() -> None:
    assert str(2 * (x + y) * z / (x * y)) == "2·(x + y)·z/(x·y)"
    assert str(x - y) == "x - y"
    assert str((x - 2 * y) * z) == "(x - 2·y)·z"
    assert str(x / y / z) == "x/y/z"


def test_text_with_numbers_shows_each_in_its_place() -> None:
    assert (x * (y - 1) / y).text({"x": 6, "y": 3}) == "6·(3 - 1)/3"


def test_equal_terms_are_counted_once() -> None:
    assert str(add(x * y, z, x * y)) == "2·x·y + z"
    assert add(x, -1 * x) == Number(0)


def test_zero_and_one_vanish() -> None:
    assert 0 * x == Number(0)
    assert 1 * x == x
    assert x + 0 == x
    assert x / 1 == x


def test_unknowns_are_those_that_remain() -> None:
    assert (ceiling(x / y) + 0 * z).unknowns() == {"x", "y"}
    assert floor(x).evaluate({"x": 2.5}) == 2


def test_an_unbound_unknown_is_named() -> None:
    with pytest.raises(KeyError, match="y"):
        (x + y).evaluate({"x": 1})
