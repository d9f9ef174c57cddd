"""The limits of a policy as rows: those that are not kept first, then those that are, with room before exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracelens.report.lines import Line, left_out, limit, titled_table
from tracelens.report.sections import Table, name, table_of, text_columns
from tracelens.report.table import Column
from tracelens.results import Limit, LimitVerdict
from tracelens.units import UNKNOWN, format_bytes, format_percent, format_time

_MOST_LIMITS = 12
_ORDER: tuple[LimitVerdict, ...] = ("broken", "exceeded", "not_checked", "kept")


def limits_table(limits: Sequence[Limit]) -> Table | None:
    """All limits of a policy, for a page; None where nothing was checked."""
    rows = [[name(text) for text in _row(one)] for one in _ordered(limits)]
    return table_of(_title(limits), text_columns("limit", "measured", "allowed", "verdict"), rows)


def limit_lines(limits: Sequence[Limit], *, every_row: bool) -> list[Line]:
    """All limits of a policy, for a terminal."""
    if not limits:
        return []
    rows = [_row(one) for one in _ordered(limits)]
    shown = rows[: limit(_MOST_LIMITS, every_row=every_row)]
    columns = [Column("limit", is_name=True), Column("measured"), Column("allowed"), Column("verdict", is_name=True)]
    return [*titled_table(_title(limits), columns, shown), *left_out(len(rows) - len(shown), "limit")]


def describe_limit(one: Limit) -> str:
    """A limit in one line: `limits.idle_fraction: 3.1 %, at most 10 %`."""
    _, measured, allowed, _ = _row(one)
    return f"{one.name}: {measured}, {allowed}"


def _ordered(limits: Sequence[Limit]) -> list[Limit]:
    return sorted(limits, key=lambda one: (_ORDER.index(one.verdict), one.bound == "exactly"))


def _title(limits: Sequence[Limit]) -> str:
    counts = Counter(one.verdict for one in limits)
    return f"Limits ({', '.join(f'{counts[one]} {_word(one)}' for one in reversed(_ORDER) if counts[one])})"


def _row(one: Limit) -> list[str]:
    return [one.name, _value(one.measured, one.unit), f"{one.bound} {_value(one.limit, one.unit)}", _word(one.verdict)]


def _word(verdict: str) -> str:
    return verdict.replace("_", " ")


def _value(value: float | str | None, unit: str | None) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    match unit:
        case "bytes":
            return format_bytes(value)
        case "ns":
            return format_time(value)
        case "fraction":
            return format_percent(value)
        case "percent":
            return format_percent(value / 100)
        case _:
            return f"{value:.6g}"
