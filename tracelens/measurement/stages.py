"""The stages of a pipeline: which ranks form one, in which order, with how many micro-batches, by which schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from tracelens.measurement.blocks import FORWARD, StageStep

Order = tuple[tuple[int, ...], str]


def order_stages(steps: dict[int, StageStep], first_send_ns: dict[int, int]) -> Order | None:
    """The ranks of a pipeline from the first stage to the last; None for a ring, where nobody is first.

    The rank that sends before it hears from anybody is the first stage, and everybody's first message comes from the
    stage before. Where that leaves it open (batched messages, missing ranks), the one who sends first stands first.

    Args:
        steps: what each rank does.
        first_send_ns: when each rank first sends, on one clock; ranks that do not send, or whose clock is unknown,
            are left out.

    Returns:
        The ranks and what their order rests on.
    """
    if all(_is_ring(step) for step in steps.values()):
        return None
    before = {rank: _first_source(step) for rank, step in steps.items()}
    heads = [rank for rank, source in before.items() if source is None]
    after = {source: rank for rank, source in before.items() if source is not None}
    if len(heads) == 1:
        chain = [heads[0]]
        while chain[-1] in after and len(chain) < len(steps):
            chain.append(after[chain[-1]])
        if set(chain) == set(steps):
            return tuple(chain), "messages"
    if set(first_send_ns) == set(steps):
        return tuple(sorted(steps, key=lambda rank: (first_send_ns[rank], rank))), "time"
    return tuple(sorted(steps)), "group"


def _first_source(step: StageStep) -> int | None:
    """From whom the first message comes; None where a rank sends first."""
    if step.messages.is_empty() or step.messages["primitive"][0] == "send":
        return None
    peer: int | None = step.messages["peer"][0]
    return peer


def _is_ring(step: StageStep) -> bool:
    """Whether the rank sends on with its first receive: messages that go around, as in ring attention."""
    kinds = step.messages["primitive"].head(2).to_list()
    between = any(block.segment == 1 for block in step.blocks)
    return sorted(kinds) == ["recv", "send"] and not between


def count_microbatches(order: Sequence[int], steps: dict[int, StageStep]) -> tuple[int | None, int | None]:
    """Micro-batches and virtual stages.

    Every rank runs m·v forward blocks. What the last rank sends on in forward are the m·(v-1) that have not reached
    the end; with more than two ranks in a ring they go back to the first one. In a V the last rank turns around: its
    two stages follow one another without a message, and are one block.
    """
    last = steps[order[-1]]
    forwards = {len(steps[rank].of_kind(FORWARD)) for rank in order[:-1]}
    if len(forwards) != 1 or not (total := forwards.pop()):
        return None, None
    at_the_turn = len(last.of_kind(FORWARD))
    if 2 * at_the_turn == total:
        return at_the_turn, 2
    if at_the_turn != total:
        return None, None
    passed_on = _sent_to(last, order[0]) if len(order) > 2 else 0
    if not passed_on:
        passed_on = _sent_after_forward(last)
    microbatches = total - passed_on
    if microbatches <= 0 or total % microbatches:
        return None, None
    return microbatches, total // microbatches


def _sent_to(step: StageStep, peer: int) -> int:
    return len(step.messages.filter((pl.col("primitive") == "send") & (pl.col("peer") == peer)))


def _sent_after_forward(step: StageStep) -> int:
    """Messages sent after a forward block: activations; what follows a backward block are gradients."""
    sent = [i for i, primitive in enumerate(step.messages["primitive"]) if primitive == "send"]
    return sum(_kind_before(step, message) == FORWARD for message in sent)


def _kind_before(step: StageStep, message: int) -> str | None:
    """What was computed last before a message; `segment` counts the messages before a block."""
    kinds = [block.kind for block in step.blocks if block.segment <= message and block.kind != "other"]
    return kinds[-1] if kinds else None


def name_schedule(orders: Sequence[str], microbatches: int | None, virtual: int | None) -> str | None:
    """The schedule whose order the stages follow; None for another one.

    Args:
        orders: letters of the blocks of each stage (`StageStep.order`), the first stage first.
        microbatches: m.
        virtual: v.

    Source: GPipe (Huang et al. 2019), 1F1B and interleaved 1F1B (Narayanan et al. 2021, section 2.2), looped breadth
    first (Lamy-Poirier 2023), zero bubble and its V (Qi et al. 2024).
    """
    if microbatches is None or virtual is None or not orders:
        return None
    turns = len(orders) > 1 and virtual == 2 and 2 * orders[-1].count("F") == orders[0].count("F")
    if any("W" in order for order in orders):
        return "zbv" if turns else "zero_bubble"
    total = microbatches * virtual
    forwards_first = all(order == "F" * total + "B" * total for order in orders)
    if virtual > 1:
        return "looped_bfs" if forwards_first else "interleaved_1f1b" if _alternate(orders) else None
    if forwards_first and len(orders) > 1:
        return "gpipe"
    return "1f1b" if all(o == _one_f_one_b(s, len(orders), total) for s, o in enumerate(orders)) else None


def _one_f_one_b(stage: int, stages: int, microbatches: int) -> str:
    ahead = min(microbatches, stages - 1 - stage)
    return "F" * ahead + "FB" * (microbatches - ahead) + "B" * ahead


def _alternate(orders: Sequence[str]) -> bool:
    """Whether every stage runs forward, then one and one, then backward, each stage no further ahead than the last."""
    ahead = [len(order) - len(order.lstrip("F")) for order in orders]
    shapes = all(
        order == "F" * (a - 1) + "FB" * (len(order) // 2 - a + 1) + "B" * (a - 1)
        for order, a in zip(orders, ahead, strict=True)
    )
    return shapes and all(a >= b for a, b in pairwise(ahead))
