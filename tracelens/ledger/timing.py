"""Time of a step on a given cluster: links by bytes, compute by operations, and everything assumed said aloud.

No constant here is fitted to a published step time; `benchmarks/time_model.py` says how far off that leaves us.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.ledger.bindings import bind_layout, bind_stage
from tracelens.ledger.cluster import Cluster
from tracelens.ledger.groups import mesh_size
from tracelens.ledger.layout import Layout
from tracelens.ledger.memory import held_parameters
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.results import LedgerRow, Overlap, TermTime, TimeEstimate
from tracelens.ledger.schedules import idle_microbatches
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.work import Work, count_passes, model_flop_per_token, stage_work
from tracelens.results import Phase
from tracelens.topology import Axis

PARTLY_HIDDEN = 0.5
"""Share of a partly overlapped call that compute covers."""
OPTIMIZER_BYTES = 30
"""Read and written per parameter of an Adam step: gradient, master, two moments, weight."""
_ONCE_PER_STEP = frozenset({Axis.dp, Axis.dp_shard, Axis.dp_replicate, Axis.expert_dp, Axis.embedding_grad})


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one pipeline rank in a step, the bubble left out."""

    compute: float
    inner_exposed: float
    """Exposed communication inside micro-batches, which the bubble stretches."""
    outer_exposed: float
    """Exposed communication once per step."""
    terms: tuple[TermTime, ...]

    @property
    def busy(self) -> float:
        """Everything together."""
        return self.compute + self.inner_exposed + self.outer_exposed


def link_seconds(row: LedgerRow, cluster: Cluster) -> float:
    """Time of all calls of a row on its link: latency of every call, and bytes over the reachable bandwidth."""
    if not row.wire_bytes:
        return 0.0
    speed = cluster.link(row.link)
    steps = max(1.0, math.log2(max(2, mesh_size(row.mesh))))
    return row.calls * steps * speed.latency_s + row.wire_bytes / (speed.bytes_per_s * speed.efficiency)


def compute_seconds(work: Work, layout: Layout, cluster: Cluster) -> float:
    """Forward and backward of one micro-batch on one rank."""
    passes = count_passes(layout)
    products = passes.matrix * work.matrix_flop
    attention = passes.attention * work.attention_flop
    if layout.flash_attention:
        # the causal half of the square, at the rate of a fused kernel
        fused = attention / 2 / (cluster.peak_flop_per_s * cluster.attention_efficiency)
    else:
        fused, products = 0.0, products + attention
    moved = passes.memory * work.memory_bytes / (cluster.memory_bytes_per_s * cluster.memory_efficiency)
    return products / (cluster.peak_flop_per_s * cluster.gemm_efficiency) + fused + moved


def estimate_time(
    model: ModelSpec,
    layout: Layout,
    cluster: Cluster,
    stages: Sequence[tuple[StagePlan, tuple[LedgerRow, ...]]],
) -> TimeEstimate:
    """The step that the slowest stage dictates.

    Args:
        model: sizes.
        layout: degrees.
        cluster: links and arithmetic.
        stages: pipeline ranks with their ledger rows.
    """
    sizes = bind_layout(model, layout)
    timed = [_time_stage(stage_work(model, layout, plan, sizes), layout, cluster, rows) for plan, rows in stages]
    optimizer = max(_optimizer_seconds(model, layout, cluster, plan, sizes) for plan, _ in stages)
    slowest = max(timed, key=lambda stage: stage.busy)
    per_microbatch = (slowest.compute + slowest.inner_exposed) / layout.num_microbatches
    idle = idle_microbatches(layout.kind_of_schedule, layout.pp, layout.num_microbatches, layout.vp)
    bubble = idle * per_microbatch
    step = slowest.busy + bubble + optimizer
    tokens = layout.dp * layout.num_microbatches * sizes["b"] * sizes["s"]
    flop = model_flop_per_token(model, sizes) * tokens / layout.world_size
    return TimeEstimate(
        cluster=cluster.name,
        step_seconds=step,
        compute_seconds=slowest.compute,
        exposed_seconds=slowest.inner_exposed + slowest.outer_exposed,
        bubble_seconds=bubble,
        optimizer_seconds=optimizer,
        mfu=flop / step / cluster.peak_flop_per_s,
        model_flops=flop,
        terms=slowest.terms,
        assumptions=_assumptions(cluster, flash=layout.flash_attention),
    )


def _time_stage(work: Work, layout: Layout, cluster: Cluster, rows: tuple[LedgerRow, ...]) -> StageTime:
    compute = layout.num_microbatches * compute_seconds(work, layout, cluster)
    links = [(row, link_seconds(row, cluster)) for row in rows]
    hidden = sum(seconds for row, seconds in links if row.overlap is Overlap.yes)
    # what could be hidden is, as far as there is compute to hide it behind
    uncovered = max(0.0, hidden - compute) / hidden if hidden else 0.0
    shares = {Overlap.yes: uncovered, Overlap.partial: 1 - PARTLY_HIDDEN, Overlap.no: 1.0}
    terms = tuple(
        TermTime(
            term=row.term,
            stage=row.stage,
            link_seconds=seconds,
            exposed_seconds=seconds * shares[row.overlap],
        )
        for row, seconds in links
    )
    inner = outer = 0.0
    for (row, _), time in zip(links, terms, strict=True):
        if row.axis in _ONCE_PER_STEP or row.phase is Phase.optimizer:
            outer += time.exposed_seconds
        else:
            inner += time.exposed_seconds
    return StageTime(compute=compute, inner_exposed=inner, outer_exposed=outer, terms=terms)


def _optimizer_seconds(
    model: ModelSpec, layout: Layout, cluster: Cluster, plan: StagePlan, sizes: dict[str, int]
) -> float:
    held = held_parameters(model, plan, sizes | bind_stage(plan))
    own = held.dense / layout.shard_ranks + held.expert / layout.expert_shard_ranks
    return own * OPTIMIZER_BYTES / (cluster.memory_bytes_per_s * cluster.memory_efficiency)


def _assumptions(cluster: Cluster, *, flash: bool) -> tuple[str, ...]:
    return (
        f"matrix products at {cluster.gemm_efficiency:.0%} of {cluster.peak_flop_per_s / 1e12:.0f} TFLOP/s, "
        "whatever their size",
        f"everything else moves what layers keep once out and once in, at {cluster.memory_efficiency:.0%} of "
        f"{cluster.memory_bytes_per_s / 1e12:.2f} TB/s",
        f"nvlink {cluster.nvlink.efficiency:.0%} of {cluster.nvlink.bytes_per_s / 1e9:.0f} GB/s, "
        f"ib {cluster.ib.efficiency:.0%} of {cluster.ib.bytes_per_s / 1e9:.0f} GB/s, one call at a time",
        f"calls marked partial are hidden to {PARTLY_HIDDEN:.0%}, those marked yes as far as compute reaches",
        f"flash attention at {cluster.attention_efficiency:.0%} of the peak, half the square computed"
        if flash
        else "attention writes its scores to memory",
        "balanced stages and experts, no data loading, no stragglers",
        "MFU counts 6 operations per active weight and token and attention over the whole square",
    )
