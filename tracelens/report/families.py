"""Groups that are alike: the eight tensor-parallel groups of a job are one line of a report, not eight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

import msgspec

from tracelens.collectives import Primitive
from tracelens.report.document import Document
from tracelens.results import CallsPerStep, Group, GroupTime, Traffic
from tracelens.topology import Axis, Mesh
from tracelens.units import UNKNOWN

# Descriptions that c10d gives to groups that nobody described (distributed_c10d.py).
_SAYS_NOTHING = frozenset({"", "undefined", "default_pg"})

# Megatron-Core ends every description with it (parallel_state.py); a label can do without.
_WORDLESS_END = re.compile(r"(?:_PARALLEL)?_GROUP$")

_Key: TypeAlias = tuple[Axis | None, tuple[str, ...], int | None, Mesh | None, tuple[str, ...]]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of the same axis, description, size and mesh, wherever they begin."""

    label: str
    groups: tuple[Group, ...]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank that takes part sends and spends in the groups of a family in a step.

    Where calls have no bytes or no time the sums are lower bounds, and the two flags say so.
    """

    primitives: tuple[Primitive, ...]
    wire_bytes: float | None
    busy_ns: float | None
    exposed_ns: float | None
    has_unsized: bool
    has_untimed: bool


def find_families(groups: Iterable[Group], *, world_size: int | None) -> tuple[Family, ...]:
    """Sort groups into families, in the order in which they are met, each with a label of its own."""
    members: dict[_Key, list[Group]] = {}
    for group in groups:
        members.setdefault(_key(group), []).append(group)
    labels: dict[str, int] = {}
    families = []
    for alike in members.values():
        label = _label(alike[0], world_size)
        labels[label] = labels.get(label, 0) + 1
        unique = label if labels[label] == 1 else f"{label} #{labels[label]}"
        families.append(Family(label=unique, groups=tuple(alike)))
    return tuple(families)


def _key(group: Group) -> _Key:
    # ranks that are not known can't be called alike, so such groups stay apart by name
    names = group.names if group.ranks is None else ()
    return (group.axis, _telling(group), group.size, group.mesh, names)


def _telling(group: Group) -> tuple[str, ...]:
    return tuple(text for text in group.descriptions if text not in _SAYS_NOTHING)


def _label(group: Group, world_size: int | None) -> str:
    if group.axis is not None:
        others = (role for role in group.roles if role is not group.axis)
        return "+".join(map(str, (group.axis, *others)))
    if telling := _telling(group):
        first = _WORDLESS_END.sub("", telling[0])
        return first if len(telling) == 1 else f"{first} +{len(telling) - 1}"
    if group.size is not None and group.size == world_size:
        return "world"
    if group.ranks is None:
        name = _name(group.names)
        return name if group.size is None else f"{name} of {group.size}"
    return f"{len(group.ranks)} ranks {format_stride(group.mesh)}"


def _name(names: Sequence[str]) -> str:
    # communicators of traces without metadata are told apart by stream, and are called so
    text = "+".join(names) or UNKNOWN
    return text if text.startswith("stream ") else f"group {text}"


def format_stride(mesh: Mesh | None) -> str:
    """The mesh in words: `stride 8`, `2x1 4x8` (size x stride, innermost first), `irregular`."""
    if mesh is None:
        return "irregular"
    if len(mesh) <= 1:
        return f"stride {mesh[0][1]}" if mesh else "alone"
    return " ".join(f"{size}x{stride}" for size, stride in mesh)


def label_rows(traffic: Iterable[Traffic], families: Iterable[Family]) -> list[tuple[str, Traffic]]:
    """Each row of traffic with the label of its family; `unattributed` for rows without a group."""
    owners = find_owners(families)
    return [(_label_of(row.group, owners), row) for row in traffic]


def find_owners(families: Iterable[Family]) -> dict[str, str]:
    """The label of the family of each group, by the group's id."""
    return {group.id: family.label for family in families for group in family.groups}


def _label_of(group: str | None, owners: Mapping[str, str]) -> str:
    return "unattributed" if group is None else owners.get(group, group)


