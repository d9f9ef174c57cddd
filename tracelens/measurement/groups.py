"""The group table of a job: the process groups of all ranks, put together by the ranks that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelens.results import Group, RanksSource
from tracelens.summary import LocalGroup, RankSummary
from tracelens.topology import Mesh, format_mesh, mesh_of

_SOURCE_ORDER = {RanksSource.metadata: 0, RanksSource.record: 1, RanksSource.rebuilt: 2, None: 3}

Key = tuple[object, ...]


@dataclass(slots=True)
class _Entry:
    """What is gathered of one set of ranks."""

    local: LocalGroup
    names: dict[str, None] = field(default_factory=dict)
    descriptions: dict[str, None] = field(default_factory=dict)
    used: bool = False
    mesh: Mesh | None = None
    id: str = ""


class GroupTable:
    """All groups of a job, and where each rank's own groups stand in it.

    Process groups of equal ranks are one entry here; traffic keeps them apart by name.
    """

    def __init__(self, summaries: Sequence[RankSummary]) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._keys: dict[int, tuple[tuple[int, ...], Key]] = {}
        for summary in summaries:
            used = set(summary.calls["group"].drop_nulls().unique())
            for index, local in enumerate(summary.head.groups):
                self._add(local, used=index in used)
        taken: set[str] = set()
        for entry in self._entries.values():
            entry.mesh = mesh_of_group(entry.local)
            entry.id = _distinct(_stem(entry), taken)
            taken.add(entry.id)

    def _key(self, local: LocalGroup) -> Key:
        """What tells sets of ranks apart; thousands of ranks share long lists, which are looked at once."""
        ranks = local.ranks
        if ranks is None:
            return ("name", local.name, local.size)
        known = self._keys.get(id(ranks))
        if known is None:
            known = self._keys[id(ranks)] = (ranks, ("ranks", *sorted(ranks)))
        return known[1]

    def _add(self, local: LocalGroup, *, used: bool) -> None:
        entry = self._entries.setdefault(self._key(local), _Entry(local))
        if _SOURCE_ORDER[local.ranks_source] < _SOURCE_ORDER[entry.local.ranks_source]:
            entry.local = local
        if local.name is not None:
            entry.names.setdefault(local.name)
        if local.description is not None:
            entry.descriptions.setdefault(local.description)
        entry.used |= used

    def id_of(self, local: LocalGroup) -> str:
        """The id of a rank's own group in the table."""
        return self._entries[self._key(local)].id

    def shape_of(self, local: LocalGroup) -> str:
        """What groups alike share: the mesh without its first rank, else the size and the name."""
        mesh = self._entries[self._key(local)].mesh
        return str(mesh) if mesh is not None else f"{local.size} ranks {local.name or ''}"

    def groups(self, gpus_per_node: int | None) -> tuple[Group, ...]:
        """The groups that carry traffic, the largest first and then by their first rank."""
        rows = [self._group(entry, gpus_per_node) for entry in self._entries.values() if entry.used]
        return tuple(sorted(rows, key=_order))

    def _group(self, entry: _Entry, gpus_per_node: int | None) -> Group:
        local = entry.local
        ranks = None if local.ranks is None else tuple(sorted(local.ranks))
        return Group(
            id=entry.id,
            names=tuple(entry.names),
            descriptions=tuple(entry.descriptions),
            size=local.size,
            ranks=ranks,
            ranks_source=_source(local),
            mesh=entry.mesh,
            spans_nodes=_spans_nodes(ranks, gpus_per_node),
        )


def _source(local: LocalGroup) -> RanksSource | None:
    """A group that no record names is told by its stream, and as many ranks as the job has were taken for all."""
    unnamed = local.name is not None and local.name.startswith("stream ")
    return RanksSource.assumed if unnamed and local.ranks_source is RanksSource.rebuilt else local.ranks_source


def mesh_of_group(group: LocalGroup) -> Mesh | None:
    """The mesh behind the ranks of a group; None when they are irregular or unknown."""
    return None if group.ranks is None else mesh_of(sorted(group.ranks))


def _stem(entry: _Entry) -> str:
    group = entry.local
    if group.ranks is None:
        return f"group:{group.name or '?'}({'?' if group.size is None else group.size})"
    shape = f"irregular({len(group.ranks)})" if entry.mesh is None else format_mesh(entry.mesh)
    return f"group:{shape}@{min(group.ranks, default=0)}"


def _distinct(stem: str, taken: set[str]) -> str:
    number, name = 2, stem
    while name in taken:
        name, number = f"{stem}#{number}", number + 1
    return name


def _spans_nodes(ranks: tuple[int, ...] | None, gpus_per_node: int | None) -> bool | None:
    if ranks is None or not gpus_per_node:
        return None
    return len({rank // gpus_per_node for rank in ranks}) > 1


def _order(group: Group) -> tuple[int, tuple[int, ...], str]:
    return (-(group.size or 0), group.ranks or (), group.id)
