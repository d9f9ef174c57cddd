"""What is told of many ranks: clocks, waiting, pipelines, experts, dilation and links; part of the results.

Plain immutable structs like those of `results`, one field per JSON key.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tracelens.topology import Axis


class ClockSource(StrEnum):
    """What places the clock of a rank; `reference` is the rank whose clock all others are told on."""

    reference = "reference"
    collectives = "collectives"
    messages = "messages"


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """How far the clock of a rank is ahead of that of the lowest rank: calls that end on all ranks at once tell it."""

    rank: int
    offset_ns: int
    spread_ns: int | None
    """Median distance of the single calls from the offset: how well it is known; null of one call, which has none."""
    calls: int
    hops: int
    """Ranks between this one and the reference, each adding its error; 1 shares calls with the reference itself."""
    source: ClockSource


class Cause(StrEnum):
    """What the last rank to arrive did before, more than the others.

    `receive` stood behind a receive on its GPU; `launch` had nothing to do: its CPU had launched nothing in time.
    """

    compute = "compute"
    communication = "communication"
    receive = "receive"
    launch = "launch"
    unknown = "unknown"


class LastArrival(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that the others wait for most, by time."""

    rank: int
    calls: int
    """How often it came last."""
    of: int
    """Calls in which somebody waited; the others tell nothing about who is late."""
    systematic: bool
    """Last so often that chance would have it for some rank in less than one group of twenty, and in half of the calls
    or with half of the waiting."""
    too_few: bool = False
    """Not systematic, and not shown to be chance either: too few calls to rule out a rank that is late in half of them,
    or half of the waiting is for this one."""
    waited_ns: int | None = None
    """The part of `wait_ns` in the calls to which it came last."""
    late_ns: int
    """Median over those calls of how long the first waited for it."""
    late_total_ns: int | None = None
    """The sum of the same."""
    cause: Cause
    cause_ns: int | None
    """Mean over those calls of what it did more than the middle one of the others, at most how late it was."""


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank waits in one group."""

    rank: int
    wait_ns: int
    calls: int
    last: int
    """Calls that it entered last while others waited."""


class Skew(msgspec.Struct, frozen=True, kw_only=True):
    """Transfer and waiting of one primitive in one process group, over all calls that could be paired.

    The shortest participant's time is the transfer (at most: with members missing the true one may be shorter), what
    the others spend beyond it is waiting.
    """

    group: str | None
    name: str | None
    axis: Axis | None = None
    primitive: str
    """A primitive, or `p2p`: the messages of the group, sends with their receives."""
    size: int | None
    """Ranks of the group; null when unknown."""
    ranks: tuple[int, ...]
    """Those that were read."""
    pairing: str
    """`seq`, `ordinal`, `shifted` or `step`: how the calls of the ranks were paired."""
    matched_calls: int
    """Found on all ranks that were read."""
    partly_matched_calls: int
    unmatched_calls: int
    """Found on one rank only."""
    conflicting_calls: int
    """Paired, but not of equal primitive, dtype and size: not used."""
    late_profiler_calls: int
    """Entered by some ranks before the recording of the last had begun: not used."""
    transfer_ns: int | None
    """Sum over the calls used; null when no call has times on two ranks."""
    wait_ns: int | None
    """Sum over calls and ranks, mean per rank."""
    behind_receive_ns: int | None
    """The part of the waiting in which the last rank was held up by a receive in front: charge it to that receive."""
    complete: bool
    """Whether all members were read: only then is the transfer exact."""
    busbw_bytes_per_s: float | None
    """Of the transfer, median over calls; null with less than half of the members."""
    last: LastArrival | None
    """null where nobody waits for anybody."""
    waits: tuple[RankWait, ...]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a stage does, ns since the pipeline began."""

    kind: str
    """`forward`, `backward` (of the inputs alone where `backward_weight` follows apart), `other`, `send`, `receive`."""
    start_ns: int
    end_ns: int
    number: int | None = None
    """Counts the blocks of a kind in the order of execution: micro-batch, or micro-batch of a virtual stage."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a pipeline in one step."""

    stage: int | None
    """From 0; null where ranks are missing and the order does not tell."""
    rank: int
    order: str
    """The compute of the step in order: `FFFFBFBFBBB`; W is backward of the weights."""
    forward_ns: int
    """Median compute of a forward block."""
    backward_ns: int
    work_ns: int
    """Compute, and communication in other groups that compute does not hide."""
    transfer_ns: int
    """Messages, as long as their transfer takes, outside of compute."""
    bubble_ns: int
    """What is left of the span: idling and waiting inside SendRecv."""
    wait_in_p2p_ns: int
    """The part of the bubble that hides inside SendRecv kernels."""
    blocks: tuple[Block, ...]


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline (one rank of each stage) in one step."""

    group: str | None
    ranks: tuple[int, ...]
    """Those that were read, in the order of the stages."""
    complete: bool
    """Whether the ranks of all stages were read: only then are there micro-batches and a bubble to tell."""
    order_from: str
    """`messages` (who hears first from whom), `time` (who sends first), or `group` (order of the ranks)."""
    step: int | None
    stages: tuple[Stage, ...]
    virtual_stages: int | None
    microbatches: int | None
    schedule: str | None
    """`gpipe`, `1f1b`, `interleaved_1f1b`, `looped_bfs`, `zero_bubble`, `zbv`; null for any other order."""
    span_ns: int
    """From the first compute of any stage to the last backward of any."""
    bubble_fraction: float | None
    """Bubble over span, mean of the stages."""
    bubble_over_work: float | None
    """Bubble over work: what (p-1)/(v·m) promises for equal stages."""
    ideal_bubble_over_work: float | None
    """(p-1)/(v·m), Narayanan et al. 2021, section 2.2; null where m is unknown."""
    imbalance: float | None
    """Longest work of a stage over the mean of all."""
    clocks: bool
    """Whether the clocks of all stages are known; if not, every stage is drawn from its own beginning."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines of a job, a run per group and step; of many alike the first ones are measured."""

    pipelines: int
    """How many groups hold one, measured or not."""
    stages: int
    virtual_stages: int | None
    microbatches: int | None
    schedule: str | None
    bubble_fraction: float | None
    """Mean over all runs."""
    ideal_bubble_over_work: float | None
    runs: tuple[PipelineRun, ...]


