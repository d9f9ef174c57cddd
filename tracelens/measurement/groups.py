"""The group table of a job: the process groups of all ranks, put together by the ranks that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class GroupTable:
    """All groups of a job, and where each rank's own groups stand in it.

    Process groups of equal ranks are one entry here; traffic keeps them apart by name.
    """

    def __init__(self, summaries: Sequence[RankSummary]) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._ids: dict[Key, str] = {}
        for summary in summaries:
            used = set(summary.calls["group"].drop_nulls().unique())
            for index, local in enumerate(summary.head.groups):
                self._add(local, used=index in used)
        for key, entry in self._entries.items():
            self._ids[key] = _identify(entry.local, set(self._ids.values()))

    def _add(self, local: LocalGroup, *, used: bool) -> None:
        entry = self._entries.setdefault(_key(local), _Entry(local))
        if _SOURCE_ORDER[local.ranks_source] < _SOURCE_ORDER[entry.local.ranks_source]:
            entry.local = local
        if local.name is not None:
            entry.names.setdefault(local.name)
        if local.description is not None:
            entry.descriptions.setdefault(local.description)
        entry.used |= used

    def id_of(self, local: LocalGroup) -> str:
        """The id of a rank's own group in the table."""
        return self._ids[_key(local)]

    def groups(self, gpus_per_node: int | None) -> tuple[Group, ...]:
        """The groups that carry traffic, the largest first and then by their first rank."""
        rows = [self._group(key, entry, gpus_per_node) for key, entry in self._entries.items() if entry.used]
        return tuple(sorted(rows, key=_order))

    def _group(self, key: Key, entry: _Entry, gpus_per_node: int | None) -> Group:
        local = entry.local
        ranks = None if local.ranks is None else tuple(sorted(local.ranks))
        return Group(
            id=self._ids[key],
            names=tuple(entry.names),
            descriptions=tuple(entry.descriptions),
            size=local.size,
            ranks=ranks,
            ranks_source=local.ranks_source,
            mesh=mesh_of_group(local),
            spans_nodes=_spans_nodes(ranks, gpus_per_node),
        )


def mesh_of_group(group: LocalGroup) -> Mesh | None:
    """The mesh behind the ranks of a group; None when they are irregular or unknown."""
    return None if group.ranks is None else mesh_of(sorted(group.ranks))


def _key(group: LocalGroup) -> Key:
    if group.ranks is not None:
        return ("ranks", *sorted(group.ranks))
    return ("name", group.name, group.size)


def _identify(group: LocalGroup, taken: Iterable[str]) -> str:
    if group.ranks is None:
        stem = f"group:{group.name or '?'}({'?' if group.size is None else group.size})"
    else:
        mesh = mesh_of_group(group)
        shape = f"irregular({len(group.ranks)})" if mesh is None else format_mesh(mesh)
        stem = f"group:{shape}@{min(group.ranks, default=0)}"
    return _distinct(stem, set(taken))


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
