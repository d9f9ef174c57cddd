"""The tables of a comparison: predicted against measured, or run against run."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.compared import Comparison, ComparisonRow, ExampleCall, RunComparison, RunRow, Verdict
from tracelens.report.comparison import format_measured, merge_rows, word_of_bytes
from tracelens.report.sections import Cell, Table, count, name, number_columns, size, table_of, text_columns, time
from tracelens.topology import format_mesh, format_ranks
from tracelens.units import UNKNOWN, format_bytes, noun

_NOTHING = Cell("–")


def comparison_table(comparison: Comparison) -> Table | None:
    """Every kind of call, predicted beside measured; what differs first."""
    columns = [
        *text_columns("verdict", "axis", "primitive", "dtype", "phase"),
        *number_columns("calls predicted", "calls measured", "sent predicted", "sent measured", "ratio"),
        *text_columns("hides", "hidden", "stages", "terms", "why"),
    ]
    return table_of("Predicted against measured, per rank and step", columns, _compared(comparison.rows))


def _compared(rows: Sequence[ComparisonRow]) -> list[list[Cell]]:
    return [_compared_cells(alike) for alike in merge_rows(rows)]


def _compared_cells(alike: Sequence[ComparisonRow]) -> list[Cell]:
    row = alike[0]
    stages = sorted({other.stage for other in alike if other.stage is not None})
    hidden = [other.measured_overlap_pct for other in alike if other.measured_overlap_pct is not None]
    percent = sum(hidden) / len(hidden) if hidden else None
    return [
        name(row.verdict),
        name(format_place(row)),
        name(row.primitive),
        name(row.dtype),
        name(row.phase),
        _NOTHING if row.predicted_calls is None else count(row.predicted_calls),
        _NOTHING if row.measured_calls is None else count(row.measured_calls),
        _NOTHING if row.predicted_calls is None else size(row.predicted_bytes),
        _NOTHING if row.measured_calls is None else size(row.measured_bytes, partial=row.lacks_bytes),
        _NOTHING if row.ratio is None else Cell(f"{row.ratio:.3g}", row.ratio),
        name(row.predicted_overlap),
        Cell(UNKNOWN if percent is None else f"{percent:.0f} %", percent),
        Cell(format_ranks(stages)),
        Cell(row.term or ""),
        Cell(row.why or ""),
    ]


def format_place(row: ComparisonRow) -> str:
    """The axis of a row, else its mesh."""
    if row.axis is not None:
        return str(row.axis)
    if row.mesh is None:
        return UNKNOWN
    return format_mesh(row.mesh) if row.mesh else "group of one"


def format_example(example: ExampleCall) -> str:
    """Where to look a call up in the trace."""
    parts = [
        "" if example.rank is None else f"rank {example.rank}",
        "" if example.step is None else f"step {example.step}",
        "" if example.seconds is None else f"{example.seconds:.6f} s after the trace begins",
        "" if example.name is None else f"process group {example.name}",
        "" if example.payload_bytes is None else f"{format_bytes(example.payload_bytes)} payload",
        f"in {example.label}" if example.label else "",
    ]
    return "look at " + ", ".join(part for part in parts if part)


def describe_row(row: ComparisonRow) -> str:
    """One row in a sentence: where, and what was predicted and measured."""
    parts = (format_place(row), row.primitive, row.dtype, row.phase)
    where = " ".join(str(part) for part in parts if part)
    predicted = (
        "nothing" if row.predicted_calls is None else _calls(row.predicted_calls, format_bytes(row.predicted_bytes))
    )
    measured = "nothing" if row.measured_calls is None else _calls(row.measured_calls, format_measured(row))
    return f"{where}: {row.verdict}, {predicted} predicted and {measured} measured"


def describe_difference(row: ComparisonRow) -> str:
    """The same, and why."""
    return f"{describe_row(row)}; {row.why}" if row.why else describe_row(row)


def _calls(calls: float, sent: str) -> str:
    return f"{calls:.6g} {noun(calls, 'call')} with {sent}"


def differences(comparison: Comparison) -> list[ComparisonRow]:
    """One row for each difference, the largest first."""
    return [alike[0] for alike in merge_rows(comparison.rows) if alike[0].verdict is not Verdict.match]


# --- run against run --------------------------------------------------------------------------------------


def metrics_table(comparison: RunComparison) -> Table | None:
    """The parts of a step in two runs."""
    columns = [
        *text_columns("per step"),
        *number_columns("base", "candidate", "change", "spread", "steps"),
        *text_columns("verdict"),
    ]
    rows = [
        [
            name(metric.name.replace("_", " ")),
            time(metric.base),
            time(metric.candidate),
            Cell(UNKNOWN if metric.change is None else f"{metric.change * 100:+.1f} %", metric.change),
            time(metric.spread),
            Cell(f"{metric.base_steps}, {metric.candidate_steps}"),
            name(metric.verdict.replace("_", " ")),
        ]
        for metric in comparison.metrics
    ]
    return table_of("Time of a step in two runs", columns, rows, note="Spread: three standard errors.")


def runs_table(comparison: RunComparison) -> Table | None:
    """Calls, bytes and times of both runs, per rank and step."""
    columns = [
        *text_columns("group", "primitive", "dtype"),
        *number_columns("payload of a call", "calls", "sent", "busy", "exposed"),
        *text_columns("bytes are", "time is", "why"),
    ]
    rows = [_run_cells(row) for row in comparison.rows]
    return table_of("Calls, bytes and times in two runs (base → candidate)", columns, rows)


def _run_cells(row: RunRow) -> list[Cell]:
    return [
        name(row.group),
        name(row.primitive),
        name(row.dtype),
        Cell("all" if row.from_bytes is None else f"≥ {format_bytes(row.from_bytes)}", row.from_bytes),
        _pair(count(row.base_calls), count(row.candidate_calls)),
        _pair(
            size(row.base_bytes, partial=row.base_lacks_bytes),
            size(row.candidate_bytes, partial=row.candidate_lacks_bytes),
        ),
        _times(row, row.base_busy_ns, row.candidate_busy_ns),
        _times(row, row.base_exposed_ns, row.candidate_exposed_ns),
        Cell(word_of_bytes(row)),
        name(row.time_verdict.replace("_", " ")),
        Cell(row.why or ""),
    ]


def _times(row: RunRow, base: float | None, candidate: float | None) -> Cell:
    return _pair(time(base, partial=row.base_lacks_time), time(candidate, partial=row.candidate_lacks_time))


def _pair(base: Cell, candidate: Cell) -> Cell:
    text = base.text if base.text == candidate.text else f"{base.text} → {candidate.text}"
    return Cell(text, candidate.sort)
