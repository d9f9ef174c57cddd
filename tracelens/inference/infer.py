"""From the summaries of any ranks of a job to its parallel configuration, with its doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tracelens.inference.axes import DataParallel, axes_by_traffic, find_axes, mesh_axes
from tracelens.inference.evidence import Case
from tracelens.inference.experts import find_experts
from tracelens.inference.file_names import check_file_names
from tracelens.inference.frameworks import find_framework
from tracelens.inference.job import Job
from tracelens.inference.names import read_names
from tracelens.inference.observations import observe
from tracelens.inference.schedule import find_schedule
from tracelens.inference.sharding import find_sharding
from tracelens.inference.sizes import find_sizes
from tracelens.inference.tensor import find_tensor_habits
from tracelens.inference.tokens import find_tokens
from tracelens.inference.workload import find_workload, share_primitives
from tracelens.inferred import Inference, InferredAxis, InferredConfig
from tracelens.measurement.jobs import gather_job
from tracelens.results import Finding
from tracelens.summary import RankSummary

FIELDS: tuple[str, ...] = InferredConfig.__struct_fields__


@dataclass(frozen=True)
class Reasoning:
    """An inference together with what it rests on."""

    inference: Inference
    job: Job
    data: DataParallel


def infer(summaries: Sequence[RankSummary], *, blind: bool = False) -> Inference:
    """Work out the parallel configuration behind the traffic of some ranks of a job.

    Args:
        summaries: any subset of the ranks of one job; ranks that do the same are looked at once. Of files of several
            jobs or runs those are taken that `measure` takes.
        blind: use no name: no group description, no label, no annotation.

    Returns:
        The configuration as far as the evidence goes, the values left where it does not, and why. Summaries that were
        left out are a finding.
    """
    job = gather_job(summaries)
    found = reason(job.ranks, blind=blind).inference
    told = tuple(Finding(code=one.code, severity=one.severity, message=one.message) for one in job.problems)
    return msgspec.structs.replace(found, findings=told + found.findings)


def reason(summaries: Sequence[RankSummary], *, blind: bool = False) -> Reasoning:
    """Infer, and keep the job and its group uses for those who label groups with axes.

    Args:
        summaries: ranks of one run of one job, as `gather_job` gives them.
        blind: use no name.
    """
    job = Job.of(observe(summaries, blind=blind), blind=blind)
    case = Case()
    workload, _why = find_workload(job)
    read_names(job, case, axes_by_traffic(job))
    data = find_axes(job, case)
    find_tensor_habits(job, case)
    find_experts(job, case)
    find_schedule(job, case)
    find_sharding(job, case, data)
    find_sizes(job, case, data)
    find_tokens(job, case)
    find_framework(job, case)
    axes = mesh_axes(job, case, data)
    if axes and all(axis.stride is not None for axis in axes):
        order = "-".join(axis.name.value for axis in axes)
        case.decide("rank_order", order, 0.9, "the axes in the order of the strides of their groups")
    if not blind:
        job.findings.extend(check_file_names(summaries, axes, case))
    config, confidence, undetermined = _verdicts(case)
    inference = Inference(
        workload=workload,
        status=_status(config, undetermined),
        config=config,
        axes=axes,
        confidence=confidence,
        undetermined=undetermined,
        constraints_checked=case.checked,
        free_parameters=len(case.solved),
        evidence=case.evidence(FIELDS),
        would_decide=tuple(case.would_decide),
        launcher_line=launcher_line(config, axes),
        primitives=share_primitives(job),
        findings=tuple(job.findings),
    )
    return Reasoning(inference=inference, job=job, data=data)


def _verdicts(case: Case) -> tuple[InferredConfig, dict[str, float], dict[str, tuple[Any, ...]]]:
    values: dict[str, Any] = {}
    confidence: dict[str, float] = {}
    undetermined: dict[str, tuple[Any, ...]] = {}
    for name in FIELDS:
        verdict = case.verdict(name)
        if verdict.confidence is not None:
            values[name], confidence[name] = verdict.value, verdict.confidence
        elif len(verdict.left) > 0:
            undetermined[name] = verdict.left
    return msgspec.convert(values, InferredConfig), confidence, undetermined


_MAIN = ("tp", "pp", "dp", "cp", "ep")
_BESIDE = frozenset({"recompute", "grad_shard_degree"})
"""Fields that may stay open without making the layout ambiguous."""


def _status(
    config: InferredConfig, undetermined: Mapping[str, tuple[Any, ...]]
) -> Literal["unique", "ambiguous", "undetermined"]:
    """Unique: every axis has a size and nothing is left open; undetermined: not one axis above one is known."""
    known = [getattr(config, name) for name in _MAIN]
    if all(value is None for value in known):
        return "undetermined"
    settled = set(undetermined) <= _BESIDE and all(value is not None for value in known)
    return "unique" if settled else "ambiguous"


def launcher_line(config: InferredConfig, axes: Sequence[InferredAxis]) -> str:
    """The configuration as options, as this tool's own `predict` takes them."""
    parts: list[str] = []
    for name, option in (("tp", "--tp"), ("pp", "--pp"), ("cp", "--cp"), ("dp", "--dp"), ("ep", "--ep")):
        value = getattr(config, name)
        if value is not None and (value > 1 or name in ("tp", "pp", "dp")):
            parts.append(f"{option} {value}")
    if (config.ep or 1) > 1:
        parts += _given(config, {"etp": "--etp"})
    stages = {"none": "0", "zero1": "1", "zero2": "2", "zero3": "3"}
    if config.sharding is not None:
        parts.append(f"--zero {stages[config.sharding]}")
    if config.dp_replicate is not None and config.dp_replicate > 1 and (config.dp_shard or 1) > 1:
        parts.append(f"--hsdp-shard {config.dp_shard}")
    if config.sharding == "zero3" and config.reshard_after_forward is False:
        parts.append("--no-reshard")
    if (config.tp or 1) > 1 and config.sequence_parallel is False:
        parts.append("--no-sequence-parallel")
    if (config.cp or 1) > 1 and config.cp_kind is not None:
        parts.append(f"--cp-kind {config.cp_kind}")
    if (config.pp or 1) > 1:
        parts += [f"--schedule {config.schedule}"] if config.schedule else []
        parts += [f"--vp {config.vp}"] if config.vp is not None and config.vp > 1 else []
    parts += _given(
        config, {"num_microbatches": "--microbatches", "micro_batch": "--micro-batch", "seq_len": "--seq-len"}
    )
    return " ".join(parts)


def _given(config: InferredConfig, options: Mapping[str, str]) -> list[str]:
    """Options of the fields that are known."""
    return [f"{option} {value}" for name, option in options.items() if (value := getattr(config, name)) is not None]
