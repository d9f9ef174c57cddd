"""The ten lines that open a report: the run, the step, the groups, and what the numbers rest on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracelens.report.document import Document
from tracelens.report.families import Family, Totals, total_families
from tracelens.report.table import WIDTH, Column, lay_out, printable
from tracelens.results import Run, StepTime
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, at_least, format_bytes, format_percent, format_time, plural

_LABEL = 10
_GROUP_LINES = 4


def headline(document: Document, families: Sequence[Family]) -> list[str]:
    """About ten lines that can be pasted in a chat on their own."""
    return [
        *_labelled("run", describe_run(document.run)),
        *_labelled("step" if _has_steps(document.time) else "window", _budget(document.time)),
        *_labelled("", describe_spread(document)),
        *_groups(document, families),
        *_labelled("coverage", describe_coverage(document)),
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


def describe_run(run: Run) -> str:
    """Ranks, files, backend and devices in a line."""
    size = sum(file.bytes for file in run.files)
    events = sum(file.events for file in run.files)
    parts = [
        _ranks(run),
        f"{plural(len(run.files), 'file')} ({format_bytes(size)}, {plural(events, 'event')})",
        run.backend or "backend ?",
        " and ".join(run.devices) or "GPU ?",
    ]
    if run.gpus_per_node is not None and run.world_size is not None and run.world_size > run.gpus_per_node:
        assumed = any(problem.code == "nodes-assumed" for problem in run.problems)
        parts.append(f"{run.gpus_per_node} GPUs a node{' (assumed)' if assumed else ''}")
    return ", ".join(parts)


def _ranks(run: Run) -> str:
    world = UNKNOWN if run.world_size is None else str(run.world_size)
    if not run.ranks:
        return f"rank {UNKNOWN} of {world}"
    if len(run.ranks) == run.world_size and len(run.ranks) > 1:
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


def describe_spread(document: Document) -> str:
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
        told = at_least(format_time(comm / len(time)), partial=any(row.untimed_calls for row in time))
        text += f"; comm {told}, {format_percent(hidden)} under compute"
    return text + _describe_untimed(time)


def _describe_untimed(time: Sequence[StepTime]) -> str:
    """What stands as idle or under compute because its kernels are not in the trace."""
    untimed = sum(row.untimed_calls for row in time)
    if not untimed:
        return ""
    return f"; {plural(untimed, 'call')} without a kernel in the trace: comm is a lower bound, idle an upper one"


def _groups(document: Document, families: Sequence[Family]) -> list[str]:
    totals = total_families(document, families)
    if not totals:
        return _labelled("groups", "no communication in this trace")
    ordered = sorted(totals.items(), key=lambda item: _weight(item[1]), reverse=True)
    shown, rest = ordered[:_GROUP_LINES], ordered[_GROUP_LINES:]
    sizes = {family.label: _size(family) for family in families}
    rows = [_group_cells(label, sizes.get(label, UNKNOWN), sums) for label, sums in shown]
    lines = lay_out(_GROUP_COLUMNS, rows, indent=0)
    if rest:
        exposed = format_time(sum(sums.exposed_ns or 0 for _, sums in rest))
        lines.append(f"and {plural(len(rest), 'more kind')} of group with {exposed} exposed, in the tables below")
    return lines


_GROUP_COLUMNS = [
    Column("groups", is_name=True),
    Column("size"),
    Column("primitives", is_name=True),
    Column("sent/rank/step"),
    Column("busy"),
    Column("exposed"),
]


def _group_cells(label: str, size: str, sums: Totals) -> list[str]:
    return [
        label,
        size,
        ", ".join(sums.primitives),
        at_least(format_bytes(sums.wire_bytes), partial=sums.has_unsized),
        at_least(format_time(sums.busy_ns), partial=sums.has_untimed),
        at_least(format_time(sums.exposed_ns), partial=sums.has_untimed),
    ]


def _size(family: Family) -> str:
    size = family.groups[0].size
    text = UNKNOWN if size is None else str(size)
    return text if len(family.groups) == 1 else f"{len(family.groups)} × {text}"


def _weight(sums: Totals) -> tuple[float, float]:
    return (sums.exposed_ns or 0, sums.wire_bytes or 0)


def describe_coverage(document: Document) -> str:
    """How many calls the bytes and the times rest on, in a line."""
    coverage = document.run.coverage
    before = sum(row.unlinked_kernels for row in document.traffic)
    parts = [
        f"{coverage.kernels_with_call:,} of {plural(coverage.kernels, 'comm kernel')} have a call",
        f"{coverage.unsized_kernels:,} without bytes" if coverage.unsized_kernels else "",
        f"{before:,} launched before the recording" if before else "",
    ]
    return (
        f"bytes from {coverage.calls_with_bytes:,} of {plural(coverage.calls, 'call')}, "
        f"time from {coverage.calls_with_kernel:,}; {', '.join(filter(None, parts))}"
    )


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
