"""Tables fit whatever they are given, and nothing steers the terminal."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.cells import cell_len

from tracelens.report.table import WIDTH, Column, lay_out, printable, shorten

TEXT = st.text(max_size=200)


def test_names_stand_left_and_numbers_right() -> None:
    columns = [Column("name", is_name=True), Column("bytes")]
    assert lay_out(columns, [["a", "1 B"], ["bcdef", "1000 B"]]) == [
        "  name    bytes",
        "  a         1 B",
        "  bcdef  1000 B",
    ]


def test_the_widest_name_gives_way_first_and_numbers_never() -> None:
    # GIVEN two names and a number that need 2 + 90 + 2 + 8 + 2 + 7 = 111 columns
    columns = [Column("long", is_name=True), Column("short", is_name=True), Column("number")]
    line = lay_out(columns, [["x" * 45 + "y" * 45, "shortish", "470 MiB"]])[1]

    # THEN with single blanks 2 + 81 + 1 + 8 + 1 + 7 = 100 columns hold the long name's two ends
    assert line == "  " + "x" * 40 + "…" + "y" * 40 + " shortish 470 MiB"
    assert len(line) == WIDTH


@given(st.lists(st.tuples(TEXT, TEXT, st.integers(0, 10**12)), max_size=5))
def test_lines_fit_for_any_names(rows: list[tuple[str, str, int]]) -> None:
    columns = [Column("a", is_name=True), Column("b", is_name=True), Column("n")]
    lines = lay_out(columns, [[a, b, str(n)] for a, b, n in rows])
    assert all(cell_len(line) <= WIDTH for line in lines)
    assert all(line.endswith(str(n)) for line, (_, _, n) in zip(lines[1:], rows, strict=True))


@given(TEXT, st.integers(1, 60))
def test_shortening_keeps_both_ends_and_the_width(text: str, width: int) -> None:
    assume("…" not in text)
    short = shorten(text, width)
    assert cell_len(short) <= width
    if short != text:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


@given(TEXT)
def test_printable_text_is_printable_and_left_alone_where_it_was(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("\x1b[31m", "\\x1b[31m"), ("a\nb", "a\\x0ab"), ("\u202e", "\\u202e"), ("\U000e0001", "\\U000e0001")],
)
def test_what_steers_a_terminal_is_written_out(raw: str, shown: str) -> None:
    assert printable(raw) == shown
