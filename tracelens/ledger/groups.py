"""The mesh of every process group of a layout, and the link that it crosses.

Both Megatron-Core (`parallel_state.py`, order `tp-cp-ep-dp-pp`) and torchtitan (`parallel_dims.py`, mesh
`pp, dp_replicate, dp_shard, cp, tp`) count tp innermost and pp outermost; experts see the same ranks of a
stage as `etp, ep, expert_dp`, innermost first.
"""

from __future__ import annotations

import functools

from tracelens.ledger.layout import GroupKind, Layout
from tracelens.topology import Axis, Mesh

AXIS_OF: dict[GroupKind, Axis] = {
    GroupKind.tp: Axis.tp,
    GroupKind.cp: Axis.cp,
    GroupKind.cp_inner: Axis.cp,
    GroupKind.cp_outer: Axis.cp,
    GroupKind.pp: Axis.pp,
    GroupKind.dp_cp: Axis.dp,
    GroupKind.dp_shard_cp: Axis.dp_shard,
    GroupKind.dp_replicate: Axis.dp_replicate,
    GroupKind.reshard: Axis.dp_shard,
    GroupKind.ep: Axis.ep,
    GroupKind.etp: Axis.etp,
    GroupKind.etp_ep: Axis.ep,
    GroupKind.expert_dp: Axis.expert_dp,
    GroupKind.expert_shard: Axis.expert_dp,
    GroupKind.expert_replicate: Axis.expert_dp,
    GroupKind.tp_cp: Axis.mixed,
    GroupKind.tp_dp_cp: Axis.mixed,
    GroupKind.model: Axis.mixed,
    GroupKind.optimizer_instance: Axis.world,
    GroupKind.embedding: Axis.embedding_grad,
    GroupKind.world: Axis.world,
}


def group_mesh(layout: Layout, kind: GroupKind) -> Mesh:
    """(size, stride) of the group of that kind, innermost first; () for a group of one rank."""
    return _meshes(layout)[kind]


@functools.lru_cache(maxsize=64)
def _meshes(layout: Layout) -> dict[GroupKind, Mesh]:
    t, c = layout.tp, layout.cp
    stage_ranks = t * c * layout.dp
    pair = layout.ep * layout.expert_tp
    shard = layout.expert_shard_ranks
    meshes: dict[GroupKind, Mesh] = {
        GroupKind.tp: ((t, 1),),
        GroupKind.cp: ((c, t),),
        GroupKind.cp_inner: ((layout.cp_inner, t),),
        GroupKind.cp_outer: ((c // layout.cp_inner, t * layout.cp_inner),),
        GroupKind.pp: ((layout.pp, stage_ranks),),
        GroupKind.dp_cp: ((c * layout.dp, t),),
        GroupKind.dp_shard_cp: ((c * layout.dp_shard, t),),
        GroupKind.dp_replicate: ((layout.dp_replicate, t * c * layout.dp_shard),),
        GroupKind.reshard: ((layout.reshard_ranks, t),),
        GroupKind.ep: ((layout.ep, layout.expert_tp),),
        GroupKind.etp: ((layout.expert_tp, 1),),
        GroupKind.etp_ep: ((pair, 1),),
        GroupKind.expert_dp: ((layout.expert_dp, pair),),
        GroupKind.expert_shard: ((shard, pair),),
        GroupKind.expert_replicate: ((layout.expert_dp // shard, pair * shard),),
        GroupKind.tp_cp: ((t * c, 1),),
        GroupKind.tp_dp_cp: ((stage_ranks, 1),),
        GroupKind.model: ((t, 1), (layout.pp, stage_ranks)),
        GroupKind.optimizer_instance: ((t * c * layout.dp_shard, 1), (layout.pp, stage_ranks)),
        GroupKind.embedding: ((2 if layout.pp > 1 else 1, (layout.pp - 1) * stage_ranks),),
        GroupKind.world: ((layout.world_size, 1),),
    }
    return {kind: _merged(mesh) for kind, mesh in meshes.items()}


def _merged(mesh: Mesh) -> Mesh:
    merged: list[tuple[int, int]] = []
    for size, stride in mesh:
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return tuple(merged)


def mesh_size(mesh: Mesh) -> int:
    """Ranks of a group with that mesh."""
    size = 1
    for extent, _ in mesh:
        size *= extent
    return size


def stays_in_node(mesh: Mesh, gpus_per_node: int, world_size: int) -> bool:
    """Whether every group of that mesh lies within one node of consecutive ranks."""
    if world_size <= gpus_per_node or not mesh:
        return True
    block = mesh[-1][0] * mesh[-1][1]
    return block <= gpus_per_node and gpus_per_node % block == 0


def group_ranks(layout: Layout, kind: GroupKind, rank: int) -> list[int]:
    """The ranks of the group of that kind that holds `rank`, ascending."""
    mesh = group_mesh(layout, kind)
    first = rank
    for size, stride in mesh:
        first -= (rank // stride % size) * stride
    ranks = [first]
    for size, stride in mesh:
        ranks = [other + step * stride for step in range(size) for other in ranks]
    return sorted(ranks)
