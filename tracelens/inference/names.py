"""What names say: descriptions of groups, labels. Hints with weight, which the traffic may contradict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracelens.errors import Severity
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.observations import GroupView
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


def read_names(job: Job, case: Case, traffic: Case) -> None:
    """Take the sizes of axes from descriptions, as far as neither the traffic nor another one contradicts them.

    Args:
        job: the job.
        case: to argue in.
        traffic: the axes as the traffic alone has them.
    """
    if job.blind:
        return
    hints = list(_hints(job))
    job.findings.extend(dict.fromkeys(told for hint in hints if (told := _contradiction(hint, case)) is not None))
    for axis, name in _FIELDS.items():
        own = [hint for hint in hints if hint.axis is axis]
        believed = [hint for hint in own if not hint.is_contradicted]
        larger = [hint for hint in believed if hint.group.size != 1] or believed
        if not larger:
            continue
        told = _disagreement(axis, own) or _against_traffic(name, larger[0], traffic)
        if told is None:
            _argue(case, name, max(larger, key=lambda hint: hint.is_confirmed), traffic)
            continue
        case.object_to(name, told.message)
        job.findings.append(told)
    _read_frameworks(job, case)
    _read_pipeline_actions(job, case)


@dataclass(frozen=True, slots=True)
class _Hint:
    """A group that is described as that of an axis, and what it carries."""

    axis: Axis
    group: GroupView
    rank: int | None
    roles: tuple[Role, ...]

    @property
    def is_confirmed(self) -> bool:
        """Whether it carries traffic of the axis."""
        return any(self.axis in _ROLE_AXES.get(role, ()) for role in self.roles)

    @property
    def is_contradicted(self) -> bool:
        """Whether it carries traffic, and none of the axis."""
        other = any(self.axis not in _ROLE_AXES.get(role, {self.axis}) for role in self.roles)
        return other and not self.is_confirmed

    def told(self) -> str:
        """The description in words."""
        return f"{self.group.told()} is described `{next(d for d in self.group.descriptions if d in _AXES)}`"


def _hints(job: Job) -> Iterator[_Hint]:
    for view, uses in zip(job.views, job.uses, strict=True):
        for index, group in enumerate(view.groups):
            axis = axis_named(group)
            if axis is not None and group.size is not None:
                yield _Hint(axis, group, view.rank, tuple(use.role for use in uses if use.group == index))


def _contradiction(hint: _Hint, case: Case) -> Finding | None:
    """What the group carries is traffic of another axis."""
    if not hint.is_contradicted:
        return None
    carried = next(role for role in hint.roles if hint.axis not in _ROLE_AXES.get(role, {hint.axis}))
    case.object_to(_FIELDS.get(hint.axis, hint.axis.value), f"{hint.told()}, but carries {carried} traffic")
    return _finding(hint.axis, f"{hint.told()}, but its traffic is that of {carried}", hint.group.ranks or ())


def _disagreement(axis: Axis, hints: Sequence[_Hint]) -> Finding | None:
    """An axis has one group through each rank and one size: descriptions that tell of several tell of none."""
    larger = [hint for hint in hints if hint.group.size != 1]
    groups = {(hint.rank, tuple(sorted(hint.group.ranks))): hint for hint in larger if hint.group.ranks is not None}
    crowded = Counter(rank for rank, _ in groups)
    sizes = {hint.group.size for hint in larger}
    if len(sizes) < 2 and all(count == 1 for count in crowded.values()):
        return None
    told = " and ".join(dict.fromkeys(hint.group.told() for hint in larger[:_SHOWN]))
    more = f" and {len(larger) - _SHOWN} more" if len(larger) > _SHOWN else ""
    return _finding(axis, f"{told}{more} are described as groups of {axis}, which has one through each rank", ())


_SHOWN = 3


def _against_traffic(name: str, hint: _Hint, traffic: Case) -> Finding | None:
    """The traffic alone tells another size: of its own, or because the other axes leave no room for this one.

    That no tokens are seen to travel does not refute experts: they close no product.
    """
    verdict = traffic.verdict(name)
    if verdict.value in (None, hint.group.size) or (verdict.value == 1 and not _leaves_no_room(name, traffic)):
        return None
    why = next((told.supports[0] for told in traffic.evidence([name]) if told.supports), "the traffic")
    message = f"{hint.told()}, but the traffic has {name} {verdict.value}: {why}"
    return _finding(hint.axis, message, hint.group.ranks or ())


def _leaves_no_room(name: str, traffic: Case) -> bool:
    return name != "ep" and (traffic.verdict(name).confidence or 0.0) >= _SURE_OF_TRAFFIC


_SURE_OF_TRAFFIC = 0.9


def _argue(case: Case, name: str, hint: _Hint, traffic: Case) -> None:
    """A name decides; but for experts that are silent where everything else was seen, which it leaves open."""
    size, seen = hint.group.size, traffic.verdict(name)
    if size == 1 or hint.is_confirmed or seen.value != 1 or (seen.confidence or 0.0) < _SURE_OF_TRAFFIC:
        case.decide(name, size, 0.95 if hint.is_confirmed else 0.9, hint.told())
        return
    case.leave(
        name, (1, size), f"{hint.told()}, and carries no tokens", would_decide="records of what experts exchange"
    )


def _finding(axis: Axis, message: str, ranks: tuple[int, ...]) -> Finding:
    return Finding(
        code="group-name-contradicted",
        severity=Severity.warning,
        message=message,
        hint="the traffic was believed; check how the groups were made",
        axis=axis,
        ranks=ranks,
    )


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
    """One argument for each framework: the same program describes its groups on every rank."""
    for certainty, what, patterns, names in (
        (0.9, "a group is described", _FRAMEWORKS, [d for v in job.views for g in v.groups for d in g.descriptions]),
        (0.6, "calls lie inside", _LABELS, [label for view in job.views for label in view.labels]),
    ):
        for pattern, framework in patterns:
            found = next((name for name in names if pattern.search(name)), None)
            if found is not None:
                case.decide("framework", framework, certainty, f"{what} `{found}`")
