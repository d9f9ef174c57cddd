"""The report for a terminal: ten lines first, then tables. Plain text of 100 columns, colour on request."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from io import StringIO
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tracelens.report.document import Document
from tracelens.report.families import Family, find_families, format_stride
from tracelens.report.headline import headline, plural, traffic_by_family
from tracelens.report.table import WIDTH, Column, lay_out, printable
from tracelens.results import CallsPerStep, Group, StepTime, Traffic
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_bytes, format_rate, format_time

_TITLE, _HEADING, _WARNING, _PLAIN = "bold", "dim", "yellow", ""
_PHASES = {None: UNKNOWN, "forward": "fwd", "backward": "bwd", "optimizer": "opt", "mixed": "mix"}

# How many rows a table may have before the rest is counted instead of shown.
_MOST_GROUPS, _MOST_TRAFFIC, _MOST_TIMES, _MOST_NOTES = 12, 40, 16, 8


class Line(NamedTuple):
    """A line of the report and the style that it has where colour is wanted."""

    text: str
    style: str = _PLAIN


def render_text(
    document: Document, *, colour: bool = False, every_row: bool = False, explain: bool = False
) -> str:
    """The document as text that ends in a newline.

    Args:
        document: what to tell.
        colour: add ANSI colours; the words are the same.
        every_row: show every group, row and rank instead of counting what is left out.
        explain: add the table of what each number rests on.
    """
    families = find_families(document.groups, world_size=document.run.world_size)
    lines = [Line(text) for text in headline(document, families)]
    sections = [
        _findings(document),
        _groups(families, every_row=every_row),
        _traffic(document, families, every_row=every_row),
        _evidence(document, families) if explain else [],
        _unsized(document, every_row=every_row),
        _time(document.time, every_row=every_row),
        _skipped(document, every_row=every_row),
        _problems(document, every_row=every_row),
    ]
    for section in sections:
        if section:
            lines += [Line(""), *section]
    return _paint(lines) if colour else "".join(f"{line.text}\n" for line in lines)


def _paint(lines: Sequence[Line]) -> str:
    console = Console(
        file=StringIO(),
        width=WIDTH,
        force_terminal=True,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    with console.capture() as capture:
        for line in lines:
            console.print(Text(line.text, style=line.style), no_wrap=True, overflow="ignore", crop=False)
    return capture.get()


def _table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Line]:
    heading, *body = lay_out(columns, rows)
    return [Line(title, _TITLE), Line(heading, _HEADING), *(Line(text) for text in body)]


def _left_out(count: int, what: str) -> list[Line]:
    if count <= 0:
        return []
    return [Line(f"  … {plural(count, f'more {what}')}; all with --per-rank or --format json")]


def _limit(most: int, *, every_row: bool) -> int | None:
    return None if every_row else most


# --- groups -----------------------------------------------------------------------------------------------


def _groups(families: Sequence[Family], *, every_row: bool) -> list[Line]:
    if not families:
        return []
    columns = [
        Column("group", is_name=True),
        Column("size"),
        Column("ranks", is_name=True),
        Column("size x stride", is_name=True),
        Column("names", is_name=True),
        Column("ranks from", is_name=True),
        Column("crosses nodes"),
    ]
    if every_row:
        entries = [(family.label, group, 0) for family in families for group in family.groups]
    else:
        entries = [(family.label, family.groups[0], len(family.groups) - 1) for family in families]
    shown = entries[: _limit(_MOST_GROUPS, every_row=every_row)]
    rows = [_group_row(label, group, alike) for label, group, alike in shown]
    title = f"Groups ({sum(len(family.groups) for family in families)})"
    return [*_table(title, columns, rows), *_left_out(len(entries) - len(shown), "kind of group")]


def _group_row(label: str, group: Group, alike: int) -> list[str]:
    ranks = UNKNOWN if group.ranks is None else format_ranks(group.ranks)
    crosses = {None: UNKNOWN, True: "yes", False: "no"}[group.spans_nodes]
    return [
        label,
        UNKNOWN if group.size is None else str(group.size),
        f"{ranks} and {alike} alike" if alike else ranks,
        UNKNOWN if group.ranks is None else format_stride(group.mesh),
        ", ".join(group.names) or UNKNOWN,
        str(group.ranks_source or UNKNOWN),
        crosses,
    ]


# --- traffic ----------------------------------------------------------------------------------------------


def _traffic(document: Document, families: Sequence[Family], *, every_row: bool) -> list[Line]:
    """A table per class of ranks: the rows of ranks that play the same role stand under one title."""
    sized = [row for row in document.traffic if not _is_unsized(row)]
    if not sized:
        return []
    labels = _labels(document.traffic, families)
    shown = _heaviest(sized, _limit(_MOST_TRAFFIC, every_row=every_row))
    lines: list[Line] = []
    for ranks in dict.fromkeys(row.ranks for row in shown):
        rows = [_traffic_row(labels[id(row)], row) for row in shown if row.ranks == ranks]
        lines += _table(f"Traffic per step of {_who(ranks)}", _TRAFFIC_COLUMNS, rows)
        lines.append(Line(""))
    return [*lines[:-1], *_left_out(len(sized) - len(shown), "row of traffic")]


_TRAFFIC_COLUMNS = [
    Column("group", is_name=True),
    Column("primitive", is_name=True),
    Column("dtype", is_name=True),
    Column("in", is_name=True),
    Column("calls"),
    Column("payload"),
    Column("wire"),
    Column("busy"),
    Column("exposed"),
    Column("busbw"),
]


def _traffic_row(label: str, row: Traffic) -> list[str]:
    return [
        label,
        str(row.primitive),
        row.dtype or UNKNOWN,
        _PHASES[row.phase],
        format_calls(row.calls_per_step),
        format_bytes(row.payload_bytes_per_step),
        format_bytes(row.wire_bytes_per_step),
        format_time(row.busy_ns_per_step),
        format_time(row.exposed_ns_per_step),
        format_rate(row.busbw_bytes_per_s),
    ]


def format_calls(calls: CallsPerStep) -> str:
    """Calls per step: `12` when every step has as many, `8-20` when not."""
    return str(calls.min) if calls.min == calls.max else f"{calls.min}-{calls.max}"


def _labels(traffic: Sequence[Traffic], families: Sequence[Family]) -> dict[int, str]:
    return {id(row): label for label, rows in traffic_by_family(traffic, families).items() for row in rows}


def _heaviest(rows: Sequence[Traffic], most: int | None) -> list[Traffic]:
    """The rows that take the most time and bytes, in the order of the document."""
    if most is None or len(rows) <= most:
        return list(rows)

    def weight(row: Traffic) -> tuple[int, int]:
        return (row.busy_ns_per_step or 0, row.wire_bytes_per_step or 0)

    chosen = {id(row) for row in sorted(rows, key=weight, reverse=True)[:most]}
    return [row for row in rows if id(row) in chosen]


def _who(ranks: Sequence[int]) -> str:
    if not ranks:
        return "a rank that the trace does not name"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {format_ranks(ranks)}"


def _evidence(document: Document, families: Sequence[Family]) -> list[Line]:
    labels = _labels(document.traffic, families)
    columns = [
        Column("ranks", is_name=True),
        Column("group", is_name=True),
        Column("primitive", is_name=True),
        Column("evidence", is_name=True),
        Column("steps"),
        Column("calls sized"),
        Column("calls timed"),
        Column("kernels/step"),
        Column("unlinked"),
        Column("algbw"),
    ]
    rows = [
        [
            format_ranks(row.ranks) or UNKNOWN,
            labels[id(row)],
            str(row.primitive),
            str(row.evidence or UNKNOWN),
            str(row.steps_used),
            UNKNOWN if row.calls_with_bytes is None else str(row.calls_with_bytes),
            UNKNOWN if row.calls_with_time is None else str(row.calls_with_time),
            f"{row.kernels_per_step:g}",
            str(row.unlinked_kernels),
            format_rate(row.algbw_bytes_per_s),
        ]
        for row in document.traffic
    ]
    return _table("What the traffic rests on", columns, rows) if rows else []


def _is_unsized(row: Traffic) -> bool:
    return row.kernel is not None and row.payload_bytes_per_step is None


def _unsized(document: Document, *, every_row: bool) -> list[Line]:
    rows = [row for row in document.traffic if _is_unsized(row)]
    if not rows:
        return []
    shown = _heaviest(rows, _limit(_MOST_NOTES, every_row=every_row))
    columns = [
        Column("kernel", is_name=True),
        Column("ranks", is_name=True),
        Column("kernels/step"),
        Column("launched before"),
        Column("busy"),
        Column("exposed"),
    ]
    cells = [
        [
            row.kernel or UNKNOWN,
            format_ranks(row.ranks) or UNKNOWN,
            f"{row.kernels_per_step:g}",
            str(row.unlinked_kernels),
            format_time(row.busy_ns_per_step),
            format_time(row.exposed_ns_per_step),
        ]
        for row in shown
    ]
    title = "Communication kernels without bytes"
    return [*_table(title, columns, cells), *_left_out(len(rows) - len(shown), "kind of kernel")]


# --- time -------------------------------------------------------------------------------------------------

_TIMES: list[tuple[str, Callable[[StepTime], int]]] = [
    ("span", lambda row: row.span_ns),
    ("compute", lambda row: row.compute_ns),
    ("exp. comm", lambda row: row.exposed_comm_ns),
    ("exp. memory", lambda row: row.exposed_memory_ns),
    ("idle", lambda row: row.idle_ns),
    ("comm", lambda row: row.comm_ns),
    ("overlap", lambda row: row.overlap_ns),
    ("memory", lambda row: row.memory_ns),
]


def _time(time: Sequence[StepTime], *, every_row: bool) -> list[Line]:
    if not time:
        return []
    numbers = [Column(title) for title, _ in _TIMES]
    if every_row or len(time) <= _MOST_TIMES:
        columns = [Column("rank"), Column("step"), *numbers]
        rows = [
            [_or_unknown(row.rank), _or_unknown(row.step), *(format_time(read(row)) for _, read in _TIMES)]
            for row in time
        ]
        return _table("Time budget: span = compute + exposed comm + exposed memory + idle", columns, rows)
    columns = [Column("", is_name=True), *numbers]
    values = [[read(row) for row in time] for _, read in _TIMES]
    rows = [
        [name, *(format_time(reduce(column)) for column in values)]
        for name, reduce in (("min", min), ("median", median), ("max", max))
    ]
    title = f"Time budget, each column over {plural(len(time), 'step')} of all ranks (--per-rank: each)"
    slowest = max(time, key=lambda row: row.span_ns)
    note = f"  longest: rank {_or_unknown(slowest.rank)}, step {_or_unknown(slowest.step)}"
    return [*_table(title, columns, rows), Line(note)]


def _or_unknown(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


# --- notes ------------------------------------------------------------------------------------------------


def _findings(document: Document) -> list[Line]:
    if not document.findings:
        return []
    lines = [Line("Findings", _TITLE)]
    for finding in document.findings:
        lines += _note(f"{finding.severity} {finding.code}: {finding.message}")
        if finding.hint:
            lines += _note(f"hint: {finding.hint}")
    return lines


def _skipped(document: Document, *, every_row: bool) -> list[Line]:
    skipped = document.run.skipped
    if not skipped:
        return []
    shown = skipped[: _limit(_MOST_NOTES, every_row=every_row)]
    lines = [Line(f"Skipped files ({len(skipped)})", _TITLE)]
    for file in shown:
        lines += _note(f"{file.path}: {file.why}")
    return [*lines, *_left_out(len(skipped) - len(shown), "skipped file")]


def _problems(document: Document, *, every_row: bool) -> list[Line]:
    """One entry per kind of problem, with the first as the example: hundreds of ranks share most of them."""
    problems = document.run.problems
    if not problems:
        return []
    lines = [Line(f"Problems ({len(problems)})", _TITLE)]
    for code in dict.fromkeys(problem.code for problem in problems):
        alike = [problem for problem in problems if problem.code == code]
        shown = alike if every_row else alike[:1]
        for problem in shown:
            where = problem.file or ("" if problem.rank is None else f"rank {problem.rank}")
            place = f" ({where})" if where else ""
            lines += _note(f"{problem.severity} {code}: {problem.message}{place}")
        lines += _left_out(len(alike) - len(shown), f"{code} problem")
    return lines


def _note(text: str) -> list[Line]:
    wrapped = textwrap.wrap(printable(text), WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [Line(line, _WARNING if index == 0 else _PLAIN) for index, line in enumerate(wrapped)]
