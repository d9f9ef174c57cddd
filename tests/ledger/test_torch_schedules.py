"""Bubbles and activations against the orders that PyTorch generates, each played with F, B and W of one unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tracelens.errors import ModelError
from tracelens.ledger.layout import Framework, Layout, Schedule
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.schedules import idle_microbatches, microbatches_in_flight
from tracelens.ledger.validation import check_layout

schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="needs PyTorch (extra torch)")
pytestmark = pytest.mark.torch

CLASSES = {
    (Schedule.looped_bfs, 2): "ScheduleLoopedBFS",
    (Schedule.interleaved, 1): "ScheduleInterleaved1F1B",
    (Schedule.interleaved, 2): "ScheduleInterleaved1F1B",
    (Schedule.interleaved, 3): "ScheduleInterleaved1F1B",
    (Schedule.zero_bubble, 1): "ScheduleInterleavedZeroBubble",
    (Schedule.zero_bubble, 2): "ScheduleInterleavedZeroBubble",
    (Schedule.zero_bubble, 4): "ScheduleInterleavedZeroBubble",
    (Schedule.zbv, 2): "ScheduleZBVZeroBubble",
    (Schedule.dualpipev, 2): "ScheduleDualPipeV",
}
CASES = [(schedule, v, p) for schedule, v in CLASSES for p in (2, 3, 4, 8)]
FEW_AND_MANY = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24, 32)
UNITS = {"F": 1, "I": 1, "W": 1, "B": 2}
Orders = Mapping[int, Sequence[Any]]


def orders_of_torch(schedule: Schedule, v: int, p: int, m: int) -> Orders | None:
    """What every rank does in turn: (kind, stage, micro-batch) of each action's parts; None where torch refuses."""
    kind = getattr(schedules, CLASSES[schedule, v])
    # rank 0 plans for all ranks
    own = (0, 2 * p - 1) if schedule in (Schedule.zbv, Schedule.dualpipev) else range(0, p * v, p)
    stages = [
        SimpleNamespace(
            stage_index=index, group_rank=0, group_size=p, num_stages=p * v, device="cpu", has_backward=True,
            is_first=index == 0, is_last=index == p * v - 1, submod=None, stage_index_to_group_rank={},
        )
        for index in own
    ]  # fmt: skip
    try:
        plan = kind(stages, m, loss_fn=lambda output, target: output).pipeline_order
    except ValueError:
        return None
    return {rank: [_parts(action) for action in actions if _computes(action)] for rank, actions in plan.items()}


def _computes(action: Any) -> bool:
    return action is not None and (action.sub_actions is not None or action.computation_type.value in UNITS)


def _parts(action: Any) -> list[tuple[str, int, int]]:
    parts = action.sub_actions or (action,)
    return [(part.computation_type.value, part.stage_index, part.microbatch_index) for part in parts]


def play(orders: Orders, stages: int) -> int:
    """Units from the first start to the last end, where an action waits for the neighbour's and for its own rank."""
    done: dict[tuple[str, int, int], int] = {}
    clock, left = dict.fromkeys(orders, 0), {rank: list(actions) for rank, actions in orders.items()}

    def needs(kind: str, stage: int, batch: int) -> tuple[tuple[str, int, int], ...]:
        if kind == "W" or (kind == "F" and stage == 0):
            return ()
        if kind == "F":
            return (("F", stage - 1, batch),)
        return (("I", stage + 1, batch),) if stage < stages - 1 else (("F", stage, batch),)

    while any(left.values()):
        before = len(done)
        for rank, actions in left.items():
            while actions and all(need in done for part in actions[0] for need in needs(*part)):
                parts = actions.pop(0)
                start = max([clock[rank], *(done[need] for part in parts for need in needs(*part))])
                clock[rank] = start + sum(UNITS[kind] for kind, _, _ in parts)
                done |= {("I" if kind == "B" else kind, stage, batch): clock[rank] for kind, stage, batch in parts}
        assert len(done) > before, "the order can't be played"
    return max(clock.values())


def most_kept(actions: Sequence[Any]) -> int:
    """Chunks of micro-batches between their forward and the gradient of their weights, at the most."""
    kept: set[tuple[int, int]] = set()
    most = 0
    for kind, stage, batch in (part for parts in actions for part in parts):
        if kind == "F":
            kept.add((stage, batch))
        elif kind in "BW":
            kept.discard((stage, batch))
        most = max(most, len(kept))
    return most


@pytest.mark.parametrize(("schedule", "v", "p"), CASES)
def test_the_bubble_is_what_torch_leaves_idle(schedule: Schedule, v: int, p: int) -> None:
    played = 0
    for m in FEW_AND_MANY:
        orders = orders_of_torch(schedule, v, p, m)
        if orders is not None:
            played += 1
            # a micro-batch is F, B and W of every chunk
            assert idle_microbatches(schedule, p, m, v) * 3 * v == pytest.approx(play(orders, p * v) - 3 * v * m), m
    assert played >= 4


# torch's interleaved order of a single chunk warms up twice as far as 1F1B
@pytest.mark.parametrize(("schedule", "v", "p"), [case for case in CASES if case[:2] != (Schedule.interleaved, 1)])
def test_a_rank_keeps_as_many_micro_batches_as_in_torch_in_whole_rounds(schedule: Schedule, v: int, p: int) -> None:
    for m in (m for m in FEW_AND_MANY if m >= 2 * p and m % p == 0):
        layout = Layout(pp=p, vp=v, num_microbatches=m, schedule=schedule, framework=Framework.pytorch)
        for rank, actions in (orders_of_torch(schedule, v, p, m) or {}).items():
            assert microbatches_in_flight(layout, rank) == pytest.approx(most_kept(actions) / v), (m, rank)


@pytest.mark.parametrize(("schedule", "v", "p"), CASES)
def test_what_torch_refuses_is_refused(schedule: Schedule, v: int, p: int) -> None:
    model = load_preset("llama3-8b")
    for m in FEW_AND_MANY:
        layout = Layout(pp=p, vp=v, num_microbatches=m, schedule=schedule, framework=Framework.pytorch)
        if orders_of_torch(schedule, v, p, m) is not None:
            check_layout(model, layout)
            continue
        with pytest.raises(ModelError, match="num_microbatches"):
            check_layout(model, layout)
