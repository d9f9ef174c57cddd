"""Kinds of calls of a run, summed: what one rank does in one step, in all and by size."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2, sqrt

from tracelens.collectives import Primitive
from tracelens.results import Group, Measurement, SizeRow
from tracelens.topology import Axis, format_mesh

_BUCKET = 2
"""Sizes of one bucket lie within a factor of 2^_BUCKET."""
Key = tuple[str, Primitive, str | None]
Bucket = tuple[int, int] | None


@dataclass(slots=True)
class KindSums:
    """What one rank does in one step, as a mean over all ranks read."""

    axis: Axis | None = None
    calls: float = 0.0
    wire_bytes: float | None = None
    busy_ns: float | None = None
    exposed_ns: float | None = None
    lacks_bytes: bool = False
    """Whether calls are without bytes, without a kernel, without even a size."""
    lacks_time: bool = False
    lacks_sizes: bool = False
    variances: list[float] = field(default_factory=list)
    """Of the busy time between steps, of each part."""
    steps: int = 0

    def add(self, row: SizeRow, share: float, steps: int) -> None:
        """Add a row of a class that is `share` of all ranks."""
        self.calls += share * row.calls_per_step.mean
        self.wire_bytes = _plus(self.wire_bytes, row.wire_bytes_per_step, share)
        self.busy_ns = _plus(self.busy_ns, row.busy_ns_per_step, share)
        self.exposed_ns = _plus(self.exposed_ns, row.exposed_ns_per_step, share)
        self.lacks_bytes |= row.lacks_bytes
        self.lacks_time |= row.lacks_time
        self.lacks_sizes |= row.from_bytes is None
        self.variances.append((share * (row.busy_spread_ns or 0)) ** 2)
        self.steps = max(self.steps, steps)

    @property
    def spread_ns(self) -> float:
        """Standard deviation between steps; parts that move together add up."""
        return sum(sqrt(value) for value in self.variances)


def _plus(total: float | None, value: float | None, share: float) -> float | None:
    if value is None:
        return total
    return (total or 0.0) + share * value


def sum_kinds(measurement: Measurement, *, by_axis: bool) -> dict[tuple[Key, Bucket], KindSums]:
    """What one rank does in one step, by kind of call: in all, and by size.

    Args:
        measurement: of a run.
        by_axis: call groups by their axis; by size and stride otherwise.
    """
    groups = {group.id: group for group in measurement.groups}
    sizes = {row.rank_class: max(1, len(row.ranks)) for row in measurement.traffic}
    everyone = sum(sizes.values()) or 1
    found: dict[tuple[Key, Bucket], KindSums] = {}
    for row in measurement.sizes:
        ranks = sizes.get(row.rank_class, 1)
        group = groups.get(row.group or "")
        axis = row.axis or (None if group is None else group.axis)
        key = (_label(group, row.group, axis if by_axis else None), row.primitive, row.dtype)
        for bucket in dict.fromkeys((None, bucket_of(row.from_bytes))):
            sums = found.setdefault((key, bucket), KindSums(axis=axis))
            sums.add(row, ranks / everyone, row.steps_used // ranks)
    return found


def _label(group: Group | None, name: str | None, axis: Axis | None) -> str:
    if group is None:
        return name or "unattributed"
    if group.size == 1:
        return "1 rank"
    if axis is not None:
        return str(axis)
    return f"{group.size} ranks" if group.mesh is None else format_mesh(group.mesh)


def bucket_of(payload_bytes: int | None) -> Bucket:
    """The sizes that stand together with one: from a power of four to the next; None for an unknown size."""
    if payload_bytes is None:
        return None
    exponent = int(log2(max(payload_bytes, 1)) / _BUCKET + 1e-9) * _BUCKET
    return 2**exponent, 2 ** (exponent + _BUCKET) - 1


def nothing_of(measurement: Measurement) -> KindSums | None:
    """What a run has of a kind that it lacks: nothing; None where a kernel without a record may be of that kind."""
    if any(row.wire_bytes_per_step is None for row in measurement.traffic):
        return None
    timed = 0.0 if measurement.time else None
    return KindSums(calls=0.0, wire_bytes=0.0, busy_ns=timed, exposed_ns=timed)
