"""One call to look up for each row that is unexplained: where in the trace it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tracelens.compared import Comparison, ComparisonRow, ExampleCall, Verdict
from tracelens.results import Group, Phase
from tracelens.summary import RankSummary

MOST_EXAMPLES = 20


def add_examples(comparison: Comparison, summaries: Sequence[RankSummary], groups: Sequence[Group]) -> Comparison:
    """Give the largest rows that differ an example call each, where calls were measured."""
    known = {group.id: group for group in groups}
    rows = [
        _with_example(row, summaries, known) if number < MOST_EXAMPLES and row.verdict is not Verdict.match else row
        for number, row in enumerate(comparison.rows)
    ]
    return msgspec.structs.replace(comparison, rows=tuple(rows))


def _with_example(row: ComparisonRow, summaries: Sequence[RankSummary], groups: Mapping[str, Group]) -> ComparisonRow:
    group = groups.get(row.group or "")
    if not row.measured_calls or group is None:
        return row
    for summary in summaries:
        if row.ranks and summary.rank not in row.ranks:
            continue
        found = _largest(summary, row, group)
        if found is not None:
            return msgspec.structs.replace(row, example=found)
    return row


def _largest(summary: RankSummary, row: ComparisonRow, group: Group) -> ExampleCall | None:
    """The first of the largest calls that the row may be about."""
    mine = [n for n, local in enumerate(summary.head.groups) if _is_alike(local.ranks, local.name, group)]
    wanted = pl.col("group").is_in(mine) & (pl.col("primitive") == row.primitive.value)
    wanted &= pl.col("dtype").eq_missing(pl.lit(row.dtype, pl.String))
    if row.phase not in (None, Phase.mixed):
        wanted &= pl.col("phase") == str(row.phase)
    if row.payload_bytes is not None:
        wanted &= pl.col("payload_bytes") == row.payload_bytes
    calls = summary.calls.filter(wanted).sort("payload_bytes", "issue_ns", descending=[True, False], nulls_last=True)
    if calls.is_empty():
        return None
    call = calls.row(0, named=True)
    step = None if call["step"] is None else summary.head.steps[call["step"]].number
    moment = call["gpu_start_ns"] if call["gpu_start_ns"] is not None else call["issue_ns"]
    begin = summary.head.start_ns
    return ExampleCall(
        rank=summary.rank,
        step=step,
        group=group.id,
        name=summary.head.groups[call["group"]].name,
        seconds=None if moment is None or begin is None else (moment - begin) / 1e9,
        payload_bytes=call["payload_bytes"],
        label=call["label"],
    )


def _is_alike(ranks: tuple[int, ...] | None, name: str | None, group: Group) -> bool:
    """Whether a rank's own group is of the kind of one in the table: the ranks of a class are not in the same ones."""
    if ranks is None or group.ranks is None:
        return name in group.names
    if len(ranks) != len(group.ranks):
        return False
    ordered = sorted(ranks)
    return all(rank - ordered[0] == other - group.ranks[0] for rank, other in zip(ordered, group.ranks, strict=True))
