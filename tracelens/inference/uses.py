"""A use: one role of one group of a rank, and the small questions that all rules ask of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracelens.inference.observations import Call, RankView

UNDECIDED = "ulysses or experts"


class Role(StrEnum):
    """What a group is for."""

    weights = "weights"  # parameters gathered for use, gradients scattered: ZeRO-3, FSDP
    updates = "updates"  # gradients reduced, parameters gathered after the update: ZeRO-1 and 2
    grads = "grads"  # gradients all-reduced
    shard_grads = "shard_grads"  # shards of gradients all-reduced across replicas: HSDP
    tensor = "tensor"
    context = "context"
    experts = "experts"
    expert_tensor = "expert_tensor"  # dispatched tokens gathered for ranks that hold parts of the same experts
    pipeline = "pipeline"
    tables = "tables"  # embedding tables of recommendation models
    tied = "tied"  # gradient of an embedding that first and last stage share
    batch = "batch"  # tokens and labels handed out


@dataclass(frozen=True, slots=True)
class Use:
    """One role of one group of a rank, with the calls that show it."""

    role: Role
    group: int
    calls: tuple[Call, ...]
    confidence: float
    why: str
    detail: str | None = None
    """How context is exchanged, how experts are reached, whether TP is sequence parallel (`sp`)."""


def sizeable(calls: Sequence[Call]) -> list[Call]:
    """Calls with tensors of floating point: no bookkeeping, no counts, no indices."""
    return [c for c in calls if not c.is_scalar and not c.is_integer]


def sizes_of(calls: Sequence[Call]) -> set[int | None]:
    """The sizes of calls."""
    return {c.elements for c in calls}


def in_words(number: int | None) -> str:
    """A count of elements for people."""
    if number is None:
        return "unknown size"
    return f"{number:,}"


def matmul_between(view: RankView, first: Call, second: Call) -> int:
    """Time of the matrix products launched between two calls, ns."""
    return sum(gap.matmul_ns for gap in view.gaps_between(first.index, second.index))
