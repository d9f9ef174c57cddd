"""The few numbers to see first."""

from __future__ import annotations

import msgspec

from tracelens.compared import Comparison
from tracelens.report.charts import count_ranks, members_of_classes
from tracelens.report.comparison import percent_down, percent_up, what_is_compared
from tracelens.report.document import Document
from tracelens.units import UNKNOWN, at_least, format_bytes, format_percent, format_time


class Tile(msgspec.Struct, frozen=True, kw_only=True):
    """A number to see first."""

    label: str
    value: str
    detail: str = ""


def make_tiles(document: Document) -> list[Tile]:
    """The step, what of its communication is exposed and hidden, what is sent, and what of it is explained."""
    tiles = []
    if document.time:
        count = len(document.time)
        span, exposed, comm, overlap = (
            sum(getattr(row, name) for row in document.time) / count
            for name in ("span_ns", "exposed_comm_ns", "comm_ns", "overlap_ns")
        )
        part = format_percent(exposed / span if span else None)
        untimed = any(row.untimed_calls for row in document.time)
        hidden = format_percent(overlap / comm) if comm else UNKNOWN
        word = "step" if any(row.step is not None for row in document.time) else "recording"
        tiles = [
            Tile(label=word, value=format_time(span), detail="mean of ranks and steps"),
            Tile(
                label="exposed communication",
                value=at_least(format_time(exposed), partial=untimed),
                detail=f"{part} of the {word}",
            ),
            Tile(
                label="hidden communication",
                value=hidden,
                detail=f"of {at_least(format_time(comm), partial=untimed)}",
            ),
        ]
    if any(row.wire_bytes_per_step is not None for row in document.traffic):
        tiles.append(Tile(label="sent per rank and step", value=_sent(document), detail="on the wire"))
    comparison = document.comparison
    if comparison is not None:
        done = "explained" if isinstance(comparison, Comparison) else "unchanged"
        label = f"{what_is_compared(comparison)} {done}"
        absent = f"{percent_up(comparison.absent_bytes_fraction)} absent"
        tiles.append(Tile(label=label, value=percent_down(comparison.explained_bytes_fraction), detail=absent))
    return tiles


def _sent(document: Document) -> str:
    members, ranks = members_of_classes(document.traffic), count_ranks(document.traffic)
    known = sum((row.wire_bytes_per_step or 0) * members[row.rank_class] for row in document.traffic) / ranks
    return at_least(format_bytes(known), partial=any(row.is_partly_sent for row in document.traffic))
