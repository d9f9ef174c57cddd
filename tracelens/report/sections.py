"""What HTML and Markdown share: the tables of a report as cells, with what each is sorted by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracelens.report.document import Document
from tracelens.report.families import Family, average, find_owners, format_stride, label_rows
from tracelens.report.table import Column
from tracelens.report.traffic import Labelled, format_calls
from tracelens.results import SizeRow, StepTime, Traffic
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, at_least, format_bytes, format_percent, format_rate, format_time

MOST_ROWS = 200
"""Rows that a table of a page may have; the rest is counted and stands in the JSON."""
_MOST_CLASSES = 4


class Cell(msgspec.Struct, frozen=True):
    """A cell's text, and the number by which it is sorted (None: by its text, or unknown)."""

    text: str
    sort: float | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A titled table; `left_out` rows more stand in the JSON."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0
    note: str | None = None


def table_of(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, note: str | None = None
) -> Table | None:
    """A table of at most `MOST_ROWS` rows, without columns that are empty in all; None where there is no row."""
    if not rows:
        return None
    told = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    shown = tuple(tuple(row[index] for index in told) for row in rows[:MOST_ROWS])
    kept = tuple(columns[index] for index in told)
    return Table(title=title, columns=kept, rows=shown, left_out=len(rows) - len(shown), note=note)


def text_columns(*titles: str) -> list[Column]:
    """Columns of names, which stand left."""
    return [Column(title, is_name=True) for title in titles]


def number_columns(*titles: str) -> list[Column]:
    """Columns of numbers, which stand right."""
    return [Column(title) for title in titles]


def name(text: object) -> Cell:
    """A name; `?` when unknown."""
    return Cell(UNKNOWN if text is None or text == "" else str(text))


def count(number: float | None) -> Cell:
    """A count, with as many digits as it needs; `?` when unknown."""
    return Cell(UNKNOWN if number is None else f"{number:,.6g}" if number < 1e6 else f"{number:,.0f}", number)


def size(number: float | None, *, partial: bool = False) -> Cell:
    """Bytes; `partial` where more calls carry some that are not known."""
    return Cell(at_least(format_bytes(number), partial=partial), number)


def time(ns: float | None, *, partial: bool = False) -> Cell:
    """Nanoseconds; `partial` where more calls take some that are not known."""
    return Cell(at_least(format_time(ns), partial=partial), ns)


def rate(bytes_per_s: float | None) -> Cell:
    """Bytes per second."""
    return Cell(format_rate(bytes_per_s), bytes_per_s)


def share(fraction: float | None) -> Cell:
    """A fraction of one as percent."""
    return Cell(format_percent(fraction), fraction)


# --- what was sent ----------------------------------------------------------------------------------------


def traffic_table(document: Document, families: Sequence[Family]) -> Table | None:
    """Traffic per step; where many classes of ranks differ, what they do alike, averaged over their ranks."""
    labelled = [(label, row) for label, row in label_rows(document.traffic, families) if row.kernel is None]
    classes = {row.rank_class for _, row in labelled}
    note = None
    if len(classes) > _MOST_CLASSES:
        labelled = _averages(labelled)
        note = f"Mean over ranks: {len(classes):,} classes of ranks differ. --per-rank keeps each."
    ordered = sorted(labelled, key=lambda item: -(item[1].busy_ns_per_step or 0))
    columns = [
        *text_columns("group", "primitive", "dtype", "phase"),
        *number_columns("calls", "payload", "sent", "busy", "exposed", "busbw"),
        *text_columns("ranks", "known from"),
    ]
    return table_of("Traffic per rank and step", columns, [_traffic_cells(*item) for item in ordered], note=note)


def _averages(labelled: Sequence[Labelled]) -> list[Labelled]:
    alike: dict[tuple[object, ...], list[Labelled]] = {}
    for label, row in labelled:
        alike.setdefault((label, row.primitive, row.dtype, row.phase), []).append((label, row))
    return [(kin[0][0], average([row for _, row in kin])) for kin in alike.values()]


def _traffic_cells(label: str, row: Traffic) -> list[Cell]:
    shared = row.busy_ns_per_step is None and bool(row.calls_with_time)
    return [
        name(label),
        name(row.primitive),
        name(row.dtype),
        name(row.phase),
        Cell(format_calls(row.calls_per_step), row.calls_per_step.mean),
        size(row.payload_bytes_per_step, partial=row.lacks_payload),
        size(row.wire_bytes_per_step, partial=row.lacks_bytes),
        Cell("shared") if shared else time(row.busy_ns_per_step, partial=row.lacks_time),
        time(row.exposed_ns_per_step, partial=row.lacks_time),
        rate(row.busbw_bytes_per_s),
        name(format_ranks(row.ranks)),
        name(row.evidence),
    ]