class ExpertCall(msgspec.Struct, frozen=True, kw_only=True):
    """One dispatch of tokens to experts, over the ranks that were read."""

    group: str | None
    step: int | None
    phase: str | None
    layer: int
    """Number of the dispatch in its step and phase: a layer, or a layer of a micro-batch."""
    ranks: tuple[int, ...]
    sent: tuple[int, ...]
    """By rank, in `unit`; what it keeps is included."""
    received: tuple[int, ...]
    unit: str
    """`tokens` where splits give rows of more than one element, else `elements`."""
    imbalance: float | None
    """ρ: most received over the mean of the ranks; null with members missing or nothing received."""
    busiest: int
    """The rank that receives most."""


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly tokens are spread over experts, and what that explains."""

    dispatches: int
    combines: int
    unpaired: int
    """All-to-alls with splits that are neither."""
    imbalance_median: float | None
    imbalance_max: float | None
    busiest: int | None
    """The rank that receives most, most often; null when nobody does in more than half of the calls."""
    combine_wait_ns: int | None
    """Waiting in the combines, all ranks together."""
    explained_wait_fraction: float | None
    """Part of it that the ranks' unequal loads explain, at the compute per token that they show; null when unknown."""
    calls: tuple[ExpertCall, ...]


class Dilation(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer matrix products run while communication runs beside them, over the whole recording."""

    ranks: tuple[int, ...]
    """Those whose products could be compared."""
    kernels_alone: int
    """Of the products that were compared."""
    kernels_under: int
    """Likewise; communication overlaps them by nine tenths or more, those in between count on neither side."""
    all_kernels_under: int
    """All matrix products under communication on all ranks read, those included that never ran alone."""
    ratio: float
    """Time under communication over time alone, of the same products."""
    alone_ns: int
    """What the compared products under communication would take alone, by the medians, all ranks together."""
    cost_ns: int
    """What they took longer than that; negative where they took less."""
    worst: str | None
    """The kernel that pays most."""


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidth of one group and primitive for calls of about one size."""

    group: str | None
    primitive: str
    from_bytes: int
    """The payload is at least this, and less than four times as much."""
    calls: int
    transfer_ns: int
    """Median of the shortest participant."""
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    spans_nodes: bool | None
    inter_node_bytes_per_s: float | None
    """What crosses nodes per GPU in a hierarchical all-reduce: busbw·(k-1)/(n-1) for k nodes and n ranks."""
    link_bytes_per_s: float | None
    """Line rate per GPU and direction, as given or as the device is sold; null when unknown."""
    link_fraction: float | None
    complete: bool
    caveats: tuple[str, ...] = ()
