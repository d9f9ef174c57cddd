"""Jobs built by hand for the findings: what each must show, and the same job without the fault."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.report.build import MIB, MS, a_group, a_row, a_run, a_step, an_unsized_row, times_of
from tracelens.collectives import Primitive
from tracelens.inferred import Inference, InferredConfig
from tracelens.many_ranks import LinkUse, Pipeline, PipelineRun, Routing, Stage
from tracelens.results import CallsPerStep, Coverage, Group, Measurement, Phase, SizeRow, Traffic
from tracelens.topology import Axis

RANKS = tuple(range(8))
P = Primitive


def axis_group(axis: Axis, ranks: tuple[int, ...] = RANKS, **changes: Any) -> Group:
    return a_group(ranks, "1", axis=axis, id=f"{axis}@{ranks[0]}", **changes)


def times(count: float) -> CallsPerStep:
    return CallsPerStep(min=int(count), median=count, max=int(count), mean=count)


def sizes_of(rows: tuple[Traffic, ...]) -> tuple[SizeRow, ...]:
    """Each row cut by size, all its calls of one."""
    return tuple(
        SizeRow(
            rank_class=row.rank_class,
            group=row.group,
            primitive=row.primitive,
            dtype=row.dtype,
            phase=row.phase,
            from_bytes=_payload(row),
            to_bytes=_payload(row),
            steps_used=row.steps_used,
            calls_per_step=row.calls_per_step,
            payload_bytes_per_step=row.payload_bytes_per_step,
            wire_bytes_per_step=row.wire_bytes_per_step,
            busy_ns_per_step=row.busy_ns_per_step,
            exposed_ns_per_step=row.exposed_ns_per_step,
            busy_spread_ns=MS // 10,
            exposed_spread_ns=MS // 10,
        )
        for row in rows
        if row.calls_per_step.mean
    )


def _payload(row: Traffic) -> int | None:
    if row.payload_bytes_per_step is None:
        return None
    return round(row.payload_bytes_per_step / row.calls_per_step.mean)


def job(*rows: Traffic, groups: tuple[Group, ...] = (), **changes: Any) -> Measurement:
    """Eight ranks, steps of 100 ms, of which 25 are exposed communication."""
    usual: dict[str, Any] = {
        "run": a_run(RANKS),
        "groups": groups,
        "traffic": rows,
        "group_time": times_of(rows),
        "sizes": sizes_of(rows),
        "time": tuple(a_step(rank, step) for rank in RANKS for step in (3, 4, 5)),
        "overlap": (),
    }
    return Measurement(**(usual | changes))


def inferred(**config: Any) -> Inference:
    return Inference(workload="training", status="unique", config=InferredConfig(**config))


def gradients(group: Group, **changes: Any) -> Traffic:
    usual = {
        "phase": Phase.backward,
        "dtype": "bf16",
        "payload_bytes_per_step": 800 * MIB,
        "wire_bytes_per_step": 700 * MIB,
        "busy_ns_per_step": 20 * MS,
        "exposed_ns_per_step": 8 * MS,
    }
    return a_row(group, P.reduce_scatter, RANKS, **(usual | changes))


def gathers(group: Group, **changes: Any) -> Traffic:
    usual = {"payload_bytes_per_step": 400 * MIB, "exposed_ns_per_step": MS // 2}
    return a_row(group, P.all_gather, RANKS, **(usual | changes))


SHARD = axis_group(Axis.dp_shard)
TENSOR = axis_group(Axis.tp)
ACROSS = axis_group(Axis.tp, tuple(range(16)), spans_nodes=True)
QUIET = {"exposed_ns_per_step": 0}


def coverage(**changes: int) -> Coverage:
    usual = {
        "calls": 80, "calls_with_bytes": 80, "calls_with_kernel": 80, "kernels": 80, "kernels_with_call": 80,
        "unsized_kernels": 0,
    }  # fmt: skip
    return Coverage(**(usual | changes))


def pipeline(bubble: float, promised: float) -> Pipeline:
    stage = Stage(
        stage=0, rank=0, order="FB", forward_ns=MS, backward_ns=2 * MS, work_ns=60 * MS, transfer_ns=0,
        bubble_ns=20 * MS, wait_in_p2p_ns=10 * MS, blocks=(),
    )  # fmt: skip
    run = PipelineRun(
        group="pp", ranks=RANKS, complete=True, order_from="messages", step=3, stages=(stage,), virtual_stages=1,
        microbatches=8, schedule="1f1b", span_ns=100 * MS, bubble_fraction=0.2, bubble_over_work=bubble,
        ideal_bubble_over_work=promised, imbalance=1.3, clocks=True,
    )  # fmt: skip
    return Pipeline(
        pipelines=1, stages=4, virtual_stages=1, microbatches=8, schedule="1f1b", bubble_fraction=0.2,
        ideal_bubble_over_work=promised, runs=(run,),
    )  # fmt: skip


def routing(imbalance: float) -> Routing:
    return Routing(
        dispatches=12, combines=12, unpaired=0, imbalance_median=imbalance, imbalance_max=imbalance + 1, busiest=6,
        combine_wait_ns=240 * MS, explained_wait_fraction=0.8, calls=(),
    )  # fmt: skip


def link(fraction: float, **changes: Any) -> LinkUse:
    usual: dict[str, Any] = {
        "group": SHARD.id, "primitive": "reduce_scatter", "from_bytes": 64 * MIB, "calls": 16, "transfer_ns": MS,
        "algbw_bytes_per_s": 100e9, "busbw_bytes_per_s": fraction * 450e9, "spans_nodes": False,
        "inter_node_bytes_per_s": None, "link_bytes_per_s": 450e9, "link_fraction": fraction, "complete": True,
    }  # fmt: skip
    return LinkUse(**(usual | changes))


PIPE = axis_group(Axis.pp)
EXPERTS = axis_group(Axis.ep)
ALONE = a_group((0,), "9", id="alone", axis=None, spans_nodes=False)
SENDS = a_row(PIPE, P.send, RANKS, exposed_ns_per_step=15 * MS)
DISPATCH = a_row(EXPERTS, P.all_to_all, RANKS, exposed_ns_per_step=12 * MS)
SMALL = gathers(SHARD, calls_per_step=times(400), payload_bytes_per_step=100 * MIB, **QUIET)
ACTIVATIONS = a_row(TENSOR, P.all_reduce, RANKS)
TWICE = gradients(SHARD, payload_bytes_per_step=1600 * MIB, calls_per_step=times(8))
ONCE = gradients(SHARD, payload_bytes_per_step=800 * MIB, calls_per_step=times(8))
PARAMETERS = gathers(SHARD, payload_bytes_per_step=800 * MIB, **QUIET)
ACCUMULATING = inferred(num_microbatches=2, sharding="zero1", tp=1)
UNSIZED = an_unsized_row("ncclDevKernel_Generic", RANKS, busy_ns_per_step=5 * MS, exposed_ns_per_step=0)

Case = tuple[Measurement, Inference | None]
NOTHING: Inference | None = None

# by code: a job that shows it, and one alike that doesn't
CASES: dict[str, tuple[Case, Case]] = {
    "TL101": (
        (job(ACTIVATIONS, UNSIZED, groups=(TENSOR,), run=a_run(RANKS, coverage=coverage(unsized_kernels=9))), NOTHING),
        (job(ACTIVATIONS, groups=(TENSOR,), run=a_run(RANKS, coverage=coverage())), NOTHING),
    ),
    "TL203": (
        (
            job(
                gathers(SHARD, names=("5",), **QUIET),
                gradients(SHARD, names=("6",), **QUIET),
                groups=(SHARD,),
            ),
            NOTHING,
        ),
        # ranks of a class name their own groups differently: that is one group each
        (
            job(
                gathers(SHARD, names=("5", "6"), **QUIET),
                gradients(SHARD, names=("6", "5"), **QUIET),
                groups=(SHARD,),
            ),
            NOTHING,
        ),
    ),
    "TL204": (
        (job(a_row(ALONE, P.all_reduce, RANKS, wire_bytes_per_step=0), groups=(ALONE,)), NOTHING),
        (job(a_row(TENSOR, P.all_reduce, RANKS), groups=(TENSOR,)), NOTHING),
    ),
    "TL205": (
        (job(ACTIVATIONS, groups=(TENSOR,)), inferred(tp=8, sequence_parallel=False)),
        (job(ACTIVATIONS, groups=(TENSOR,)), inferred(tp=8, sequence_parallel=True)),
    ),
    "TL304": (
        (job(TWICE, PARAMETERS, groups=(SHARD,)), ACCUMULATING),
        (job(ONCE, PARAMETERS, groups=(SHARD,)), ACCUMULATING),
    ),
    "TL305": (
        (job(gradients(SHARD, dtype="fp32"), gathers(SHARD, **QUIET), groups=(SHARD,)), NOTHING),
        # a model that is fp32 throughout has no other choice
        (job(gradients(SHARD, dtype="fp32"), gathers(SHARD, dtype="fp32", **QUIET), groups=(SHARD,)), NOTHING),
    ),
    "TL402": (
        (job(a_row(ACROSS, P.all_reduce, RANKS), groups=(ACROSS,)), NOTHING),
        (job(a_row(TENSOR, P.all_reduce, RANKS), groups=(TENSOR,)), NOTHING),
    ),
    "TL403": (
        (job(gradients(SHARD), groups=(SHARD,)), NOTHING),
        (job(gradients(SHARD, exposed_ns_per_step=MS), groups=(SHARD,)), NOTHING),
    ),
    "TL404": (
        (job(SMALL, groups=(SHARD,)), NOTHING),
        (job(msgspec.structs.replace(SMALL, calls_per_step=times(10)), groups=(SHARD,)), NOTHING),
    ),
    "TL405": (
        (job(SENDS, groups=(PIPE,), pipeline=pipeline(0.7, 0.375)), NOTHING),
        (job(SENDS, groups=(PIPE,), pipeline=pipeline(0.39, 0.375)), NOTHING),
    ),
    "TL406": (
        (job(DISPATCH, groups=(EXPERTS,), routing=routing(2.4)), NOTHING),
        (job(DISPATCH, groups=(EXPERTS,), routing=routing(1.1)), NOTHING),
    ),
    "TL407": (
        (job(gradients(SHARD), groups=(SHARD,), links=(link(0.2),)), NOTHING),
        (job(gradients(SHARD), groups=(SHARD,), links=(link(0.8), link(0.1, complete=False))), NOTHING),
    ),
    "TL408": (
        # 10 ms of every step are idle: a third of 30 ms, a tenth of 100
        (job(time=tuple(a_step(rank, 3, compute=10, exposed=5) for rank in RANKS)), NOTHING),
        (job(time=tuple(a_step(rank, 3) for rank in RANKS)), NOTHING),
    ),
}
