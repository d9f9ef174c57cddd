"""What names say: descriptions of groups, labels. Hints with weight, which the traffic may contradict."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracelens.errors import Severity
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.observations import GroupView, RankView
from tracelens.inference.roles import Role
from tracelens.results import Finding
from tracelens.topology import Axis

# Megatron-Core core/parallel_state.py (descriptions of its groups); PyTorch device_mesh.py (`mesh_` + the name of
# the dimension), with the names that torchtitan gives in distributed/parallel_dims.py.
_AXES = {
    "TENSOR_MODEL_PARALLEL_GROUP": Axis.tp,
    "PIPELINE_MODEL_PARALLEL_GROUP": Axis.pp,
    "CONTEXT_PARALLEL_GROUP": Axis.cp,
    "EXPERT_MODEL_PARALLEL_GROUP": Axis.ep,
    "EXPERT_TENSOR_PARALLEL_GROUP": Axis.etp,
    "EXPERT_DATA_PARALLEL_GROUP": Axis.expert_dp,
    "EMBEDDING_GROUP": Axis.embedding_grad,
    "DATA_PARALLEL_GROUP": Axis.dp,
    "mesh_tp": Axis.tp,
    "mesh_pp": Axis.pp,
    "mesh_cp": Axis.cp,
    "mesh_ep": Axis.ep,
    "mesh_etp": Axis.etp,
    "mesh_dp": Axis.dp,
    "mesh_dp_shard": Axis.dp_shard,
    "mesh_dp_replicate": Axis.dp_replicate,
    "mesh_edp": Axis.expert_dp,
    "mesh_efsdp": Axis.expert_dp,
}

_ROLE_AXES: dict[Role, frozenset[Axis]] = {
    Role.tensor: frozenset({Axis.tp, Axis.etp}),
    Role.context: frozenset({Axis.cp}),
    Role.pipeline: frozenset({Axis.pp}),
    Role.experts: frozenset({Axis.ep}),
    Role.weights: frozenset({Axis.dp, Axis.dp_shard, Axis.expert_dp}),
    Role.updates: frozenset({Axis.dp, Axis.dp_shard, Axis.expert_dp}),
    Role.grads: frozenset({Axis.dp, Axis.dp_replicate, Axis.dp_shard, Axis.expert_dp, Axis.embedding_grad}),
    Role.shard_grads: frozenset({Axis.dp_replicate, Axis.dp, Axis.expert_dp}),
    Role.tied: frozenset({Axis.embedding_grad, Axis.pp}),
    Role.batch: frozenset({Axis.tp}),
}

_FIELDS = {Axis.tp: "tp", Axis.pp: "pp", Axis.cp: "cp", Axis.ep: "ep"}


def axis_named(group: GroupView) -> Axis | None:
    """The axis that the description of a group names."""
    named = {_AXES[d] for d in group.descriptions if d in _AXES}
    return next(iter(named)) if len(named) == 1 else None


def read_names(job: Job, case: Case) -> None:
    """Take the sizes of axes from descriptions, as far as the traffic does not contradict them."""
    if job.blind:
        return
    for view, uses in zip(job.views, job.uses, strict=True):
        hints = [(group, index) for index, group in enumerate(view.groups) if axis_named(group) in _FIELDS]
        larger = {axis_named(group) for group, _ in hints if (group.size or 0) > 1}
        for group, index in hints:
            axis = axis_named(group)
            if axis is None or group.size is None or (group.size == 1 and axis in larger):
                continue
            roles = [use.role for use in uses if use.group == index]
            _weigh_name(job, case, view, group, roles)
    _read_frameworks(job, case)


def _weigh_name(job: Job, case: Case, view: RankView, group: GroupView, roles: Iterable[Role]) -> None:
    axis = axis_named(group)
    assert axis is not None
    name = _FIELDS[axis]
    described = next(d for d in group.descriptions if d in _AXES)
    contradicting = [role for role in roles if axis not in _ROLE_AXES.get(role, frozenset({axis}))]
    agreeing = [role for role in roles if axis in _ROLE_AXES.get(role, frozenset())]
    if contradicting and not agreeing:
        case.object_to(name, f"{group.told()} is described `{described}`, but carries {contradicting[0]} traffic")
        job.findings.append(
            Finding(
                code="group-name-contradicted",
                severity=Severity.warning,
                message=f"{group.told()} is described `{described}`, but its traffic is that of {contradicting[0]}",
                hint="the traffic was believed; check how the groups were made",
                axis=axis,
                ranks=group.ranks or (),
            )
        )
        return
    size = group.size
    assert size is not None
    certainty = 0.95 if agreeing else 0.9
    case.decide(name, size, certainty, f"{group.told()} is described `{described}`")


_FRAMEWORKS = (
    (re.compile(r"_PARALLEL_GROUP"), "megatron"),
    (re.compile(r"^mesh_(?:efsdp|loss|batch|fsdp)$"), "torchtitan"),
)
_LABELS = (
    (re.compile(r"^FullyShardedDataParallel\."), "fsdp1"),
    (re.compile(r"^DistributedDataParallel\."), "ddp"),
    (re.compile(r"^DeepSpeed|^deepspeed"), "deepspeed"),
)


def _read_frameworks(job: Job, case: Case) -> None:
    for view in job.views:
        for group in view.groups:
            for description in group.descriptions:
                for pattern, framework in _FRAMEWORKS:
                    if pattern.search(description):
                        case.decide("framework", framework, 0.9, f"a group is described `{description}`")
        for label in view.labels:
            for pattern, framework in _LABELS:
                if pattern.search(label):
                    case.decide("framework", framework, 0.6, f"calls lie inside `{label}`")
