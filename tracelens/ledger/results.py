"""What `predict` returns: plain immutable structs, one field per JSON key of the contract."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tracelens.collectives import Primitive
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.results import Phase
from tracelens.topology import Axis


class Link(StrEnum):
    """The slowest link that a group crosses."""

    nvlink = "nvlink"
    """Within a node."""
    ib = "ib"
    """Between nodes."""


class Overlap(StrEnum):
    """Whether the framework can hide a call behind compute."""

    yes = "yes"
    partial = "partial"
    no = "no"


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of call of one rank of a pipeline stage, per step."""

    term: str
    axis: Axis
    group: GroupKind
    """Which set of ranks: an axis may use several."""
    mesh: tuple[tuple[int, int], ...]
    """(size, stride), innermost first; empty for a group of one rank."""
    primitive: Primitive
    dtype: str
    phase: Phase
    stage: int | None
    """Pipeline rank; null where every rank is alike."""
    calls: int | float
    elements: int | float
    """Elements of the full buffer of one call."""
    payload_bytes: int | float
    """Bytes of all calls of a step."""
    wire_bytes: int | float
    """Bytes that one GPU sends in a step."""
    link: Link
    overlap: Overlap
    formula: str
    source: str
    elements_vary: bool = False
    """Calls differ in size, as where routing decides, and `elements` is their mean."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU holds from step to step."""

    params_bytes: int
    grads_bytes: int
    optim_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three together."""
        return self.params_bytes + self.grads_bytes + self.optim_bytes


class Activations(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU keeps for backward."""

    per_layer_bytes: int
    """One layer, one micro-batch."""
    layers: float
    """Layers on the pipeline rank."""
    microbatches_in_flight: float
    """Micro-batches (of all its layers) that wait for their backward at the worst moment."""
    ends_bytes: int
    """Embedding output, final norm and logits of the stages that hold them."""
    total_bytes: int
    formula: str


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one pipeline rank."""

    stage: int
    layers: int
    parameters: int
    """Parameters that one rank of the stage computes with, sharding not counted."""
    state: State
    activations: Activations
    total_bytes: int
    """States and activations at the worst moment."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the fullest GPU needs, against what a GPU of the cluster has."""

    stage: int
    """The pipeline rank that holds most."""
    needed_bytes: int
    """States and activations at the worst moment."""
    available_bytes: int | None
    """Memory of a GPU of the cluster; null without a cluster."""
    fits: bool | None
    """Whether what is counted fits; null where `available_bytes` is."""
    not_counted: tuple[str, ...]
    """What takes memory too."""


class TermTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one row on its link."""

    term: str
    stage: int | None
    link_seconds: float
    exposed_seconds: float


class TimeEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a step, with all it rests on."""

    cluster: str
    step_seconds: float
    compute_seconds: float
    exposed_seconds: float
    """Communication that no compute covers, on the slowest stage."""
    bubble_seconds: float
    optimizer_seconds: float
    mfu: float
    model_flops: float
    """FLOP of the whole model and step, per GPU, without recompute."""
    terms: tuple[TermTime, ...]
    assumptions: tuple[str, ...]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What a model under a layout sends, holds and waits for."""

    schema_version: int = 1
    model: ModelSpec
    layout: Layout
    parameters: int
    rows: tuple[LedgerRow, ...]
    state: State
    """Of the stage that holds most."""
    activations: Activations
    """Of the stage that holds most."""
    stages: tuple[StageMemory, ...]
    memory: Memory
    bubble_fraction: float
    busiest_stage: int | None
    """The pipeline rank that sends most."""
    time: TimeEstimate | None = None

    def rows_of_stage(self, stage: int | None) -> tuple[LedgerRow, ...]:
        """The rows of one pipeline rank, those that every rank shares included."""
        return tuple(row for row in self.rows if row.stage is None or row.stage == stage)
