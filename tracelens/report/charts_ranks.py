"""The ranks of a job in their nodes, once for each kind of group: who belongs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tracelens.report.document import Document
from tracelens.report.families import Family, format_stride
from tracelens.report.sections import format_crossing
from tracelens.units import UNKNOWN

MOST_RANKS = 256
_MOST_GRIDS = 8
_MOST_COLUMNS = 16
_CELL, _GAP = 26, 3
TINTS = 6
"""Colours in which groups take turns; the number in a cell tells them apart beyond that."""


class RankCell(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where its square is, which group of the kind it is in, and what to say of it."""

    x: int
    y: int
    rank: int
    tint: int | None
    """None: in no group of this kind, as far as the traces tell."""
    is_read: bool
    title: str


class RankGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one kind on the ranks of a job."""

    label: str
    caption: str
    width: int
    height: int
    cell: int
    nodes: tuple[tuple[int, int, int, int], ...]
    """x, y, width and height of the frame around each node."""
    cells: tuple[RankCell, ...]


def rank_grids(document: Document, families: Sequence[Family]) -> tuple[list[RankGrid], str]:
    """A grid per kind of group with known ranks, and a remark on what was left out."""
    known = [family for family in families if any(group.ranks for group in family.groups)]
    world = document.run.world_size or _highest(known)
    # a group of one, or one of all, has nothing to show in a grid that holds others
    telling = [family for family in known if 1 < (family.groups[0].size or 0) < world]
    known = telling or [family for family in known if family.groups[0].size == world]
    if not world or not known:
        return [], ""
    shown = min(world, MOST_RANKS)
    grids = [_grid(family, document, shown) for family in known[:_MOST_GRIDS]]
    notes = [
        f"The first {shown} of {world:,} ranks are drawn." if shown < world else "",
        f"{len(known) - len(grids)} more kinds of groups stand in the table." if len(known) > len(grids) else "",
    ]
    return grids, " ".join(note for note in notes if note)


def _highest(families: Sequence[Family]) -> int:
    return 1 + max((max(group.ranks) for family in families for group in family.groups if group.ranks), default=-1)


def _grid(family: Family, document: Document, shown: int) -> RankGrid:
    per_node = document.run.gpus_per_node or shown
    columns = min(per_node, _MOST_COLUMNS, shown)
    rows_per_node = -(-min(per_node, shown) // columns)
    pitch, node_height = _CELL + _GAP, rows_per_node * (_CELL + _GAP) + 2 * _GAP
    across = max(1, min(_MOST_COLUMNS // columns, -(-shown // per_node)))
    node_width = columns * pitch + 2 * _GAP
    owners = _owners(family, shown)
    read = set(document.run.ranks)
    cells = []
    for rank in range(shown):
        node, place = divmod(rank, per_node)
        cells.append(
            RankCell(
                x=(node % across) * node_width + 2 * _GAP + (place % columns) * pitch,
                y=(node // across) * node_height + 2 * _GAP + (place // columns) * pitch,
                rank=rank,
                tint=None if rank not in owners else owners[rank] % TINTS,
                is_read=rank in read,
                title=_title(rank, node, family, owners),
            )
        )
    nodes = -(-shown // per_node)
    frames = tuple(
        ((node % across) * node_width + _GAP, (node // across) * node_height + _GAP, node_width - _GAP - 1,
         node_height - _GAP - 1)
        for node in range(nodes)
    )  # fmt: skip
    height = -(-nodes // across) * node_height + _GAP
    return RankGrid(
        label=family.label,
        caption=_caption(family),
        width=across * node_width + _GAP,
        height=height,
        cell=_CELL,
        nodes=frames,
        cells=tuple(cells),
    )


def _owners(family: Family, shown: int) -> dict[int, int]:
    """The number of the group of each rank; the first where it is in several."""
    owners: dict[int, int] = {}
    for number, group in enumerate(family.groups):
        for rank in group.ranks or ():
            if rank < shown:
                owners.setdefault(rank, number)
    return owners


def _title(rank: int, node: int, family: Family, owners: Mapping[int, int]) -> str:
    if rank not in owners:
        return f"rank {rank}, node {node}: in no group that the traces tell"
    return f"rank {rank}, node {node}: group {owners[rank] + 1} of {len(family.groups)}"


def _caption(family: Family) -> str:
    group = family.groups[0]
    count = len(family.groups)
    size = UNKNOWN if group.size is None else str(group.size)
    crossing = format_crossing(family)
    words = {"yes": "crosses nodes", "no": "inside a node", UNKNOWN: "nodes unknown"}
    return ", ".join(
        [
            f"{count} group{'' if count == 1 else 's'} of {size}",
            format_stride(group.mesh),
            words.get(crossing, f"{crossing} cross nodes"),
        ]
    )
