"""What one rank of a pipeline does in a step: blocks of forward and backward between its messages.

Backward runs on autograd's own thread, so the thread that launched a kernel tells the two apart; the messages tell one
block from the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from tracelens.collectives import Primitive
from tracelens.results import Phase
from tracelens.summary import RankSummary

FORWARD, BACKWARD, WEIGHT, OTHER = "forward", "backward", "backward_weight", "other"
LETTERS = {FORWARD: "F", BACKWARD: "B", WEIGHT: "W"}

_MESSAGES = [Primitive.send.value, Primitive.recv.value]
# Less compute than this share of the longest block of its kind is bookkeeping: it is no forward or backward.
_SMALL = 0.2
# More backward blocks than forward blocks by this factor: inputs and weights are computed apart.
_SPLIT = 1.25


class ComputeBlock(NamedTuple):
    """Compute of one kind without a message in between; ns on the clock of its rank."""

    kind: str
    start_ns: int
    end_ns: int
    busy_ns: int
    segment: int
    """Messages that the step had issued before."""


@dataclass(frozen=True, slots=True)
class StageStep:
    """One rank in one step.

    Attributes:
        rank_index: number of the summary.
        rank: the rank.
        messages: calls that send or receive in the order of issue: `call`, `primitive`, `peer`.
        blocks: compute by time of launch.
    """

    rank_index: int
    rank: int
    messages: pl.DataFrame
    blocks: tuple[ComputeBlock, ...]

    @property
    def order(self) -> str:
        """The blocks as letters."""
        return "".join(LETTERS[block.kind] for block in self.blocks if block.kind in LETTERS)

    def of_kind(self, kind: str) -> list[ComputeBlock]:
        """The blocks of one kind."""
        return [block for block in self.blocks if block.kind == kind]


def cut_blocks(summary: RankSummary, rank_index: int, step: int) -> StageStep:
    """Cut the compute of a step at the messages.

    Args:
        summary: the rank.
        rank_index: its number among the summaries.
        step: index of the step.
    """
    of_step = summary.calls.filter(pl.col("step") == step)
    messages = of_step.filter(pl.col("primitive").is_in(_MESSAGES)).select("call", "primitive", "peer", "thread")
    issued = messages.select("call", segment=pl.int_range(1, pl.len() + 1, dtype=pl.Int64)).sort("call")
    rows = (
        summary.compute.filter(pl.col("step") == step)
        .with_columns(at=pl.col("after_call").cast(pl.Int64).fill_null(-1))
        .sort("at", "start_ns")
        .join_asof(issued.with_columns(pl.col("call").cast(pl.Int64)), left_on="at", right_on="call")
        .with_columns(
            pl.col("segment").fill_null(0),
            busy=pl.min_horizontal("busy_ns", pl.col("end_ns") - pl.col("start_ns")),
            kind=pl.when(_is_backward(summary, messages)).then(pl.lit(BACKWARD)).otherwise(pl.lit(FORWARD)),
        )
        .with_columns(block=pl.struct("segment", "kind").rle_id())
    )
    blocks = rows.group_by("block", maintain_order=True).agg(
        pl.col("kind").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        busy_ns=pl.col("busy").sum(),
        segment=pl.col("segment").first(),
    )
    found = [ComputeBlock(*row) for row in blocks.drop("block").iter_rows()]
    return StageStep(rank_index, summary.rank or 0, messages, _name_weights(_join(_set_small_apart(found))))


def _is_backward(summary: RankSummary, messages: pl.DataFrame) -> pl.Expr:
    """Whether a thread is one of autograd's: it issues calls of backward and none of forward.

    Where no call tells, it is any thread but the one that issues the messages.
    """
    threads = {
        phase: set(summary.calls.filter(pl.col("phase") == phase)["thread"].drop_nulls())
        for phase in (Phase.forward.value, Phase.backward.value)
    }
    backward = threads["backward"] - threads["forward"]
    if backward:
        return pl.col("thread").is_in(list(backward))
    return ~pl.col("thread").is_in(messages["thread"].drop_nulls().mode().to_list())


def _set_small_apart(blocks: Sequence[ComputeBlock]) -> list[ComputeBlock]:
    """Call bookkeeping `other`, and everything after the last backward, which is the optimizer's."""
    longest = {kind: max((b.busy_ns for b in blocks if b.kind == kind), default=0) for kind in (FORWARD, BACKWARD)}
    last = max((i for i, b in enumerate(blocks) if b.kind == BACKWARD), default=len(blocks))
    if last < len(blocks):
        forward = [b.busy_ns for b in blocks[:last] if b.kind == FORWARD]
        longest[FORWARD] = max(forward, default=0)
    return [
        block._replace(kind=OTHER) if i > last or block.busy_ns < _SMALL * longest[block.kind] else block
        for i, block in enumerate(blocks)
    ]


def _join(blocks: Sequence[ComputeBlock]) -> list[ComputeBlock]:
    """Join blocks of one kind and segment that only bookkeeping stood between."""
    joined: list[ComputeBlock] = []
    for block in blocks:
        before = next((i for i in range(len(joined) - 1, -1, -1) if joined[i].kind != OTHER), None)
        if block.kind != OTHER and before is not None and _is_continued(joined[before], block):
            old = joined[before]
            joined[before] = old._replace(end_ns=max(old.end_ns, block.end_ns), busy_ns=old.busy_ns + block.busy_ns)
        else:
            joined.append(block)
    return joined


def _is_continued(one: ComputeBlock, other: ComputeBlock) -> bool:
    return (one.kind, one.segment) == (other.kind, other.segment)


def _name_weights(blocks: Sequence[ComputeBlock]) -> tuple[ComputeBlock, ...]:
    """Tell backward of the weights from backward of the inputs: it follows its message instead of waiting for one."""
    forwards = sum(block.kind == FORWARD for block in blocks)
    if sum(block.kind == BACKWARD for block in blocks) <= _SPLIT * forwards:
        return tuple(blocks)
    named: list[ComputeBlock] = []
    previous = None
    for block in blocks:
        owes = block.kind == BACKWARD and previous is not None and previous.kind == BACKWARD
        if owes and previous is not None and block.segment == previous.segment + 1:
            block = block._replace(kind=WEIGHT)
        named.append(block)
        if block.kind != OTHER:
            previous = block
    return tuple(named)
