"""What each group is for, once the axes of the device mesh are known: told from its mesh alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from tracelens.inferred import InferredAxis
from tracelens.results import Group, Measurement
from tracelens.topology import Axis, Mesh

_DATA = {Axis.dp, Axis.dp_shard, Axis.dp_replicate}


def label_groups(measurement: Measurement, axes: Sequence[InferredAxis]) -> Measurement:
    """Give every group that has no axis yet the one whose mesh it has, or those that it flattens.

    Args:
        measurement: of a job.
        axes: the axes larger than one, with their strides.

    Returns:
        The measurement with labelled groups and traffic.
    """
    known = [axis for axis in axes if axis.stride is not None and axis.size > 1]
    meshes = _meshes(known)
    world = measurement.run.world_size
    groups = tuple(_label(group, meshes, world) for group in measurement.groups)
    labels = {group.id: group.axis for group in groups}
    traffic = tuple(
        row if row.axis is not None or row.group is None else msgspec.structs.replace(row, axis=labels.get(row.group))
        for row in measurement.traffic
    )
    return msgspec.structs.replace(measurement, groups=groups, traffic=traffic)


def _meshes(axes: Sequence[InferredAxis]) -> dict[Mesh, list[tuple[Axis, ...]]]:
    """Every mesh that one axis or several together make, with those axes; fewest axes first."""
    found: dict[Mesh, list[tuple[Axis, ...]]] = {}
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            mesh = _merged(sorted((axis.stride or 0, axis.size) for axis in chosen))
            if mesh is not None:
                found.setdefault(mesh, []).append(tuple(axis.name for axis in chosen))
    return found


def _merged(parts: Sequence[tuple[int, int]]) -> Mesh | None:
    """The mesh of axes taken together; None when they overlap, as ep does with dp."""
    mesh: list[tuple[int, int]] = []
    for stride, size in parts:
        if mesh and stride < mesh[-1][0] * mesh[-1][1]:
            return None
        if mesh and stride == mesh[-1][0] * mesh[-1][1]:
            mesh[-1] = (mesh[-1][0] * size, mesh[-1][1])
        else:
            mesh.append((size, stride))
    return tuple(mesh)


def _label(group: Group, meshes: dict[Mesh, list[tuple[Axis, ...]]], world: int | None) -> Group:
    if group.axis is not None or not group.mesh:
        return group
    uses = meshes.get(group.mesh)
    if uses is None:
        axis = Axis.world if group.size == world else None
        return msgspec.structs.replace(group, axis=axis)
    first = uses[0]
    roles = tuple(names[0] for names in uses if len(names) == 1)
    return msgspec.structs.replace(
        group,
        axis=first[0] if len(first) == 1 else _together(first, is_world=group.size == world),
        axes=first,
        roles=roles if len(roles) > 1 else (),
    )


def _together(axes: tuple[Axis, ...], *, is_world: bool) -> Axis:
    if set(axes) <= _DATA:
        return Axis.dp
    if set(axes) <= _DATA | {Axis.cp}:
        return Axis.dp_shard
    return Axis.world if is_world else Axis.mixed
