"""Charts as plain geometry: lanes of spans over one common scale, which a template draws as SVG.

Text never stands inside the drawing, so that a drawing can be stretched to any width and its labels stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tracelens.collectives import Primitive
from tracelens.report.document import Document
from tracelens.report.families import Family, total_families
from tracelens.results import StepTime, Traffic
from tracelens.units import at_least, format_bytes, format_percent, format_time, noun

SCALE = 1000.0
"""Units of a lane's width."""

_MOST_RANKS, _MOST_FAMILIES = 32, 24
_BUCKET_BITS = 2  # sizes of one bar lie within a factor of four

BUDGET = (
    ("compute", "compute"),
    ("exposed", "exposed communication"),
    ("memory", "exposed memory work"),
    ("idle", "idle"),
)


class Span(msgspec.Struct, frozen=True):
    """A rectangle: where it begins and how wide it is (of `SCALE`), how high (0 to 1), its colour, its tooltip."""

    start: float
    width: float
    kind: str
    title: str
    height: float = 1.0


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a chart."""

    label: str
    spans: tuple[Span, ...]
    value: str = ""
    note: str = ""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Lanes over a common scale; `label` says in words what is drawn."""

    label: str
    lanes: tuple[Lane, ...]
    legend: tuple[tuple[str, str], ...] = ()
    """Kind and name."""
    ticks: tuple[str, ...] = ()
    """Texts at equal distances, the first at 0 and the last at the end of the scale."""
    note: str = ""
    dense: bool = False
    """Lanes close together, such as those of a timeline."""


def budget_lane(label: str, rows: Sequence[StepTime], longest: float, note: str = "") -> Lane:
    """The mean budget of some steps as one stacked bar."""
    parts = {
        "compute": [row.compute_ns for row in rows],
        "exposed": [row.exposed_comm_ns for row in rows],
        "memory": [row.exposed_memory_ns for row in rows],
        "idle": [row.idle_ns for row in rows],
    }
    names = dict(BUDGET)
    means = [(kind, names[kind], sum(values) / len(values)) for kind, values in parts.items()]
    span = sum(value for _, _, value in means)
    return Lane(label=label, spans=_stack(means, longest, whole=span), value=format_time(span), note=note)


def _stack(parts: Sequence[tuple[str, str, float]], longest: float, *, whole: float) -> tuple[Span, ...]:
    """Parts (kind, name, ns) beside one another."""
    spans, at = [], 0.0
    for kind, name, value in parts:
        width = SCALE * value / longest if longest else 0.0
        if width > 0:
            told = f"{name} {format_time(value)}, {format_percent(value / whole)}"
            spans.append(Span(at, width, kind, told))
        at += width
    return tuple(spans)


