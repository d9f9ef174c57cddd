"""What the traffic says of the layout behind it: the configuration with its doubts, and what it rests on."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tracelens.collectives import Primitive
from tracelens.results import Finding
from tracelens.topology import Axis

Workload = Literal["training", "inference", "recommendation", "benchmark", "unknown"]
Sharding = Literal["none", "zero1", "zero2", "zero3"]
ContextKind = Literal["ring_p2p", "ring_alltoall", "allgather", "ulysses", "ulysses_ring"]
Schedule = Literal[
    "none", "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zero_bubble", "zbv", "dualpipe", "dualpipev"
]
Recompute = Literal["none", "selective", "op_selective", "full"]


class InferredConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The parallel configuration behind a trace. null: the trace can't say; an axis of size 1 is 1."""

    world_size: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    """All data-parallel replicas and shards, without cp: world_size = tp · pp · cp · dp."""
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    """Ranks over which each expert is cut; 1 where there are no experts."""
    dp_shard: int | None = None
    """Ranks of one data-parallel shard group, without cp."""
    dp_replicate: int | None = None
    sharding: Sharding | None = None
    reshard_after_forward: bool | None = None
    param_shard_degree: int | None = None
    """Over how many ranks parameters are sharded, cp included; likewise for gradients and optimizer state."""
    grad_shard_degree: int | None = None
    optim_shard_degree: int | None = None
    sequence_parallel: bool | None = None
    cp_kind: ContextKind | None = None
    schedule: Schedule | None = None
    vp: int | None = None
    num_microbatches: int | None = None
    micro_batch: int | None = None
    """Sequences of a micro-batch."""
    seq_len: int | None = None
    """Tokens of a whole sequence, before context parallelism cuts it."""
    tokens_per_microbatch: int | None = None
    """micro_batch · seq_len: all tokens of one micro-batch of one data-parallel rank, before cp and tp cut them."""
    hidden: int | None = None
    layers_per_stage: int | None = None
    params_per_rank: int | None = None
    """Parameters of this rank's part of the model before data-parallel sharding."""
    grad_dtype: str | None = None
    recompute: Recompute | None = None
    framework: str | None = None
    rank_order: str | None = None
    """Axes from the innermost (neighbouring ranks) outwards, such as `tp-cp-dp-pp`."""


class InferredAxis(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of the device mesh."""

    name: Axis
    size: int
    stride: int | None


class FieldEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for and against the value of one field."""

    field: str
    supports: tuple[str, ...] = msgspec.field(name="for")
    against: tuple[str, ...] = ()


class PrimitiveShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one primitive in all communication, and which strategy it points at."""

    primitive: Primitive
    wire_bytes_pct: float | None
    busy_pct: float | None
    points_at: str


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """The parallel configuration worked out backwards from the traffic, with its doubts."""

    workload: Workload
    status: Literal["unique", "ambiguous", "undetermined"]
    config: InferredConfig
    axes: tuple[InferredAxis, ...] = ()
    confidence: dict[str, float] = {}
    undetermined: dict[str, tuple[Any, ...]] = {}
    """Fields that the evidence can't settle, with the values left."""
    constraints_checked: int = 0
    """Equations that held after the unknowns were solved."""
    free_parameters: int = 0
    """Unknowns that were solved from the trace."""
    evidence: tuple[FieldEvidence, ...] = ()
    would_decide: tuple[str, ...] = ()
    launcher_line: str | None = None
    """The configuration as options of a launcher."""
    primitives: tuple[PrimitiveShare, ...] = ()
    findings: tuple[Finding, ...] = ()
