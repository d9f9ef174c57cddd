"""Ranks, groups and axes: which ranks belong together, and the mesh behind a list of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Axis(StrEnum):
    """What a group of ranks is for.

    *axis* is a direction of the device mesh (torchtitan's names); *dim* is kept for tensors.
    """

    tp = "tp"
    cp = "cp"
    ep = "ep"
    etp = "etp"
    pp = "pp"
    dp = "dp"
    dp_shard = "dp_shard"
    dp_replicate = "dp_replicate"
    expert_dp = "expert_dp"
    embedding_grad = "embedding_grad"
    embedding_table = "embedding_table"
    world = "world"
    mixed = "mixed"
    other = "other"


Mesh = tuple[tuple[int, int], ...]
"""(size, stride) per dimension, innermost first: ranks 0,1,8,9 are ((2, 1), (2, 8))."""


def mesh_of(ranks: Sequence[int]) -> Mesh | None:
    """The mesh behind an ascending list of ranks; None when it is no mesh, () for a single rank.

    >>> mesh_of([0, 1, 8, 9])
    ((2, 1), (2, 8))
    """
    mesh: list[tuple[int, int]] = []
    block = list(ranks)
    while len(block) > 1:
        run = _leading_run(block)
        if len(block) % run or run < 2:
            return None
        mesh.append((run, block[1] - block[0]))
        starts = block[::run]
        shape = [rank - block[0] for rank in block[:run]]
        if any([r - s for r in block[i * run : (i + 1) * run]] != shape for i, s in enumerate(starts)):
            return None
        block = starts
    return tuple(mesh)


def _leading_run(ranks: Sequence[int]) -> int:
    stride = ranks[1] - ranks[0]
    if stride <= 0:
        return 1
    run = 2
    while run < len(ranks) and ranks[run] - ranks[run - 1] == stride:
        run += 1
    return run


def ranks_of(mesh: Mesh, first: int) -> list[int]:
    """The ascending ranks of a mesh that begins at `first`: the inverse of `mesh_of`."""
    ranks = [first]
    for size, stride in mesh:
        ranks = [rank + step * stride for step in range(size) for rank in ranks]
    return sorted(ranks)


def format_mesh(mesh: Mesh) -> str:
    """The mesh as the JSON writes it: `[[8,1],[2,64]]`."""
    return "[" + ",".join(f"[{size},{stride}]" for size, stride in mesh) + "]"


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks for people: `0-7`, `0,8,..,56 (8)`, `0,1,8,9`, shortened when long.

    >>> format_ranks([0, 1, 2, 3, 8])
    '0-3,8'
    """
    runs: list[str] = []
    index = 0
    while index < len(ranks):
        last = index
        while last + 1 < len(ranks) and ranks[last + 1] == ranks[last] + 1:
            last += 1
        runs.append(str(ranks[index]) if last == index else f"{ranks[index]}-{ranks[last]}")
        index = last + 1
    if len(runs) > 6:
        return f"{runs[0]},{runs[1]},..,{runs[-1]} ({len(ranks)})"
    return ",".join(runs)
