"""The report for a terminal: ten lines first, then tables. Plain text of 100 columns, colour on request."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from io import StringIO
from statistics import median

from rich.console import Console
from rich.text import Text

from tracelens.report.comparison import comparison_lines
from tracelens.report.document import Document
from tracelens.report.families import Family, find_families, find_owners, format_stride, label_rows
from tracelens.report.findings import finding_lines
from tracelens.report.headline import headline
from tracelens.report.inference import inference_lines
from tracelens.report.limits import limit_lines
from tracelens.report.lines import TITLE, Line, left_out, limit, note, titled_table
from tracelens.report.pipeline import pipeline_lines
from tracelens.report.table import WIDTH, Column, as_text, printable
from tracelens.report.traffic import evidence_table, traffic_tables, unsized_table
from tracelens.report.verdict import Status, summarize_verdict
from tracelens.report.waiting import dilation_lines, link_table, routing_lines, skew_table
from tracelens.results import Group, Overlap, StepTime
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, at_least, format_time, plural

# How many rows a table may have before the rest is counted instead of shown.
_MOST_GROUPS, _MOST_TIMES, _MOST_NOTES = 12, 16, 8


def render_text(document: Document, *, colour: bool = False, every_row: bool = False, explain: bool = False) -> str:
    """The document as text that ends in a newline.

    Args:
        document: what to tell.
        colour: add ANSI colours; the words are the same.
        every_row: show every group, row and rank instead of counting what is left out.
        explain: add the table of what each number rests on.
    """
    families = find_families(document.groups, world_size=document.run.world_size)
    labelled = label_rows(document.traffic, families)
    owners = find_owners(families)
    lines = [*_verdict(document), *(Line(text) for text in headline(document, families))]
    sections = [
        comparison_lines(document.comparison, every_row=every_row),
        finding_lines(document.findings, explain=explain),
        limit_lines(document.limits, every_row=every_row),
        inference_lines(document.inference, explain=explain),
        _groups(families, every_row=every_row),
        traffic_tables(labelled, every_row=every_row),
        evidence_table(labelled) if explain else [],
        unsized_table(labelled, every_row=every_row),
        _time(document.time, every_row=every_row),
        _overlap(document.overlap),
        skew_table(document.skew, document.clocks, owners, every_row=every_row),
        pipeline_lines(document.pipeline, every_row=every_row),
        routing_lines(document.routing),
        dilation_lines(document.dilation),
        link_table(document.links, owners, every_row=every_row),
        _skipped(document, every_row=every_row),
        _problems(document, every_row=every_row),
    ]
    for section in sections:
        if section:
            lines += [Line(""), *section]
    lines = [Line(as_text(line.text), line.style) for line in lines]
    return _paint(lines) if colour else "".join(f"{line.text}\n" for line in lines)


_UNBROKEN = "\u00a0%"
_STYLES = {Status.failed: "bold red", Status.passed_with_warnings: "bold yellow", Status.passed: "bold green"}


def _verdict(document: Document) -> list[Line]:
    """Passed or failed and why, where anything was judged."""
    verdict = summarize_verdict(document)
    if document.passed is None or verdict is None:
        return []
    told = printable(f"{verdict.status.label.lower()}: {verdict.text}").replace(" %", _UNBROKEN)
    lines = textwrap.wrap(told, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [Line(line.replace(_UNBROKEN, " %"), _STYLES[verdict.status]) for line in lines]


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
    shown = entries[: limit(_MOST_GROUPS, every_row=every_row)]
    rows = [_group_row(label, group, alike) for label, group, alike in shown]
    title = f"Groups ({sum(len(family.groups) for family in families)})"
    return [*titled_table(title, columns, rows), *left_out(len(entries) - len(shown), "kind")]


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


# --- time -------------------------------------------------------------------------------------------------

_BUDGET = "Time budget: span = compute + exposed comm + exposed memory + idle"
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
_COMMUNICATION = frozenset({"exp. comm", "comm", "overlap"})


def _time(time: Sequence[StepTime], *, every_row: bool) -> list[Line]:
    if not time:
        return []
    numbers = [Column(title) for title, _ in _TIMES]
    if every_row or len(time) <= _MOST_TIMES:
        columns = [Column("rank"), Column("step"), *numbers]
        rows = [
            [_or_unknown(row.rank), _or_unknown(row.step), *(_format_part(row, *part) for part in _TIMES)]
            for row in time
        ]
        return titled_table("Time budget: span = compute + exposed comm + exposed memory + idle", columns, rows)
    columns = [Column("", is_name=True), *numbers]
    partial = any(row.untimed_calls for row in time)
    values = [([read(row) for row in time], partial and title in _COMMUNICATION) for title, read in _TIMES]
    rows = [
        [name, *(at_least(format_time(reduce(column)), partial=bound) for column, bound in values)]
        for name, reduce in (("min", min), ("median", median), ("max", max))
    ]
    title = f"Time budget, each column over {plural(len(time), 'step')} of all ranks (--per-rank: each)"
    slowest = max(time, key=lambda row: row.span_ns)
    note = f"  longest: rank {_or_unknown(slowest.rank)}, step {_or_unknown(slowest.step)}"
    return [*titled_table(title, columns, rows), Line(note)]


def _format_part(row: StepTime, name: str, read: Callable[[StepTime], int]) -> str:
    """A part of a budget; what communication takes is a lower bound where calls have no kernel."""
    return at_least(format_time(read(row)), partial=row.untimed_calls > 0 and name in _COMMUNICATION)


def _overlap(overlap: Sequence[Overlap]) -> list[Line]:
    known = [row.comm_overlap_pct for row in overlap if row.comm_overlap_pct is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    percent = f"{low:.2f} %" if low == high else f"{low:.2f} to {high:.2f} %, median {median(known):.2f} %,"
    ranks = {row.rank for row in overlap if row.comm_overlap_pct is not None}
    # a rank may have recorded several windows; of files whose rank is not known each may be another
    read = len(known) if None in ranks else len(ranks)
    over = f" over {plural(read, 'rank')}" if read > 1 else ""
    text = f"Communication under compute, whole recording: {percent}{over}"
    return [Line(text)]


def _or_unknown(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


# --- notes ------------------------------------------------------------------------------------------------


def _skipped(document: Document, *, every_row: bool) -> list[Line]:
    skipped = document.run.skipped
    if not skipped:
        return []
    shown = skipped[: limit(_MOST_NOTES, every_row=every_row)]
    lines = [Line(f"Skipped files ({len(skipped)})", TITLE)]
    for file in shown:
        lines += note(file.why if file.path in file.why else f"{file.path}: {file.why}")
    return [*lines, *left_out(len(skipped) - len(shown), "skipped file")]


def _problems(document: Document, *, every_row: bool) -> list[Line]:
    """One entry per kind of problem, with the first as the example: hundreds of ranks share most of them."""
    problems = document.run.problems
    if not problems:
        return []
    lines = [Line(f"Problems ({len(problems)})", TITLE)]
    for code in dict.fromkeys(problem.code for problem in problems):
        alike = [problem for problem in problems if problem.code == code]
        shown = alike if every_row else alike[:1]
        for problem in shown:
            where = problem.file or ("" if problem.rank is None else f"rank {problem.rank}")
            place = f" ({where})" if where else ""
            lines += note(f"{problem.severity} {code}: {problem.message}{place}")
        lines += left_out(len(alike) - len(shown), f"{code} problem")
    return lines
