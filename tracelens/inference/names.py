"""What names say: descriptions of groups, labels. Hints with weight, which the traffic may contradict."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tracelens.errors import Severity
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.observations import GroupView, RankView
from tracelens.inference.uses import Role
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
    Role.expert_tensor: frozenset({Axis.etp, Axis.tp}),
    Role.weights: frozenset({Axis.dp, Axis.dp_shard, Axis.expert_dp}),
    Role.updates: frozenset({Axis.dp, Axis.dp_shard, Axis.expert_dp}),
    Role.grads: frozenset({Axis.dp, Axis.dp_replicate, Axis.dp_shard, Axis.expert_dp, Axis.embedding_grad}),
    Role.shard_grads: frozenset({Axis.dp_replicate, Axis.dp, Axis.expert_dp}),
    Role.tied: frozenset({Axis.embedding_grad, Axis.pp}),
    Role.batch: frozenset({Axis.tp}),
}

_FIELDS = {Axis.tp: "tp", Axis.pp: "pp", Axis.cp: "cp", Axis.ep: "ep"}


def axes_named(group: GroupView) -> set[Axis]:
    """The axes that the descriptions of a group name; several where groups of equal ranks are one."""
    return {_AXES[d] for d in group.descriptions if d in _AXES}


def axis_named(group: GroupView) -> Axis | None:
    """The axis that the description of a group names."""
    named = axes_named(group)
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
    _read_pipeline_actions(job, case)


def _weigh_name(job: Job, case: Case, view: RankView, group: GroupView, roles: Iterable[Role]) -> None:
    axis = axis_named(group)
    if axis is None or group.size is None:
        return
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
    certainty = 0.95 if agreeing else 0.9
    case.decide(name, group.size, certainty, f"{group.told()} is described `{described}`")


# torch distributed/pipelining/schedules.py names each action: stage, what, micro-batch.
_ACTION = re.compile(r"^PP:(\d+)(?:SEND_|RECV_)?([FBIW])(\d+)$")


def _read_pipeline_actions(job: Job, case: Case) -> None:
    """Stages on the rank and micro-batches, from the labels that torch's pipeline schedules write."""
    for view in job.views:
        found = [match for label in view.labels if (match := _ACTION.match(label))]
        if not found:
            continue
        forwards = {(int(m[1]), int(m[3])) for m in found if m[2] == "F"}
        if forwards:
            stages = {stage for stage, _ in forwards}
            count = 1 + max(number for _, number in forwards)
            told = f"torch's labels name stages {sorted(stages)} and micro-batches up to {count - 1}"
            case.decide("vp", len(stages), 0.95, told)
            case.decide("num_microbatches", count, 0.95, told)


_FRAMEWORKS = (
    (re.compile(r"_PARALLEL_GROUP"), "megatron"),
    (re.compile(r"^mesh_(?:efsdp|loss|batch)$"), "torchtitan"),
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
