"""Lines of a report for the terminal, with the style that each has where colour is wanted."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from tracelens.report.table import WIDTH, Column, lay_out, printable
from tracelens.units import plural

TITLE, HEADING, WARNING, PLAIN = "bold", "dim", "yellow", ""


class Line(NamedTuple):
    """A line of the report and the style that it has where colour is wanted."""

    text: str
    style: str = PLAIN


def titled_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Line]:
    """A table under its title."""
    heading, *body = lay_out(columns, rows)
    return [Line(title, TITLE), Line(heading, HEADING), *(Line(text) for text in body)]


def left_out(count: int, what: str) -> list[Line]:
    """A line that says how much was not shown and how to see it; nothing when all was."""
    if count <= 0:
        return []
    return [Line(f"  … {plural(count, f'more {what}')}; all with --per-rank or --format json")]


def limit(most: int, *, every_row: bool) -> int | None:
    """How many rows to show; None for all."""
    return None if every_row else most


def note(text: str, *, indent: str = "  ", style: str = WARNING) -> list[Line]:
    """A remark, wrapped, with its first line in a colour."""
    wrapped = textwrap.wrap(printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
    return [Line(line, style if index == 0 else PLAIN) for index, line in enumerate(wrapped)]


def remark(text: str, indent: int = 2) -> list[Line]:
    """Plain text, wrapped and indented, whatever stands in it."""
    blanks = " " * indent
    wrapped = textwrap.wrap(printable(text), WIDTH, initial_indent=blanks, subsequent_indent=f"{blanks}  ")
    return [Line(line) for line in wrapped]
