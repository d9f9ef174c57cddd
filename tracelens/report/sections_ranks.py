"""The tables of what several ranks tell: waiting, links, stages of a pipeline, and what they are read from."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from tracelens.many_ranks import LastArrival, LinkUse, PipelineRun, Skew
from tracelens.report.document import Document
from tracelens.report.sections import (
    Cell,
    Table,
    count,
    name,
    number_columns,
    rate,
    share,
    size,
    table_of,
    text_columns,
    time,
)
from tracelens.report.waiting import why_no_habit
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_time


def skew_table(document: Document, owners: Mapping[str, str]) -> Table | None:
    """Transfer and waiting of every group and primitive, those that wait longest first."""
    ordered = sorted(document.skew or (), key=lambda row: -(row.wait_ns or 0))
    columns = [
        *text_columns("group", "primitive", "ranks"),
        *number_columns("calls paired", "transfer", "waiting", "busbw"),
        *text_columns("last to come", "because of"),
    ]
    rows = [
        [
            name("unattributed" if row.group is None else owners.get(row.group, row.group)),
            name(row.primitive),
            name(format_ranks(row.ranks) + ("" if row.complete else f" of {row.size or UNKNOWN}")),
            count(row.matched_calls + row.partly_matched_calls),
            time(row.transfer_ns),
            time(row.wait_ns),
            rate(row.busbw_bytes_per_s),
            Cell(_last(row.last)),
            Cell(_cause(row)),
        ]
        for row in ordered
    ]
    note = "Sums over all paired calls; waiting is the mean of the ranks."
    return table_of("Transfer and waiting", columns, rows, note=note)


def _last(last: LastArrival | None) -> str:
    return "nobody" if last is None else f"rank {last.rank} ({last.calls} of {last.of})"


def _cause(row: Skew) -> str:
    last = row.last
    if last is None:
        return ""
    if not last.systematic:
        return why_no_habit(row)
    more = "" if last.cause_ns is None else f", {format_time(last.cause_ns)} more"
    return f"{last.cause}{more}"


def links_table(document: Document, owners: Mapping[str, str]) -> Table | None:
    """Bandwidth by size of call; groups of a kind stand together with the median of their numbers."""
    kin: dict[tuple[str, str, int], list[LinkUse]] = {}
    for link in document.links or ():
        label = "unattributed" if link.group is None else owners.get(link.group, link.group)
        kin.setdefault((label, link.primitive, link.from_bytes), []).append(link)
    columns = [
        *text_columns("group", "primitive"),
        *number_columns("payload from", "groups", "calls", "transfer", "algbw", "busbw", "of link"),
    ]
    rows = [
        [
            name(label),
            name(primitive),
            size(least),
            count(len(alike)),
            count(sum(link.calls for link in alike)),
            time(median(link.transfer_ns for link in alike)),
            rate(_median([link.algbw_bytes_per_s for link in alike])),
            rate(_median([link.busbw_bytes_per_s for link in alike])),
            share(_median([link.link_fraction for link in alike])),
        ]
        for (label, primitive, least), alike in kin.items()
    ]
    caveats = dict.fromkeys(caveat for alike in kin.values() for link in alike for caveat in link.caveats)
    return table_of("Bandwidth of the transfer by size of call", columns, rows, note="; ".join(caveats) or None)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def stages_table(run: PipelineRun) -> Table | None:
    """The numbers of each stage of a pipeline in one step."""
    columns = number_columns("stage", "rank", "forward", "backward", "work", "transfer", "bubble", "of it in SendRecv")
    rows = [
        [
            count(stage.stage),
            count(stage.rank),
            time(stage.forward_ns),
            time(stage.backward_ns),
            time(stage.work_ns),
            time(stage.transfer_ns),
            time(stage.bubble_ns),
            time(stage.wait_in_p2p_ns),
        ]
        for stage in run.stages
    ]
    return table_of("Stages", columns, rows, note="Forward and backward are the median of a block.")


def files_table(document: Document) -> Table | None:
    """The files that were read."""
    columns = [*text_columns("file"), *number_columns("rank", "window", "size", "events")]
    rows = [
        [name(file.path), count(file.rank), count(file.window), size(file.bytes), count(file.events)]
        for file in document.run.files
    ]
    return table_of("Files", columns, rows)


def problems_table(document: Document) -> Table | None:
    """What was odd in the input, one row per kind with the first as the example, and the files left out."""
    kinds: dict[str, list[int]] = {}
    problems = document.run.problems
    for index, problem in enumerate(problems):
        kinds.setdefault(problem.code, []).append(index)
    columns = [*text_columns("severity", "problem"), *number_columns("times"), *text_columns("message", "first in")]
    rows = [
        [
            name(problems[indices[0]].severity),
            name(code),
            count(len(indices)),
            name(problems[indices[0]].message),
            Cell(problems[indices[0]].file or ""),
        ]
        for code, indices in kinds.items()
    ]
    rows += [
        [name("info"), name("skipped-file"), count(1), name(file.why), name(file.path)]
        for file in document.run.skipped[:20]
    ]
    more = len(document.run.skipped) - 20
    note = f"{more} more skipped files stand in the JSON." if more > 0 else None
    return table_of("Problems", columns, rows, note=note)
