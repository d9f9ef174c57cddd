"""The innermost span around a point, against the definition written out as a loop."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace.nesting import find_innermost

SPANS = {"thread": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
POINTS = {"thread": pl.Int32, "at_ns": pl.Int64}

Span = tuple[int, int, int]


def found(points: list[tuple[int | None, int]], spans: list[Span]) -> list[Span | None]:
    rows = find_innermost(
        pl.DataFrame(points, schema=POINTS, orient="row"), pl.DataFrame(spans, schema=SPANS, orient="row")
    )
    return [None if row is None else spans[row] for row in rows]


def by_definition(points: list[tuple[int | None, int]], spans: list[Span]) -> list[Span | None]:
    """The last to begin of those around the point; of equal starts the shortest."""
    answers = []
    for thread, at in points:
        around = [span for span in spans if span[0] == thread and span[1] <= at < span[2]]
        answers.append(max(around, key=lambda span: (span[1], -span[2]), default=None))
    return answers


def test_the_inner_of_nested_spans_is_found_and_the_outer_one_after_its_end() -> None:
    spans = [(0, 0, 100), (0, 10, 20), (0, 12, 14), (1, 0, 50)]
    points = [(0, 5), (0, 12), (0, 15), (0, 20), (0, 99), (0, 100), (1, 15), (2, 15), (None, 15)]
    outer, inner, innermost, other = spans
    assert found(points, spans) == [outer, innermost, inner, outer, outer, None, other, None, None]


def test_a_point_after_many_closed_siblings_lies_in_their_parent() -> None:
    spans = [(0, 0, 10_000), *((0, 10 * place, 10 * place + 5) for place in range(1, 900))]
    assert found([(0, 8999)], spans) == [spans[0]]


times = st.integers(0, 12)


@given(
    st.lists(st.tuples(st.integers(0, 1), times, times), max_size=12),
    st.lists(st.tuples(st.none() | st.integers(0, 2), times), max_size=6),
)
def test_any_spans_nested_or_not_give_what_the_definition_says(
    spans: list[Span], points: list[tuple[int | None, int]]
) -> None:
    assert found(points, spans) == by_definition(points, spans)
