"""The groups and rows of a measurement under the axes that inference found for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tracelens.collectives import Primitive
from tracelens.inference.infer import Reasoning
from tracelens.inference.uses import Role, Use
from tracelens.inferred import Inference
from tracelens.measurement.axes import label_groups
from tracelens.measurement.routing import keep_groups
from tracelens.results import Group, Measurement, Phase, SizeRow, Traffic
from tracelens.topology import Axis

_PLAIN: dict[Role, Axis] = {
    Role.tensor: Axis.tp,
    Role.batch: Axis.tp,
    Role.context: Axis.cp,
    Role.experts: Axis.ep,
    Role.expert_tensor: Axis.etp,
    Role.pipeline: Axis.pp,
    Role.tables: Axis.embedding_table,
    Role.tied: Axis.embedding_grad,
    Role.shard_grads: Axis.dp_replicate,
}
_LEAST = 0.5
_Row = TypeVar("_Row", Traffic, SizeRow)
_Kind = tuple[Primitive, str | None, Phase | None]
"""What tells rows of traffic of one group apart."""


@dataclass(slots=True)
class _Label:
    """What a group was seen to be used for, and with which calls."""

    roles: dict[Axis, float] = field(default_factory=dict)
    calls: dict[Axis, set[_Kind]] = field(default_factory=dict)

    def add(self, axis: Axis, use: Use) -> None:
        self.roles[axis] = max(self.roles.get(axis, 0.0), use.confidence)
        self.calls.setdefault(axis, set()).update((c.primitive, c.dtype, c.phase) for c in use.calls)

    def axis_of(self, row: Traffic | SizeRow) -> Axis | None:
        """The one role whose calls are those of a row, else whose calls have its primitive; None where several have."""
        exact = [axis for axis, kinds in self.calls.items() if (row.primitive, row.dtype, row.phase) in kinds]
        alike = [axis for axis, kinds in self.calls.items() if row.primitive in {primitive for primitive, *_ in kinds}]
        found = exact or alike
        return found[0] if len(found) == 1 else None


def label_measurement(measurement: Measurement, reasoning: Reasoning) -> Measurement:
    """Give groups their axis, the axes that they flatten, their roles and a confidence; rows the axis of their role.

    Where the calls of a row do not tell its role it is that of its group. Groups without traffic of their own, and
    copies of a group at other ranks, go by their mesh. Pairs of all-to-alls in groups that are not
    those of experts are no routing of tokens.
    """
    labels = _labels_by_ranks(reasoning)
    own = {group.id: _label_of(group, labels) for group in measurement.groups}
    groups = tuple(_labelled(group, own[group.id], reasoning.inference) for group in measurement.groups)
    axis_of = {group.id: group.axis for group in groups}

    def under_own_axis(row: _Row) -> _Row:
        return row if row.group is None else msgspec.structs.replace(row, axis=_axis_of(row, own, axis_of))

    traffic = tuple(map(under_own_axis, measurement.traffic))
    sizes = tuple(map(under_own_axis, measurement.sizes))
    others = {group.id for group in groups if group.axis is not None and Axis.ep not in (group.axis, *group.roles)}
    routing = keep_groups(measurement.routing, lambda group: group not in others)
    labelled = msgspec.structs.replace(measurement, groups=groups, traffic=traffic, sizes=sizes, routing=routing)
    return label_groups(labelled, reasoning.inference.axes)


def _axis_of(
    row: Traffic | SizeRow, labels: Mapping[str, _Label | None], groups: Mapping[str, Axis | None]
) -> Axis | None:
    label = labels.get(row.group or "")
    told = None if label is None else label.axis_of(row)
    return told or groups.get(row.group or "")


def _label_of(group: Group, labels: Mapping[object, _Label]) -> _Label | None:
    """The label of a group that was seen, or of one of the same mesh at other ranks."""
    own = labels.get(group.ranks if group.ranks is not None else (group.names, group.size))
    return own or (labels.get(("mesh", group.mesh)) if group.mesh else None)


def _labels_by_ranks(reasoning: Reasoning) -> dict[object, _Label]:
    """Labels of the groups that the representatives of classes use, by ranks and by mesh."""
    labels: dict[object, _Label] = {}
    job = reasoning.job
    dense = {s.group.size for s in reasoning.data.shard}
    for view, uses in zip(job.views, job.uses, strict=True):
        for use in uses:
            if use.confidence < _LEAST:
                continue
            group = view.groups[use.group]
            axis = _PLAIN.get(use.role) or _data_axis(
                use.role, dense=group.size in dense, inference=reasoning.inference
            )
            name = tuple(sorted(group.ranks)) if group.ranks is not None else ((str(group.key[1]),), group.size)
            for key in (name, ("mesh", group.mesh) if group.mesh else name):
                labels.setdefault(key, _Label()).add(axis, use)
    return labels


def _data_axis(role: Role, *, dense: bool, inference: Inference) -> Axis:
    if not dense:
        return Axis.expert_dp
    if role is Role.grads:
        return Axis.dp_replicate
    return Axis.dp_shard


def _labelled(group: Group, label: _Label | None, inference: Inference) -> Group:
    if label is None or not label.roles:
        return group
    ordered = sorted(label.roles, key=lambda axis: -label.roles[axis])
    main = ordered[0] if len(ordered) == 1 else _main_of(ordered)
    return msgspec.structs.replace(
        group,
        axis=main,
        axes=_flattened(group, main, inference),
        roles=tuple(ordered) if len(ordered) > 1 else (),
        confidence=round(label.roles[main], 3),
    )


def _main_of(axes: Sequence[Axis]) -> Axis:
    """Of several uses of one group the one that says most about its ranks."""
    for axis in (Axis.tp, Axis.cp, Axis.dp_shard, Axis.dp_replicate, Axis.ep, Axis.etp):
        if axis in axes:
            return axis
    return axes[0]


def _flattened(group: Group, main: Axis, inference: Inference) -> tuple[Axis, ...]:
    """dp_shard and cp where parameters are sharded over both."""
    config = inference.config
    if main in (Axis.dp_shard, Axis.dp_replicate) and config.cp is not None and config.cp > 1 and group.size:
        own = config.dp_shard if main is Axis.dp_shard else config.dp
        if own is not None and own * config.cp == group.size:
            return (main, Axis.cp) if own > 1 else (Axis.cp,)
    return (main,)
