"""The configuration behind the traffic: one line that can be pasted, then a row per field."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tracelens.inferred import Inference, InferredConfig
from tracelens.report.lines import PLAIN, TITLE, Line, note, remark, titled_table
from tracelens.report.table import WIDTH, Column, printable
from tracelens.units import UNKNOWN, plural

_COLUMNS = [
    Column("field", is_name=True),
    Column("value", is_name=True),
    Column("confidence"),
    Column("decisive evidence", is_name=True),
]
_FOLLOWS = frozenset({"param_shard_degree", "grad_shard_degree", "optim_shard_degree", "world_size"})
"""Fields that follow from others: shown with --explain."""
_LEAST_EVIDENCE = 30
_MOST_CHOICES = 8
_BETWEEN = 8
"""Indent and gaps of the table."""


def inference_lines(inference: Inference | None, *, explain: bool = False) -> list[Line]:
    """The section of the report; [] without an inference.

    Args:
        inference: what was worked out.
        explain: every field with all that speaks for and against it.
    """
    if inference is None:
        return []
    title = f"Layout, worked out from the traffic ({inference.workload}, {inference.status})"
    lines = [Line(title, TITLE)]
    if inference.launcher_line:
        lines += _wrapped(inference.launcher_line)
    rows = _rows(inference, explain=explain)
    if not rows and not inference.undetermined:
        lines += remark("nothing can be said of it: no call tells what the ranks share")
    if rows:
        lines += titled_table(_counted(inference), _COLUMNS, rows)
    for name, left in inference.undetermined.items():
        lines += note(f"{name} is open: {_choices(left)}{_doubt(inference, name)}")
    lines += [line for text in inference.would_decide for line in note(f"would decide: {text}", style=PLAIN)]
    if explain:
        lines += _evidence(inference)
        lines += _primitives(inference)
    return lines


def _counted(inference: Inference) -> str:
    return (
        f"{plural(inference.constraints_checked, 'constraint holds', 'constraints hold')}, "
        f"{plural(inference.free_parameters, 'unknown was', 'unknowns were')} solved for"
        if inference.free_parameters
        else "Fields"
    )


def _rows(inference: Inference, *, explain: bool) -> list[list[str]]:
    because = {entry.field: entry.supports for entry in inference.evidence}
    rows = []
    for name in InferredConfig.__struct_fields__:
        value = getattr(inference.config, name)
        if value is None or (not explain and (name in _FOLLOWS or _says_little(name, value))):
            continue
        reason = (because.get(name) or ("",))[0]
        rows.append([name, _word(value), f"{inference.confidence.get(name, 0):.2f}", printable(reason)])
    return _fitted(rows)


def _fitted(rows: list[list[str]]) -> list[list[str]]:
    """Evidence cut at its end to what the other columns leave: it begins with what matters."""
    titles = [column.title for column in _COLUMNS]
    taken = sum(max(len(row[index]) for row in (titles, *rows)) for index in range(3))
    room = max(_LEAST_EVIDENCE, WIDTH - _BETWEEN - taken)
    return [[*row[:3], row[3] if len(row[3]) <= room else row[3][: room - 1].rstrip() + "…"] for row in rows]


def _says_little(name: str, value: Any) -> bool:
    """Ones and noes of axes that are not there."""
    return name not in ("tp", "pp", "dp", "sharding") and value is not True and value in (1, "none", False)


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _choices(values: Sequence[Any]) -> str:
    if len(values) > _MOST_CHOICES:
        return f"one of {len(values)} values from {_word(values[0])} to {_word(values[-1])}"
    return " or ".join(_word(value) for value in values)


def _doubt(inference: Inference, name: str) -> str:
    entry = next((entry for entry in inference.evidence if entry.field == name), None)
    return f" ({entry.against[0]})" if entry is not None and entry.against else ""


def _evidence(inference: Inference) -> list[Line]:
    lines = [Line("Evidence", TITLE)]
    for entry in inference.evidence:
        lines += [line for text in entry.supports for line in note(f"{entry.field}: {text}", style=PLAIN)]
        lines += [line for text in entry.against for line in note(f"{entry.field}, against: {text}")]
    return lines


def _primitives(inference: Inference) -> list[Line]:
    if not inference.primitives:
        return []
    columns = [Column("primitive", is_name=True), Column("bytes"), Column("time"), Column("points at", is_name=True)]
    rows = [
        [str(share.primitive), _percent(share.wire_bytes_pct), _percent(share.busy_pct), share.points_at]
        for share in inference.primitives
    ]
    return titled_table("What each primitive points at", columns, rows)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1f} %"


def _wrapped(text: str) -> list[Line]:
    return [
        Line(line)
        for line in textwrap.wrap(
            text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
        )
    ]
