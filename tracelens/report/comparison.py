"""The comparison for a terminal: what is explained, what is not and why, and what changed between runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from tracelens.compared import (
    Comparison,
    ComparisonRow,
    ExampleCall,
    MetricChange,
    RunComparison,
    RunRow,
    TimeVerdict,
    Verdict,
)
from tracelens.report.lines import TITLE, Line, left_out, limit, note, remark, titled_table
from tracelens.report.table import Column
from tracelens.topology import format_mesh, format_ranks
from tracelens.units import UNKNOWN, at_least, format_bytes, format_time, plural

_MOST_DIFFERENCES, _MOST_MATCHES, _MOST_CHANGES = 12, 16, 16
_TIME_WORDS = {
    TimeVerdict.same: "same",
    TimeVerdict.slower: "slower",
    TimeVerdict.faster: "faster",
    TimeVerdict.within_spread: "within spread",
    TimeVerdict.not_enough_data: "too few steps",
    TimeVerdict.not_comparable: "other ranks",
}


def comparison_lines(comparison: Comparison | RunComparison | None, *, every_row: bool) -> list[Line]:
    """The sections of a comparison; nothing where there is none."""
    if comparison is None:
        return []
    if isinstance(comparison, Comparison):
        return _against_ledger(comparison, every_row=every_row)
    return _against_run(comparison, every_row=every_row)


# --- predicted against measured ---------------------------------------------------------------------------


def _against_ledger(comparison: Comparison, *, every_row: bool) -> list[Line]:
    lines = [Line("Predicted against measured", TITLE), *_fractions(comparison)]
    told = (
        f"model {comparison.model or UNKNOWN} ({comparison.sizes_from})",
        f"layout {comparison.layout or UNKNOWN} ({comparison.layout_from})",
        *comparison.assumptions,
    )
    for text in told:
        lines += remark(text)
    merged = merge_rows(comparison.rows)
    different = [rows for rows in merged if rows[0].verdict is not Verdict.match]
    alike = [rows for rows in merged if rows[0].verdict is Verdict.match]
    if different:
        lines += [Line(""), *_differences(different, every_row=every_row)]
    if alike:
        lines += [Line(""), *_matches(alike, every_row=every_row)]
    return lines


def _fractions(comparison: Comparison) -> list[Line]:
    measured = sum((row.measured_bytes or 0) * max(1, len(row.ranks)) for row in comparison.rows)
    return remark(
        f"explained {percent_down(comparison.explained_bytes_fraction)} of {format_bytes(measured)} measured; "
        f"absent {percent_up(comparison.absent_bytes_fraction)} of predicted; "
        f"unsized {percent_up(comparison.unsized_time_fraction)} of time"
    )


def percent_down(fraction: float | None) -> str:
    """Percent with two decimals, never rounded up: `99.99 %` where a byte is missing."""
    return UNKNOWN if fraction is None else f"{floor(fraction * 10_000 + 1e-9) / 100:.2f} %"


def percent_up(fraction: float | None) -> str:
    """Percent with two decimals, never rounded down to nothing: `< 0.01 %` where there is a little."""
    if fraction is None:
        return UNKNOWN
    return "< 0.01 %" if 0 < fraction < 1e-4 else f"{fraction * 100:.2f} %"


def merge_rows(rows: Sequence[ComparisonRow]) -> list[list[ComparisonRow]]:
    """Rows of classes and stages that say the same, in their order."""
    found: dict[tuple[object, ...], list[ComparisonRow]] = {}
    for row in rows:
        key = (row.verdict, row.axis, row.mesh, row.primitive, row.dtype, row.phase, row.term, row.why,
               row.predicted_calls, row.measured_calls, row.predicted_bytes, row.measured_bytes)  # fmt: skip
        found.setdefault(key, []).append(row)
    return list(found.values())


def _differences(merged: Sequence[list[ComparisonRow]], *, every_row: bool) -> list[Line]:
    shown = merged[: limit(_MOST_DIFFERENCES, every_row=every_row)]
    columns = [
        Column("verdict", is_name=True),
        *_CALL_COLUMNS,
        Column("calls"),
        Column("predicted"),
        Column("bytes"),
        Column("predicted"),
        Column("ratio"),
    ]
    table = titled_table(
        f"Unexplained, the largest first ({plural(len(merged), 'row')})",
        columns,
        [_difference_cells(rows) for rows in shown],
    )
    head, body = table[:2], table[2:]
    lines = list(head)
    for line, rows in zip(body, shown, strict=True):
        lines.append(line)
        lines += remark(f"why: {rows[0].why or UNKNOWN}", indent=6)
        example = next((row.example for row in rows if row.example), None)
        if example is not None:
            lines += remark(f"look at {_told(example)}", indent=6)
    return [*lines, *left_out(len(merged) - len(shown), "row")]


_CALL_COLUMNS = [
    Column("axis", is_name=True),
    Column("primitive", is_name=True),
    Column("dtype", is_name=True),
    Column("phase", is_name=True),
    Column("stage"),
]


def _call_cells(rows: Sequence[ComparisonRow]) -> list[str]:
    row = rows[0]
    where = format_mesh(row.mesh) if row.mesh else "group of one" if row.mesh is not None else UNKNOWN
    stages = sorted({other.stage for other in rows if other.stage is not None})
    return [
        str(row.axis) if row.axis is not None else where,
        row.primitive.value,
        row.dtype or UNKNOWN,
        UNKNOWN if row.phase is None else row.phase.value,
        format_ranks(stages) if stages else "",
    ]


def _difference_cells(rows: Sequence[ComparisonRow]) -> list[str]:
    row = rows[0]
    return [
        row.verdict.value,
        *_call_cells(rows),
        _count(row.measured_calls),
        _count(row.predicted_calls),
        "none" if row.measured_calls is None else format_measured(row),
        "none" if row.predicted_calls is None else format_bytes(row.predicted_bytes),
        "" if row.ratio is None else f"{row.ratio:.3g}",
    ]


def _matches(merged: Sequence[list[ComparisonRow]], *, every_row: bool) -> list[Line]:
    shown = merged[: limit(_MOST_MATCHES, every_row=every_row)]
    columns = [
        *_CALL_COLUMNS,
        Column("calls"),
        Column("bytes"),
        Column("hides"),
        Column("hidden"),
        Column("terms", is_name=True),
    ]
    rows = [
        [
            *_call_cells(alike),
            _count(alike[0].measured_calls),
            format_measured(alike[0]),
            alike[0].predicted_overlap or UNKNOWN,
            _hidden(alike),
            alike[0].term or "",
        ]
        for alike in shown
    ]
    title = f"As predicted, per rank and step ({plural(len(merged), 'row')})"
    return [*titled_table(title, columns, rows), *left_out(len(merged) - len(shown), "row")]


def format_measured(row: ComparisonRow) -> str:
    """The bytes that were measured; a lower bound where calls are without."""
    return at_least(format_bytes(row.measured_bytes), partial=row.lacks_bytes)


def _hidden(rows: Sequence[ComparisonRow]) -> str:
    known = [row.measured_overlap_pct for row in rows if row.measured_overlap_pct is not None]
    return f"{sum(known) / len(known):.0f} %" if known else UNKNOWN


def _count(calls: float | None) -> str:
    return "none" if calls is None else f"{calls:.6g}"


def _told(example: ExampleCall) -> str:
    parts = [
        f"rank {UNKNOWN if example.rank is None else example.rank}",
        f"step {UNKNOWN if example.step is None else example.step}",
        "" if example.seconds is None else f"{example.seconds:.6f} s after the trace begins",
        f"process group {example.name or UNKNOWN}",
        f"{format_bytes(example.payload_bytes)} payload",
        f"in {example.label}" if example.label else "",
    ]
    return ", ".join(part for part in parts if part)


# --- run against run --------------------------------------------------------------------------------------


def _against_run(comparison: RunComparison, *, every_row: bool) -> list[Line]:
    title = f"{comparison.candidate} against {comparison.base}"
    lines = [Line("Run against run", TITLE), *remark(title)]
    lines.append(
        Line(
            f"  unchanged {percent_down(comparison.explained_bytes_fraction)} of the {what_is_compared(comparison)}; "
            f"gone {percent_up(comparison.absent_bytes_fraction)} of the base's"
        )
    )
    for text in comparison.notes:
        lines += note(text)
    lines += [Line(""), *_metrics(comparison.metrics)]
    totals = [row for row in comparison.rows if row.from_bytes is None]
    if totals:
        lines += [Line(""), *_changes(", per rank and step", totals, every_row=every_row)]
    moved = [row for row in comparison.rows if row.from_bytes is not None and _is_changed(row)]
    if moved:
        lines += [Line(""), *_changes(" that changed, by size", moved, every_row=every_row)]
    return lines


def what_is_compared(comparison: Comparison | RunComparison) -> str:
    """`bytes`, or `bytes that are known` where calls are without."""
    if isinstance(comparison, Comparison):
        partial = any(row.lacks_bytes for row in comparison.rows)
    else:
        partial = any(row.base_lacks_bytes or row.candidate_lacks_bytes for row in comparison.rows)
    return "bytes that are known" if partial else "bytes"


def _is_changed(row: RunRow) -> bool:
    return row.verdict is not Verdict.match or row.time_verdict in (TimeVerdict.slower, TimeVerdict.faster)


def _metrics(metrics: Sequence[MetricChange]) -> list[Line]:
    columns = [
        Column("per step", is_name=True),
        Column("base"),
        Column("candidate"),
        Column("change"),
        Column("spread"),
        Column("steps"),
        Column("verdict", is_name=True),
    ]
    rows = [
        [
            metric.name.replace("_", " "),
            format_time(metric.base),
            format_time(metric.candidate),
            _change(metric.change),
            format_time(metric.spread),
            f"{metric.base_steps}, {metric.candidate_steps}",
            _TIME_WORDS[metric.verdict],
        ]
        for metric in metrics
    ]
    return titled_table("Time of a step (spread: three standard errors)", columns, rows)


def _changes(title: str, rows: Sequence[RunRow], *, every_row: bool) -> list[Line]:
    """Calls and bytes in one table, times in the next: pairs of all four would not fit a line."""
    shown = rows[: limit(_MOST_CHANGES, every_row=every_row)]
    columns = [
        Column("group", is_name=True),
        Column("primitive", is_name=True),
        Column("dtype", is_name=True),
        Column("size"),
    ]
    kinds = [
        [
            row.group,
            row.primitive.value,
            row.dtype or UNKNOWN,
            "all" if row.from_bytes is None else f"≥ {format_bytes(row.from_bytes)}",
        ]
        for row in shown
    ]
    sent = [
        [
            _pair(_calls(row.base_calls), _calls(row.candidate_calls)),
            _pair(
                at_least(format_bytes(row.base_bytes), partial=row.base_lacks_bytes),
                at_least(format_bytes(row.candidate_bytes), partial=row.candidate_lacks_bytes),
            ),
            word_of_bytes(row),
        ]
        for row in shown
    ]
    spent = [
        [
            _times(row, row.base_busy_ns, row.candidate_busy_ns),
            _times(row, row.base_exposed_ns, row.candidate_exposed_ns),
            _TIME_WORDS[row.time_verdict],
        ]
        for row in shown
    ]
    tables = (
        (f"Calls and bytes{title}", (Column("calls"), Column("bytes"), Column("bytes are")), sent),
        (f"Time of calls{title}", (Column("busy"), Column("exposed"), Column("busy is")), spent),
    )
    lines: list[Line] = []
    for name, more, cells in tables:
        table = titled_table(name, [*columns, *more], [[*kind, *cell] for kind, cell in zip(kinds, cells, strict=True)])
        lines += [*([Line("")] if lines else []), *table, *left_out(len(rows) - len(shown), "row")]
    return lines


def _calls(calls: float | None) -> str:
    return UNKNOWN if calls is None else f"{calls:.6g}"


def word_of_bytes(row: RunRow) -> str:
    """What became of calls and bytes; `?` where nothing differs in what is known, and not all is."""
    if row.verdict is Verdict.match and (row.base_lacks_bytes or row.candidate_lacks_bytes):
        return UNKNOWN
    words = {Verdict.match: "same", Verdict.absent: "gone", Verdict.unpredicted: "new"}
    return words.get(row.verdict, str(row.verdict))


def _times(row: RunRow, base: float | None, candidate: float | None) -> str:
    return _pair(
        at_least(format_time(base), partial=row.base_lacks_time),
        at_least(format_time(candidate), partial=row.candidate_lacks_time),
    )


def _pair(base: str, candidate: str) -> str:
    return base if base == candidate else f"{base} → {candidate}"


def _change(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:+.1f} %"