def unsized_table(document: Document) -> Table | None:
    """Communication kernels whose bytes nobody knows, the longest first."""
    kernels: dict[tuple[str, str], list[Traffic]] = {}
    for row in document.traffic:
        if row.kernel is not None:
            kernels.setdefault((row.kernel, row.primitive), []).append(row)
    averages = [average(rows) for rows in kernels.values()]
    ordered = sorted(averages, key=lambda row: -(row.busy_ns_per_step or 0))
    columns = [*text_columns("kernel", "primitive", "ranks"), *number_columns("kernels/step", "busy", "exposed")]
    rows = [
        [
            name(row.kernel),
            name(row.primitive),
            name(format_ranks(row.ranks)),
            count(row.kernels_per_step),
            time(row.busy_ns_per_step),
            time(row.exposed_ns_per_step),
        ]
        for row in ordered
    ]
    return table_of("Communication kernels without bytes", columns, rows)


def sizes_table(document: Document, families: Sequence[Family]) -> Table | None:
    """Traffic by size of call, of the first class of ranks that has each."""
    owners = find_owners(families)
    first: dict[tuple[object, ...], SizeRow] = {}
    for row in document.sizes:
        label = "unattributed" if row.group is None else owners.get(row.group, row.group)
        first.setdefault((label, row.primitive, row.dtype, row.phase, row.from_bytes, row.to_bytes), row)
    columns = [
        *text_columns("group", "primitive", "dtype", "phase"),
        *number_columns("payload of a call", "calls", "sent", "busy", "exposed", "spread of busy"),
    ]
    rows = [
        [
            *(name(part) for part in key[:4]),
            Cell(format_size_range(row.from_bytes, row.to_bytes), row.from_bytes),
            Cell(format_calls(row.calls_per_step), row.calls_per_step.mean),
            size(row.wire_bytes_per_step, partial=row.lacks_bytes),
            time(row.busy_ns_per_step, partial=row.lacks_time),
            time(row.exposed_ns_per_step, partial=row.lacks_time),
            time(row.busy_spread_ns),
        ]
        for key, row in first.items()
    ]
    rows.sort(key=lambda cells: -(cells[6].sort or 0))
    return table_of("Traffic by size of call", columns, rows)


def format_size_range(low: int | None, high: int | None) -> str:
    """`4 MiB`, or `4 MiB to 16 MiB` for a bucket; `?` when unknown."""
    if low is None or high is None or low == high:
        return format_bytes(low)
    return f"{format_bytes(low)} to {format_bytes(high + 1)}"


# --- groups and time --------------------------------------------------------------------------------------


def groups_table(families: Sequence[Family]) -> Table | None:
    """A row per kind of group."""
    columns = [
        *text_columns("group"),
        *number_columns("groups", "size"),
        *text_columns("first ranks", "size x stride", "names", "descriptions", "ranks from", "crosses nodes"),
    ]
    return table_of("Kinds of groups", columns, [_group_cells(family) for family in families])


def _group_cells(family: Family) -> list[Cell]:
    group = family.groups[0]
    names = dict.fromkeys(text for member in family.groups for text in member.names)
    return [
        name(family.label),
        count(len(family.groups)),
        count(group.size),
        name(None if group.ranks is None else format_ranks(group.ranks)),
        name(None if group.ranks is None else format_stride(group.mesh)),
        name(_some(names)),
        name(_some(group.descriptions, 2)),
        name(group.ranks_source),
        name(format_crossing(family)),
    ]


def format_crossing(family: Family) -> str:
    """Whether groups of a family span nodes: `yes`, `no`, `3 of 8`, or `?`."""
    known = [group.spans_nodes for group in family.groups if group.spans_nodes is not None]
    if not known:
        return UNKNOWN
    return "yes" if all(known) else f"{sum(known)} of {len(known)}" if any(known) else "no"


def _some(texts: Iterable[str], most: int = 4) -> str:
    listed = list(texts)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def time_table(steps: Sequence[StepTime]) -> Table | None:
    """The budget of every rank and step, the longest first where there are too many."""
    columns = number_columns(
        "rank", "step", "span", "compute", "exposed comm", "exposed memory", "idle", "comm", "overlap", "memory"
    )
    ordered = list(steps) if len(steps) <= MOST_ROWS else sorted(steps, key=lambda row: -row.span_ns)
    rows = [
        [
            count(row.rank),
            count(row.step),
            *(time(value) for value in (row.span_ns, row.compute_ns)),
            time(row.exposed_comm_ns, partial=row.untimed_calls > 0),
            *(time(value) for value in (row.exposed_memory_ns, row.idle_ns)),
            *(time(value, partial=row.untimed_calls > 0) for value in (row.comm_ns, row.overlap_ns)),
            time(row.memory_ns),
        ]
        for row in ordered
    ]
    return table_of("Time budget of every rank and step", columns, rows)