def total_families(document: Document, families: Iterable[Family]) -> dict[str, Totals]:
    """Totals of each family with traffic, by its label: the mean over the ranks that take part, from unions."""
    owners = find_owners(families)
    members = {row.rank_class: len(row.ranks) or 1 for row in document.traffic}
    times: dict[str, list[GroupTime]] = {}
    for time in document.group_time:
        times.setdefault(_label_of(time.group, owners), []).append(time)
    rows: dict[str, list[Traffic]] = {}
    for label, row in label_rows(document.traffic, families):
        rows.setdefault(label, []).append(row)
    return {label: _total(own, rows.get(label, []), members) for label, own in times.items()}


def _total(times: Sequence[GroupTime], rows: Sequence[Traffic], members: Mapping[int, int]) -> Totals:
    # a class's means are over all its ranks, so the groups that its ranks divide among them add up
    ranks = sum(members.get(number, 1) for number in {time.rank_class for time in times})

    def mean(read: Callable[[GroupTime], int | None]) -> float | None:
        return _mean([(read(time), members.get(time.rank_class, 1)) for time in times], ranks)

    told = [row for row in rows if row.calls_per_step.max or row.kernels_per_step]
    return Totals(
        primitives=tuple(dict.fromkeys(row.primitive for row in told)),
        wire_bytes=mean(lambda time: time.wire_bytes_per_step),
        busy_ns=mean(lambda time: time.busy_ns_per_step),
        exposed_ns=mean(lambda time: time.exposed_ns_per_step),
        has_unsized=any(row.wire_bytes_per_step is None or row.lacks_bytes for row in told),
        has_untimed=any(_is_untimed(row) for row in told),
    )


def _is_untimed(row: Traffic) -> bool:
    return row.lacks_time or (row.busy_ns_per_step is None and not row.calls_with_time)


def average(rows: Sequence[Traffic]) -> Traffic:
    """One row for what classes of ranks do alike: calls from least to most, the rest the mean over ranks.

    Bus and algorithm bandwidth are weighted by busy time, so that they stay bytes over time.
    """
    ranks = sorted({rank for row in rows for rank in row.ranks})
    weights = [len(row.ranks) or 1 for row in rows]
    calls = [row.calls_per_step for row in rows]

    def mean(read: Callable[[Traffic], int | None]) -> int | None:
        value = _mean([(read(row), weight) for row, weight in zip(rows, weights, strict=True)], sum(weights))
        return None if value is None else round(value)

    return msgspec.structs.replace(
        rows[0],
        ranks=tuple(ranks),
        calls_per_step=CallsPerStep(
            min=min(call.min for call in calls),
            median=median(call.median for call in calls),
            max=max(call.max for call in calls),
            mean=sum(call.mean * weight for call, weight in zip(calls, weights, strict=True)) / sum(weights),
        ),
        payload_bytes_per_step=mean(lambda row: row.payload_bytes_per_step),
        wire_bytes_per_step=mean(lambda row: row.wire_bytes_per_step),
        busy_ns_per_step=mean(lambda row: row.busy_ns_per_step),
        exposed_ns_per_step=mean(lambda row: row.exposed_ns_per_step),
        sized_busy_ns_per_step=mean(lambda row: row.sized_busy_ns_per_step),
        calls=_count(row.calls for row in rows),
        calls_with_payload=_count(row.calls_with_payload for row in rows),
        calls_with_bytes=_count(row.calls_with_bytes for row in rows),
        calls_with_time=_count(row.calls_with_time for row in rows),
        algbw_bytes_per_s=_rate(rows, lambda row: row.algbw_bytes_per_s),
        busbw_bytes_per_s=_rate(rows, lambda row: row.busbw_bytes_per_s),
    )


def _count(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _rate(rows: Sequence[Traffic], read: Callable[[Traffic], float | None]) -> float | None:
    known = [(rate, (row.busy_ns_per_step or 0) * len(row.ranks)) for row in rows if (rate := read(row)) is not None]
    busy = sum(weight for _, weight in known)
    return sum(rate * weight for rate, weight in known) / busy if busy else None


def _mean(values: Iterable[tuple[int | None, int]], ranks: int) -> float | None:
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) / ranks if known else None
