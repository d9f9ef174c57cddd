"""Documents with everything in them, and the same with names that try to be more than names."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from tests.report.build import MIB, MS, ordinary_document
from tests.report.test_pipeline import a_run, a_stage
from tests.report.test_waiting import a_last, a_link, a_skew
from tracelens.collectives import Primitive
from tracelens.compared import (
    Comparison,
    ComparisonRow,
    ExampleCall,
    MetricChange,
    RunComparison,
    RunRow,
    TimeVerdict,
    Verdict,
)
from tracelens.errors import Severity
from tracelens.inferred import FieldEvidence, Inference, InferredConfig, PrimitiveShare
from tracelens.many_ranks import Dilation, Pipeline, Routing
from tracelens.report.document import Document
from tracelens.results import CallsPerStep, Finding, Limit, Phase, SizeRow
from tracelens.topology import Axis

T = TypeVar("T")

# Every way of being more than text, in one name.
HOSTILE = (
    "::error::owned%0A::warning::x\r\n::error file=a,line=1::owned ##[error]owned "
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)><!-- ]]> &amp; </td></details> "
    "| **bold** `code` [link](javascript:alert(1)) ![img](http://evil.example/i.png) @user #12 www.evil.example "
    ":smile: {{ 7*7 }} {% raw %} \x1b[31mred\x1b]0;title\x07 \u202egpj.exe \x00 \ud800 \u2028"
)


def a_difference(**changes: Any) -> ComparisonRow:
    defaults: dict[str, Any] = {
        "term": "fsdp.block.all_gather",
        "rank_class": 0,
        "stage": None,
        "axis": Axis.dp_shard,
        "mesh": ((4, 2),),
        "primitive": Primitive.all_gather,
        "dtype": "bf16",
        "phase": Phase.forward,
        "predicted_calls": 8,
        "measured_calls": 8,
        "predicted_bytes": 256 * MIB,
        "measured_bytes": 256 * MIB,
        "ratio": 1.0,
        "predicted_overlap": "yes",
        "measured_overlap_pct": 80.0,
        "verdict": Verdict.match,
        "ranks": tuple(range(8)),
    }
    return ComparisonRow(**{**defaults, **changes})


def a_finding(code: str, severity: Severity, message: str, **changes: Any) -> Finding:
    return Finding(code=code, severity=severity, message=message, **changes)


_COMPARISON = Comparison(
    sizes_from="given",
    layout_from="metadata",
    model="llama3-8b",
    layout="--dp 4 --tp 2 --zero 3",
    rows=(
        a_difference(
            verdict=Verdict.more,
            primitive=Primitive.reduce_scatter,
            dtype="fp32",
            phase=Phase.backward,
            measured_bytes=512 * MIB,
            ratio=2.0,
            why="gradients are reduced in fp32",
            example=ExampleCall(rank=0, step=3, group="2", name="2", seconds=0.25, payload_bytes=64 * MIB, label="x"),
        ),
        a_difference(
            verdict=Verdict.unpredicted,
            term=None,
            axis=None,
            predicted_calls=None,
            predicted_bytes=None,
            ratio=None,
            why="no rule of the framework issues it",
        ),
        a_difference(),
    ),
    explained_bytes_fraction=0.25,
    absent_bytes_fraction=0.0,
    unsized_time_fraction=0.01,
    inside_tolerance=False,
    assumptions=("micro-batch taken as 1",),
)

_FINDINGS = (
    a_finding("TL302", Severity.error, "dp_shard reduce_scatter sends 512 MiB where the baseline has 256 MiB",
              name="bytes-differ", hint="reduce in bf16, or update the baseline", axis=Axis.dp_shard,
              measured=512.0 * MIB, limit=256.0 * MIB, unit="bytes", coverage="8 of 8 ranks"),
    a_finding("TL401", Severity.warning, "25.0 % of the step is exposed communication", name="exposed-communication",
              claimed_ns=20 * MS),
    a_finding("TL305", Severity.info, "gradients are reduced in fp32", name="reduction-in-fp32"),
)  # fmt: skip

_LIMITS = (
    Limit(name="expect.tp", verdict="kept", bound="exactly", measured=2, limit=2),
    Limit(name="limits.idle_fraction", verdict="kept", bound="at most", measured=0.031, limit=0.1, unit="fraction"),
    Limit(name="limits.link_fraction", verdict="not_checked", bound="at least", limit=0.6, unit="fraction"),
    Limit(name="limits.exposed_comm_fraction", verdict="exceeded", bound="at most", measured=0.25, limit=0.1,
          unit="fraction"),
    Limit(name="bytes: reduce_scatter of fp32 in groups [[4,2]]", verdict="broken", bound="exactly",
          measured=512.0 * MIB, limit=256.0 * MIB, unit="bytes"),
)  # fmt: skip

_INFERENCE = Inference(
    workload="training",
    status="ambiguous",
    config=InferredConfig(world_size=8, tp=2, dp=4, pp=1, sharding="zero3", sequence_parallel=True, hidden=4096),
    confidence={"tp": 0.998, "dp": 0.98},
    undetermined={"recompute": ("none", "selective")},
    constraints_checked=6,
    free_parameters=5,
    evidence=(FieldEvidence(supports=("two ranks beside one another",), field="tp", against=("no annotation",)),),
    would_decide=("a longer trace",),
    launcher_line="--tp 2 --dp 4 --zero 3",
    primitives=(PrimitiveShare(primitive=Primitive.all_gather, wire_bytes_pct=40.0, busy_pct=30.0, points_at="FSDP"),),
)


def judged_document() -> Document:
    """The ordinary job with inference, comparison, findings, sizes, pipeline and waiting: it fails."""
    stages = (
        a_stage(0, ("forward", 0, 20), ("send", 20, 30), ("backward", 60, 100)),
        a_stage(1, ("receive", 0, 30), ("forward", 30, 45), ("backward", 45, 75)),
    )
    pipeline = Pipeline(pipelines=1, stages=2, virtual_stages=1, microbatches=2, schedule="gpipe",
                        bubble_fraction=0.36, ideal_bubble_over_work=0.5, runs=(a_run(*stages),))  # fmt: skip
    ordinary = ordinary_document()
    group = ordinary.groups[-1].id
    return msgspec.structs.replace(
        ordinary,
        sizes=(_a_size(group, 64 * MIB, 4), _a_size(group, 4096, 12)),
        skew=(a_skew(group=group, last=a_last()),),
        links=(a_link(group=group, caveats=("not all members were read",)),),
        pipeline=pipeline,
        routing=Routing(dispatches=4, combines=4, unpaired=0, imbalance_median=1.2, imbalance_max=1.5, busiest=3,
                        combine_wait_ns=MS, explained_wait_fraction=0.5, calls=()),
        dilation=Dilation(ranks=(0, 1), kernels_alone=10, kernels_under=10, all_kernels_under=12, ratio=1.1,
                          alone_ns=10 * MS, cost_ns=MS, worst="nvjet"),
        inference=_INFERENCE,
        comparison=_COMPARISON,
        findings=_FINDINGS,
        limits=_LIMITS,
        passed=False,
    )  # fmt: skip


def _a_size(group: str, payload: int, calls: int) -> SizeRow:
    return SizeRow(
        rank_class=0,
        group=group,
        primitive=Primitive.reduce_scatter,
        dtype="fp32",
        phase=Phase.backward,
        from_bytes=payload,
        to_bytes=payload,
        steps_used=2,
        calls_per_step=CallsPerStep(min=calls, median=calls, max=calls, mean=calls),
        payload_bytes_per_step=payload * calls,
        wire_bytes_per_step=payload * calls * 3 // 4,
        busy_ns_per_step=MS,
        exposed_ns_per_step=MS // 2,
        busy_spread_ns=None,
        exposed_spread_ns=None,
    )


def run_document() -> Document:
    """The ordinary job held against another run: it fails, on bytes."""
    row = RunRow(axis=None, group="mesh_dp", primitive=Primitive.all_reduce, dtype="fp32", from_bytes=None,
                 to_bytes=None, base_calls=8, candidate_calls=9, base_bytes=MIB, candidate_bytes=2 * MIB, ratio=2.0,
                 base_busy_ns=MS, candidate_busy_ns=2 * MS, base_exposed_ns=0, candidate_exposed_ns=MS, spread_ns=100,
                 verdict=Verdict.more, time_verdict=TimeVerdict.slower, why="one call more")  # fmt: skip
    metric = MetricChange(name="exposed_comm_ns", base=MS, candidate=2 * MS, change=1.0, base_steps=3,
                          candidate_steps=3, spread=1e5, verdict=TimeVerdict.slower)  # fmt: skip
    comparison = RunComparison(base="yesterday", candidate="today", metrics=(metric,), rows=(row,),
                               explained_bytes_fraction=0.5, absent_bytes_fraction=0.0, unsized_time_fraction=0.0,
                               inside_tolerance=False)  # fmt: skip
    return msgspec.structs.replace(ordinary_document(), comparison=comparison, passed=False)


def with_hostile_names(value: T, annotation: Any = None) -> T:
    """The same with every free text of it led by `HOSTILE`; words of a fixed set stay."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(type(value))
        changes = {field.name: with_hostile_names(getattr(value, field.name), field.type) for field in fields}
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(with_hostile_names(item, annotation) for item in value)  # type: ignore[return-value]
    if type(value) is str and not _is_fixed(annotation):
        return f"{HOSTILE} {value}"  # type: ignore[return-value]
    return value


def _is_fixed(annotation: Any) -> bool:
    return get_origin(annotation) is Literal or any(_is_fixed(part) for part in get_args(annotation))
