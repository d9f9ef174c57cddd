"""The two sides of a comparison, in the same words: kinds of call of one rank in one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from tracelens.collectives import DTYPE_BYTES, Primitive
from tracelens.ledger.groups import mesh_size
from tracelens.ledger.layout import Layout
from tracelens.ledger.results import Ledger, LedgerRow
from tracelens.results import Group, Measurement, Phase, SizeRow, Traffic
from tracelens.topology import Axis, Mesh

_MOST_PLACES = 64
"""Ways to place groups of unknown ranks that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Calls of one primitive in one mesh, of one dtype and phase and, where it is known, of one size."""

    mesh: Mesh | None
    primitive: Primitive
    dtype: str | None
    phase: Phase | None
    payload_bytes: int | None
    """Of one call; None where calls differ."""
    calls: float
    wire_bytes: float | None
    is_mean: bool = False
    """Predicted calls whose sizes are known only on average."""
    lacks_bytes: bool = False
    """Whether calls are without bytes, so that there are at least `wire_bytes`."""
    axis: Axis | None = None
    term: str | None = None
    overlap: str | None = None
    group: str | None = None
    busy_ns: int | None = None
    exposed_ns: int | None = None
    fewest: float | None = None
    """Least and most calls of a step."""
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Ranks that do the same on one pipeline rank, with what was measured of each of them."""

    rank_class: int
    stage: int | None
    ranks: tuple[int, ...]
    measured: tuple[Item, ...]

    @property
    def weight(self) -> int:
        """Ranks that were read; one where the rank is unknown."""
        return max(1, len(self.ranks))


def measured_units(measurement: Measurement, layout: Layout) -> tuple[Unit, ...]:
    """Each class of ranks, cut by pipeline rank, with its calls; pp is the outermost axis in all frameworks."""
    groups = {group.id: group for group in measurement.groups}
    classes: dict[int, tuple[int, ...]] = {}
    traffic: dict[int, list[Traffic]] = {}
    for row in measurement.traffic:
        classes.setdefault(row.rank_class, row.ranks)
        traffic.setdefault(row.rank_class, []).append(row)
    sizes: dict[int, list[SizeRow]] = {}
    for size in measurement.sizes:
        sizes.setdefault(size.rank_class, []).append(size)
    units = []
    for number, ranks in classes.items():
        items = tuple(_items_of_class(sizes.get(number, []), traffic[number], groups))
        for stage, members in _stages(ranks, layout).items():
            units.append(Unit(rank_class=number, stage=stage, ranks=members, measured=items))
    return tuple(units)


def _stages(ranks: tuple[int, ...], layout: Layout) -> dict[int | None, tuple[int, ...]]:
    if layout.pp == 1:
        return {None: ranks}
    per_stage = layout.world_size // layout.pp
    stages: dict[int, list[int]] = {}
    for rank in ranks:
        stages.setdefault(rank // per_stage, []).append(rank)
    return {stage: tuple(members) for stage, members in stages.items()} or {None: ()}


def _items_of_class(
    sizes: Sequence[SizeRow], traffic: Sequence[Traffic], groups: Mapping[str, Group]
) -> Iterable[Item]:
    """The calls of a class by size; rows of traffic, whose sizes are unknown, where no sizes are kept."""
    if sizes:
        yield from (_sized_item(row, groups) for row in sizes)
        return
    yield from (_traffic_item(row, groups) for row in traffic if row.calls_per_step.max)


def _mesh(group: str | None, groups: Mapping[str, Group]) -> tuple[Mesh | None, Axis | None]:
    if group is None or group not in groups:
        return None, None
    return groups[group].mesh, groups[group].axis


def _sized_item(row: SizeRow, groups: Mapping[str, Group]) -> Item:
    mesh, axis = _mesh(row.group, groups)
    return Item(
        mesh=mesh,
        axis=axis,
        primitive=row.primitive,
        dtype=row.dtype,
        phase=row.phase,
        payload_bytes=row.from_bytes if row.from_bytes == row.to_bytes else None,
        calls=row.calls_per_step.mean,
        wire_bytes=row.wire_bytes_per_step,
        lacks_bytes=row.lacks_bytes,
        group=row.group,
        busy_ns=row.busy_ns_per_step,
        exposed_ns=row.exposed_ns_per_step,
        fewest=row.calls_per_step.min,
        most=row.calls_per_step.max,
    )


def _traffic_item(row: Traffic, groups: Mapping[str, Group]) -> Item:
    mesh, axis = _mesh(row.group, groups)
    return Item(
        mesh=mesh,
        axis=axis,
        primitive=row.primitive,
        dtype=row.dtype,
        phase=row.phase,
        payload_bytes=None,
        calls=row.calls_per_step.mean,
        wire_bytes=row.wire_bytes_per_step,
        lacks_bytes=row.lacks_bytes,
        group=row.group,
        busy_ns=row.busy_ns_per_step,
        exposed_ns=row.exposed_ns_per_step,
        fewest=row.calls_per_step.min,
        most=row.calls_per_step.max,
    )


def predicted_items(ledger: Ledger, stage: int | None) -> tuple[Item, ...]:
    """The rows of the ledger for one pipeline rank."""
    chosen = stage if stage is not None or ledger.layout.pp > 1 else 0
    return tuple(_predicted(row) for row in ledger.rows_of_stage(chosen))


def _predicted(row: LedgerRow) -> Item:
    return Item(
        mesh=row.mesh,
        axis=row.axis,
        term=row.term,
        primitive=row.primitive,
        dtype=row.dtype,
        phase=row.phase,
        payload_bytes=round(row.elements * DTYPE_BYTES[row.dtype]),
        calls=row.calls,
        wire_bytes=row.wire_bytes,
        is_mean=row.elements_vary,
        overlap=row.overlap.value,
    )


def place_groups(
    measured: Sequence[Item], predicted: Sequence[Item], groups: Sequence[Group]
) -> Iterator[tuple[Item, ...]]:
    """The measured items with every way to place groups whose ranks are unknown on predicted meshes of their size."""
    sizes = {group.id: group.size for group in groups if group.ranks is None}
    unknown = sorted({item.group for item in measured if item.group in sizes and item.mesh is None and item.group})
    meshes = sorted({item.mesh for item in predicted if item.mesh is not None})
    choices: list[list[Mesh] | list[None]] = [
        [mesh for mesh in meshes if mesh_size(mesh) == sizes[group]] or [None] for group in unknown
    ]
    for chosen in islice(product(*choices), _MOST_PLACES):
        places = dict(zip(unknown, chosen, strict=True))
        yield tuple(
            replace(item, mesh=places[item.group]) if item.group in places and item.mesh is None else item
            for item in measured
        )