def budget_chart(time: Sequence[StepTime]) -> Chart | None:
    """The mean step of every rank; of many ranks the shortest, the middle and the longest, and the mean of all."""
    if not time:
        return None
    ranks: dict[int | None, list[StepTime]] = {}
    for row in time:
        ranks.setdefault(row.rank, []).append(row)
    spans = {rank: sum(row.span_ns for row in rows) / len(rows) for rank, rows in ranks.items()}
    longest = max(spans.values())
    if len(ranks) <= _MOST_RANKS:
        lanes = [budget_lane(_rank(rank), rows, longest) for rank, rows in ranks.items()]
        note = "Mean over the steps of each rank."
    else:
        ordered = sorted(ranks, key=lambda rank: spans[rank])
        chosen = {"shortest": ordered[0], "middle": ordered[(len(ordered) - 1) // 2], "longest": ordered[-1]}
        lanes = [budget_lane(f"{word}: {_rank(rank)}", ranks[rank], longest) for word, rank in chosen.items()]
        lanes.append(budget_lane(f"mean of {len(ranks):,} ranks", time, longest))
        note = f"{len(ranks):,} ranks were read; the shortest, the middle and the longest are drawn."
    return Chart(label="Step budget by rank", lanes=tuple(lanes), legend=BUDGET, ticks=time_ticks(longest), note=note)


def _rank(rank: int | None) -> str:
    return "rank ?" if rank is None else f"rank {rank}"


def time_ticks(longest: float) -> tuple[str, ...]:
    """Times at quarters of a scale."""
    return ("0", *(format_time(longest * part / 4) for part in range(1, 5)))


def axis_chart(document: Document, families: Sequence[Family]) -> Chart | None:
    """Time per kind of group, hidden and exposed; what is exposed longest comes first."""
    totals = [(label, sums) for label, sums in total_families(document, families).items() if sums.busy_ns]
    totals.sort(key=lambda item: -(item[1].exposed_ns or 0))
    longest = max((sums.busy_ns or 0 for _, sums in totals), default=0.0)
    if not longest:
        return None
    lanes = []
    for label, sums in totals[:_MOST_FAMILIES]:
        busy, exposed = sums.busy_ns or 0.0, sums.exposed_ns or 0.0
        parts = [("exposed", "exposed", exposed), ("hidden", "under compute", busy - exposed)]
        lanes.append(
            Lane(
                label=label,
                spans=_stack(parts, longest, whole=busy),
                value=" of ".join(at_least(format_time(part), partial=sums.has_untimed) for part in (exposed, busy)),
                note=", ".join(sums.primitives),
            )
        )
    rest = len(totals) - len(lanes)
    return Chart(
        label="Communication time by kind of group, exposed and hidden",
        lanes=tuple(lanes),
        legend=(("exposed", "exposed"), ("hidden", "hidden under compute")),
        ticks=time_ticks(longest),
        note=f"{rest} more kinds of groups stand in the table." if rest else "",
    )


# --- bytes ------------------------------------------------------------------------------------------------


def count_ranks(traffic: Sequence[Traffic]) -> int:
    """Ranks behind all classes of a document."""
    return sum(members_of_classes(traffic).values()) or 1


def members_of_classes(traffic: Sequence[Traffic]) -> dict[int, int]:
    """Ranks of each class; a trace that does not say its rank counts as one."""
    return {row.rank_class: len(row.ranks) or 1 for row in traffic}


def primitive_chart(document: Document) -> Chart | None:
    """Bytes that one rank sends in a step by primitive, mean over all ranks."""
    members, ranks = members_of_classes(document.traffic), count_ranks(document.traffic)
    sent: dict[Primitive, float] = {}
    for row in document.traffic:
        if row.wire_bytes_per_step:
            sent[row.primitive] = sent.get(row.primitive, 0.0) + row.wire_bytes_per_step * members[row.rank_class]
    total = sum(sent.values())
    if not total:
        return None
    partial = {row.primitive for row in document.traffic if row.is_partly_sent}
    points = {share.primitive: share.points_at for share in document.inference.primitives} if document.inference else {}
    most = max(sent.values())
    lanes = [
        Lane(
            label=primitive.value,
            spans=(Span(0, SCALE * value / most, primitive.value, f"{primitive.value} {format_bytes(value / ranks)}"),),
            value=f"{at_least(format_bytes(value / ranks), partial=primitive in partial)} · "
            f"{format_percent(value / total)}",
            note=points.get(primitive, ""),
        )
        for primitive, value in sorted(sent.items(), key=lambda item: -item[1])
    ]
    note = "Some calls or kernels do not tell their bytes: the shares are of those that do." if partial else ""
    return Chart(label="Bytes sent per rank and step by primitive", lanes=tuple(lanes), note=note)


def sizes_chart(document: Document) -> Chart | None:
    """Bytes sent by the payload of a call, in steps of four, stacked by primitive; calls beside them."""
    members, ranks = members_of_classes(document.traffic), count_ranks(document.traffic)
    sent: dict[int, dict[Primitive, float]] = {}
    calls: dict[int, float] = {}
    partial: set[int] = set()
    for row in document.sizes:
        if not row.from_bytes:
            continue
        bucket = (row.from_bytes.bit_length() - 1) // _BUCKET_BITS
        weight = members.get(row.rank_class, 1) / ranks
        own = sent.setdefault(bucket, {})
        own[row.primitive] = own.get(row.primitive, 0.0) + (row.wire_bytes_per_step or 0) * weight
        calls[bucket] = calls.get(bucket, 0.0) + row.calls_per_step.mean * weight
        if row.lacks_bytes:
            partial.add(bucket)
    if not sent:
        return None
    most = max(sum(own.values()) for own in sent.values()) or 1.0
    lanes = [
        _size_lane(bucket, sent[bucket], calls[bucket], most, partial=bucket in partial) for bucket in sorted(sent)
    ]
    used = dict.fromkeys(primitive for own in sent.values() for primitive in own)
    return Chart(
        label="Bytes sent per rank and step by payload of the call",
        lanes=tuple(lanes),
        legend=tuple((primitive.value, primitive.value) for primitive in used),
        note="A bar holds calls of up to four times the payload that it begins with.",
    )


def _size_lane(bucket: int, sent: Mapping[Primitive, float], calls: float, most: float, *, partial: bool) -> Lane:
    low = 1 << (bucket * _BUCKET_BITS)
    spans, at = [], 0.0
    for primitive, value in sent.items():
        width = SCALE * value / most
        if width > 0:
            spans.append(Span(at, width, primitive.value, f"{primitive.value} {format_bytes(value)}"))
        at += width
    text = f"{calls:.4g} {noun(calls, 'call')} · {at_least(format_bytes(sum(sent.values())), partial=partial)}"
    return Lane(label=f"from {format_bytes(low)}", spans=tuple(spans), value=text)
