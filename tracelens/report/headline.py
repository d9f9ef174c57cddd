"""The ten lines that open a report: the run, the step, the groups, and what the numbers rest on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracelens.report.document import Document
from tracelens.report.families import Family, Totals, label_rows, total
from tracelens.report.lines import plural
from tracelens.report.table import WIDTH, Column, lay_out, printable
from tracelens.results import Run, StepTime, Traffic
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_bytes, format_percent, format_time

_LABEL = 10
_GROUP_LINES = 4


def headline(document: Document, families: Sequence[Family]) -> list[str]:
    """About ten lines that can be pasted in a chat on their own."""
    return [
        *_labelled("run", _run(document.run)),
        *_labelled("step" if _has_steps(document.time) else "window", _budget(document.time)),
        *_labelled("", _spread(document)),
        *_groups(document.traffic, families),
        *_labelled("coverage", _coverage(document.run)),
        *_labelled("notes", _notes(document)),
    ]


def _labelled(label: str, text: str) -> list[str]:
    if not text:
        return []
    indent = " " * _LABEL
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=label.ljust(_LABEL),
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _run(run: Run) -> str:
    size = sum(file.bytes for file in run.files)
    events = sum(file.events for file in run.files)
    parts = [
        _ranks(run),
        f"{plural(len(run.files), 'file')} ({format_bytes(size)}, {plural(events, 'event')})",
        run.backend or "backend ?",
        " and ".join(run.devices) or "GPU ?",
    ]
    if run.gpus_per_node is not None:
        parts.append(f"{plural(run.gpus_per_node, 'GPU')} a node")
    return ", ".join(parts)


def _ranks(run: Run) -> str:
    world = UNKNOWN if run.world_size is None else str(run.world_size)
    if not run.ranks:
        return f"rank {UNKNOWN} of {world}"
    if len(run.ranks) == run.world_size:
        return f"all {plural(len(run.ranks), 'rank')}"
    word = "rank" if len(run.ranks) == 1 else "ranks"
    return f"{word} {format_ranks(run.ranks)} of {world}"


def _has_steps(time: Sequence[StepTime]) -> bool:
    return any(row.step is not None for row in time)


def _steps(time: Sequence[StepTime]) -> str:
    steps = sorted({row.step for row in time if row.step is not None})
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {format_ranks(steps)}"


def _budget(time: Sequence[StepTime]) -> str:
    if not time:
        return "no time on a GPU in this trace"
    parts = {
        "compute": mean([row.compute_ns for row in time]),
        "exposed comm": mean([row.exposed_comm_ns for row in time]),
        "exposed memory": mean([row.exposed_memory_ns for row in time]),
        "idle": mean([row.idle_ns for row in time]),
    }
    terms = " + ".join(f"{format_time(value)} {name}" for name, value in parts.items())
    return f"{format_time(sum(parts.values()))} = {terms}"


def _spread(document: Document) -> str:
    """Over what the budget is a mean, how far its rows lie apart, and how much communication is hidden."""
    time = document.time
    if not time:
        return ""
    spans = [row.span_ns for row in time]
    ranks = len({row.rank for row in time})
    over = _steps(time) if _has_steps(time) else "the whole recording"
    text = f"mean of {over} on {plural(ranks, 'rank')}"
    if len(spans) > 1:
        text += f", {format_time(min(spans))} to {format_time(max(spans))}"
    comm = sum(row.comm_ns for row in time)
    if comm:
        hidden = sum(row.overlap_ns for row in time) / comm
        text += f"; comm {format_time(comm / len(time))}, {format_percent(hidden)} under compute"
    return text


def _groups(traffic: Sequence[Traffic], families: Sequence[Family]) -> list[str]:
    if not traffic:
        return _labelled("groups", "no communication in this trace")
    owned: dict[str, list[Traffic]] = {}
    for label, row in label_rows(traffic, families):
        owned.setdefault(label, []).append(row)
    ordered = sorted(owned.items(), key=lambda item: _weight(item[1]))
    shown = ordered[:_GROUP_LINES]
    columns = [
        Column("groups", is_name=True),
        Column("size"),
        Column("primitives", is_name=True),
        Column("sent/rank/step"),
        Column("busy"),
        Column("exposed"),
    ]
    sizes = {family.label: _size(family) for family in families}
    lines = lay_out(columns, [_group_cells(label, sizes, rows) for label, rows in shown], indent=0)
    if len(ordered) > len(shown):
        rest = total([row for _, rows in ordered[_GROUP_LINES:] for row in rows])
        count = plural(len(ordered) - len(shown), "more kind")
        lines.append(f"and {count} of group with {_time(rest, rest.exposed_ns)} exposed, in the tables below")
    return lines


def _group_cells(label: str, sizes: dict[str, str], rows: Sequence[Traffic]) -> list[str]:
    sums = total(rows)
    primitives = ", ".join(dict.fromkeys(str(row.primitive) for row in rows))
    wire = ("≥ " if sums.has_unsized and sums.wire_bytes is not None else "") + format_bytes(sums.wire_bytes)
    return [
        label,
        sizes.get(label, UNKNOWN),
        primitives,
        wire,
        _time(sums, sums.busy_ns),
        _time(sums, sums.exposed_ns),
    ]


def _time(sums: Totals, value: float | None) -> str:
    return ("≥ " if sums.has_untimed and value is not None else "") + format_time(value)


def _size(family: Family) -> str:
    size = family.groups[0].size
    text = UNKNOWN if size is None else str(size)
    return text if len(family.groups) == 1 else f"{len(family.groups)} × {text}"


def _weight(rows: Sequence[Traffic]) -> tuple[float, float]:
    sums = total(rows)
    return (-(sums.exposed_ns or 0), -(sums.wire_bytes or 0))


def _coverage(run: Run) -> str:
    coverage = run.coverage
    text = (
        f"bytes from {plural(coverage.calls, 'call')}, time from {coverage.calls_with_kernel:,}; "
        f"{coverage.kernels_with_call:,} of {plural(coverage.kernels, 'comm kernel')} have a call"
    )
    if coverage.unsized_kernels:
        text += f", {coverage.unsized_kernels} without bytes"
    return text


def _notes(document: Document) -> str:
    run = document.run
    counts = {
        "finding": len(document.findings),
        "problem": len(run.problems),
        "skipped file": len(run.skipped),
    }
    told = [plural(count, word) for word, count in counts.items() if count]
    return f"{', '.join(told)}: see below" if told else ""


def mean(values: Sequence[int]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)
