"""The tables of traffic: what was sent, what that rests on, and what has no bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from tracelens.report.families import average
from tracelens.report.lines import Line, left_out, limit, titled_table
from tracelens.report.table import Column
from tracelens.results import CallsPerStep, Traffic
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, at_least, format_bytes, format_rate, format_time

K = TypeVar("K", bound=Hashable)

Labelled: TypeAlias = tuple[str, Traffic]
"""A row of traffic with the label of its group."""

_EVIDENCE = {None: UNKNOWN, "metadata": "meta", "cpu_record": "cpu", "kernel_name": "name", "position": "place"}
_EVIDENCE_AT = 4
_PHASES = {None: UNKNOWN, "forward": "fwd", "backward": "bwd", "optimizer": "opt", "mixed": "mix"}

# How many rows a table may have before the rest is counted instead of shown.
_MOST_ROWS, _MOST_CLASSES, _MOST_KERNELS = 40, 4, 8

_COLUMNS = [
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
_KERNEL_COLUMNS = [
    Column("kernel", is_name=True),
    Column("does", is_name=True),
    Column("ranks", is_name=True),
    Column("kernels/step"),
    Column("began before"),
    Column("busy"),
    Column("exposed"),
]
_EVIDENCE_COLUMNS = [
    Column("ranks", is_name=True),
    Column("group", is_name=True),
    Column("primitive", is_name=True),
    Column("evidence", is_name=True),
    Column("steps"),
    Column("sized"),
    Column("timed"),
    Column("kernels"),
    Column("unlinked"),
    Column("algbw"),
]


def traffic_tables(labelled: Sequence[Labelled], *, every_row: bool) -> list[Line]:
    """A table per class of ranks where there are few; else what the classes do alike, averaged."""
    sized = [(label, row) for label, row in labelled if not _is_unsized(row)]
    classes = _by(sized, lambda _, row: row.ranks)
    if len(classes) > _MOST_CLASSES and not every_row:
        return _average_table(sized, len(classes))
    shown = _heaviest(sized, limit(_MOST_ROWS, every_row=every_row))
    lines = []
    for ranks, members in _by(shown, lambda _, row: row.ranks).items():
        lines += [Line(""), *_table(f"Traffic per step of {_who(ranks)}", members)]
    return [*lines[1:], *left_out(len(sized) - len(shown), "traffic row")]


def _table(title: str, labelled: Sequence[Labelled]) -> list[Line]:
    """A table of traffic, with a column for the evidence where it differs between the rows."""
    columns, rows = list(_COLUMNS), [_cells(label, row) for label, row in labelled]
    if len({row.evidence for _, row in labelled}) > 1:
        columns.insert(_EVIDENCE_AT, Column("from", is_name=True))
        for cells, (_, row) in zip(rows, labelled, strict=True):
            cells.insert(_EVIDENCE_AT, _EVIDENCE[row.evidence])
    return titled_table(title, columns, rows)


def _average_table(labelled: Sequence[Labelled], classes: int) -> list[Line]:
    alike = _by(labelled, lambda label, row: (label, row.primitive, row.dtype, row.phase))
    averages = [(kin[0][0], average([row for _, row in kin])) for kin in alike.values()]
    averages.sort(key=_weight, reverse=True)
    rows = [[*_cells(label, row), f"{len(row.ranks):,}"] for label, row in averages[:_MOST_ROWS]]
    title = f"Traffic per step, mean over the ranks ({classes:,} classes of ranks differ; --per-rank: each)"
    table = titled_table(title, [*_COLUMNS, Column("ranks")], rows)
    return [*table, *left_out(len(averages) - len(rows), "traffic row")]


def _cells(label: str, row: Traffic) -> list[str]:
    return [
        label,
        str(row.primitive),
        row.dtype or UNKNOWN,
        _PHASES[row.phase],
        format_calls(row.calls_per_step),
        at_least(format_bytes(row.payload_bytes_per_step), partial=row.lacks_payload),
        at_least(format_bytes(row.wire_bytes_per_step), partial=row.lacks_bytes),
        _format_busy(row),
        at_least(format_time(row.exposed_ns_per_step), partial=row.lacks_time),
        format_rate(row.busbw_bytes_per_s),
    ]


def _format_busy(row: Traffic) -> str:
    """The busy time; `shared` where the kernels carry other calls too, and their time stands there."""
    if row.busy_ns_per_step is None and row.calls_with_time:
        return "shared"
    return at_least(format_time(row.busy_ns_per_step), partial=row.lacks_time)


def format_calls(calls: CallsPerStep) -> str:
    """Calls per step: `12` when every step has as many, `8-20` when not."""
    return str(calls.min) if calls.min == calls.max else f"{calls.min}-{calls.max}"


def evidence_table(labelled: Sequence[Labelled]) -> list[Line]:
    """What each row of traffic rests on."""
    if not labelled:
        return []
    rows = [
        [
            _short_ranks(row),
            label,
            str(row.primitive),
            str(row.evidence or UNKNOWN),
            str(row.steps_used),
            _or_unknown(row.calls_with_bytes),
            _or_unknown(row.calls_with_time),
            f"{row.kernels_per_step:g}",
            str(row.unlinked_kernels),
            format_rate(row.algbw_bytes_per_s),
        ]
        for label, row in labelled
    ]
    title = "What the traffic rests on: steps used, calls with bytes and with time, kernels a step, algbw"
    return titled_table(title, _EVIDENCE_COLUMNS, rows)


def unsized_table(labelled: Sequence[Labelled], *, every_row: bool) -> list[Line]:
    """Communication kernels whose bytes nobody knows, by time."""
    unsized = [(label, row) for label, row in labelled if _is_unsized(row)]
    if not unsized:
        return []
    shown = _heaviest(unsized, limit(_MOST_KERNELS, every_row=every_row))
    rows = [
        [
            row.kernel or UNKNOWN,
            str(row.primitive),
            _short_ranks(row),
            f"{row.kernels_per_step:g}",
            str(row.unlinked_kernels),
            format_time(row.busy_ns_per_step),
            format_time(row.exposed_ns_per_step),
        ]
        for _, row in shown
    ]
    table = titled_table("Communication kernels without bytes", _KERNEL_COLUMNS, rows)
    return [*table, *left_out(len(unsized) - len(shown), "kind")]


def _is_unsized(row: Traffic) -> bool:
    return row.kernel is not None and row.payload_bytes_per_step is None


def _by(labelled: Iterable[Labelled], key: Callable[[str, Traffic], K]) -> dict[K, list[Labelled]]:
    sets: dict[K, list[Labelled]] = {}
    for label, row in labelled:
        sets.setdefault(key(label, row), []).append((label, row))
    return sets


def _heaviest(labelled: Sequence[Labelled], most: int | None) -> list[Labelled]:
    """The rows that take the most time and bytes, in the order of the document."""
    order = sorted(range(len(labelled)), key=lambda index: _weight(labelled[index]), reverse=True)
    return [labelled[index] for index in sorted(order[:most])]


def _weight(labelled: Labelled) -> tuple[int, int]:
    row = labelled[1]
    return (row.busy_ns_per_step or 0, row.wire_bytes_per_step or 0)


def _short_ranks(row: Traffic) -> str:
    return format_ranks(row.ranks) or UNKNOWN


def _who(ranks: Sequence[int]) -> str:
    if not ranks:
        return "a rank that the trace does not name"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {format_ranks(ranks)}"


def _or_unknown(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)
