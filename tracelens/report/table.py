"""Tables of plain text that always fit: names are shortened in the middle, numbers never."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

WIDTH = 100
_NARROWEST = 7
_COMMAND = re.compile(r"^(\s*)::")


class Column(NamedTuple):
    """A column: names stand left and may be shortened, numbers stand right and never are."""

    title: str
    is_name: bool = False


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, indent: int = 2) -> list[str]:
    """Heading and rows as lines of at most `WIDTH` columns, without trailing blanks."""
    table = [[column.title for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(row[index]) for row in table) for index in range(len(columns))]
    gap = 2 if indent + sum(widths) + 2 * (len(columns) - 1) <= WIDTH else 1
    _narrow(columns, widths, WIDTH - indent - gap * (len(columns) - 1))
    return [_line(columns, row, widths, indent, gap) for row in table]


def _narrow(columns: Sequence[Column], widths: list[int], room: int) -> None:
    """Take from the widest name until the row fits or every name is at its narrowest."""
    names = [index for index, column in enumerate(columns) if column.is_name]
    while sum(widths) > room and names:
        widest = max(names, key=lambda index: widths[index])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def _line(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], indent: int, gap: int) -> str:
    cells = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = shorten(cell, width) if column.is_name else cell
        blanks = " " * (width - cell_len(text))
        cells.append(text + blanks if column.is_name else blanks + text)
    return (" " * indent + (" " * gap).join(cells)).rstrip()


def shorten(text: str, width: int) -> str:
    """At most `width` terminal columns of a text: its two ends, `…` between them.

    >>> shorten("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 21)
    'ncclDevKer…16_RING_LL'
    """
    if cell_len(text) <= width:
        return text
    head = _leading(text, width // 2)
    tail = _leading(text[::-1], width - 1 - width // 2)[::-1]
    return f"{head}…{tail}"


def _leading(text: str, width: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += cell_len(character)
        if used > width:
            return text[:index]
    return text


def printable(text: str) -> str:
    r"""The text with everything that could steer a terminal written out, such as `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _written_out(ord(char)) for char in text)


def as_text(line: str) -> str:
    r"""A line that neither a terminal nor a CI runner takes for a command.

    GitHub's runner obeys `::command::` at the start of a line and `##[command]` anywhere (actions/runner,
    ActionCommand.cs).

    >>> as_text("  ::error::x ##[error]y")
    '  \\x3a:error::x #\\x23[error]y'
    """
    text = printable(line).replace("##[", r"#\x23[")
    return _COMMAND.sub(r"\1\\x3a:", text)


def _written_out(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
