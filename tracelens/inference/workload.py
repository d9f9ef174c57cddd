"""What kind of job it is, before any of its sizes: training, serving, recommendation, a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tracelens.collectives import DTYPE_BYTES, Primitive, wire_bytes
from tracelens.inference.job import Job
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, matmul_between
from tracelens.inferred import Inference, PrimitiveShare, Workload
from tracelens.results import Measurement
from tracelens.units import plural

P = Primitive


def find_workload(job: Job) -> tuple[Workload, str]:
    """Tell the workload from phases and roles."""
    if job.has(Role.tables):
        return "recommendation", "embedding tables are looked up over all-to-all or reduce-scatter"
    if job.trains:
        gradients = job.has(Role.weights, Role.updates, Role.grads, Role.shard_grads)
        return "training", "a backward was seen" + (", gradients are reduced" if gradients else "")
    if not any(view.calls for view in job.views):
        return "unknown", "no communication call was recorded"
    if all(c.phase is None for c in job.calls()) and not any(view.on_gpu for view in job.views):
        return "unknown", "calls of gloo without a phase: the trace holds no backward and no optimizer"
    if job.returns_messages and not any(view.gaps for view in job.views):
        return "unknown", "messages come back as they go, and nothing tells whether they are gradients"
    calls = max(len(view.calls) for view in job.views)
    unexplained = max(sum(view.kernels.values()) for view in job.views)
    short = unexplained < calls <= _MOST_OF_A_BENCHMARK
    if short and all(len(uses) <= 1 for uses in job.uses) and not _runs_layers(job):
        return "benchmark", f"{plural(calls, 'call')} for one purpose, no backward, no optimizer"
    return "inference", "no backward was seen"


_MOST_OF_A_BENCHMARK = 64


def _runs_layers(job: Job) -> bool:
    """Whether something is computed between most messages of a stage, or between most equal all-reduces."""
    return any(_computes_between(s.view, s.use.calls) for s in job.sightings(Role.pipeline, Role.tensor))


def _computes_between(view: RankView, calls: Sequence[Call]) -> bool:
    pairs = list(pairwise(calls))
    return len(pairs) >= _FEWEST and 2 * sum(matmul_between(view, a, b) > 0 for a, b in pairs) >= len(pairs)


_FEWEST = 3


_POINTS_AT: dict[Primitive, str] = {
    P.all_reduce: "DDP, tensor parallelism without sequence parallelism, or the replicas of HSDP",
    P.all_gather: "sharded parameters (ZeRO, FSDP), sequence parallelism, or gathered keys and values",
    P.reduce_scatter: "sharded gradients (ZeRO, FSDP) or sequence parallelism",
    P.all_to_all: "experts, or context parallelism by heads (Ulysses)",
    P.send: "pipeline stages, or a ring of context parallelism",
    P.broadcast: "batches handed to tensor-parallel ranks, or buffers of DDP",
}


def time_primitives(inference: Inference, measurement: Measurement) -> Inference:
    """The shares of the primitives with their part of the time that communication is busy, all rows together."""
    busy: dict[Primitive, int] = {}
    for row in measurement.traffic:
        busy[row.primitive] = busy.get(row.primitive, 0) + (row.busy_ns_per_step or 0) * max(1, len(row.ranks))
    total = sum(busy.values())
    if not total:
        return inference
    shares = tuple(
        msgspec.structs.replace(share, busy_pct=round(100 * busy.get(share.primitive, 0) / total, 2))
        for share in inference.primitives
    )
    return msgspec.structs.replace(inference, primitives=shares)


def share_primitives(job: Job) -> tuple[PrimitiveShare, ...]:
    """The share of each primitive in the wire bytes, as the article's summary has it."""
    sums: dict[Primitive, float] = {}
    for view in job.views:
        for c in view.calls:
            size = view.groups[c.group].size
            if c.elements is None or c.dtype not in DTYPE_BYTES or size is None:
                continue
            share = wire_bytes(c.primitive, size, c.elements * DTYPE_BYTES[c.dtype])
            sums[c.primitive] = sums.get(c.primitive, 0.0) + (share or 0.0)
    total = sum(sums.values())
    return tuple(
        PrimitiveShare(
            primitive=primitive,
            wire_bytes_pct=round(100 * amount / total, 2) if total else None,
            busy_pct=None,
            points_at=_POINTS_AT.get(primitive, "bookkeeping"),
        )
        for primitive, amount in sorted(sums.items(), key=lambda item: -item[1])
        if primitive in _POINTS_AT
    )
