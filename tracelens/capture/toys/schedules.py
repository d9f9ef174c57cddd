"""Pipeline schedules through PyTorch's own `torch.distributed.pipelining`: 1F1B and interleaved 1F1B.

Narayanan et al. 2021, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close
from tracelens.collectives import Primitive

MICROBATCHES, ROWS, HIDDEN = 4, 2, 8


class Layer(nn.Module):
    """x -> tanh(x W)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


def summed_square(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Sum, not mean: micro-batches then add up to the batch."""
    return (out - target).square().sum()


class OneForwardOneBackward(Exercise):
    """Four stages of one layer: after the warm-up each rank alternates a forward and a backward."""

    name = "1f1b"
    title = "1F1B: as GPipe, but with at most p micro-batches in flight"
    layout: ClassVar = {"pp": WORLD_SIZE, "schedule": "1f1b", "microbatches": MICROBATCHES}
    chunks = 1
    """Stages on each rank."""

    def __init__(self) -> None:
        self.rank, self.stages = dist.get_rank(), WORLD_SIZE * self.chunks
        torch.manual_seed(0)
        layers = [Layer() for _ in range(self.stages)]
        self.batch = torch.randn(MICROBATCHES * ROWS, HIDDEN)
        self.target = torch.zeros_like(self.batch)
        summed_square(nn.Sequential(*layers)(self.batch), self.target).backward()
        # rank r has the stages r, r + 4, ...
        self.own = layers[self.rank :: WORLD_SIZE]
        self.reference = [layer.linear.weight.grad.clone() for layer in self.own]
        stages = [
            PipelineStage(layer, self.rank + index * WORLD_SIZE, self.stages, torch.device("cpu"))
            for index, layer in enumerate(self.own)
        ]
        self.schedule = self.make_schedule(stages)

    def make_schedule(self, stages: list[PipelineStage]) -> Any:
        """The schedule of this rank's only stage."""
        return Schedule1F1B(stages[0], MICROBATCHES, loss_fn=summed_square, scale_grads=False)

    def step(self) -> Iterator[Check]:
        """One batch through the pipeline and back."""
        for layer in self.own:
            layer.zero_grad()
        inputs = (self.batch,) if self.rank == 0 else ()
        target = {"target": self.target} if self.rank == WORLD_SIZE - 1 else {}
        self.schedule.step(*inputs, **target)
        for index, (layer, reference) in enumerate(zip(self.own, self.reference, strict=True)):
            yield check_close(f"dW of own layer {index}", layer.linear.weight.grad, reference, tolerance=1e-5)

    def sent(self) -> list[Sent]:
        """A message per micro-batch, direction and boundary of own stages; the outermost have one less."""
        ends = (self.rank == 0) + (self.rank == WORLD_SIZE - 1)
        messages = MICROBATCHES * (2 * self.chunks - ends)
        return [
            Sent.of([0, 1, 2, 3], primitive, calls=messages, elements=ROWS * HIDDEN)
            for primitive in (Primitive.send, Primitive.recv)
        ]


class InterleavedOneForwardOneBackward(OneForwardOneBackward):
    """Eight stages, two on each rank: a micro-batch comes past every rank twice, and the bubble halves."""

    name = "interleaved"
    title = "interleaved 1F1B: two stages on each rank"
    layout: ClassVar = {
        "pp": WORLD_SIZE,
        "vp": 2,
        "schedule": "interleaved_1f1b",
        "microbatches": MICROBATCHES,
    }
    chunks = 2

    def make_schedule(self, stages: list[PipelineStage]) -> Any:
        """One schedule for both stages of this rank."""
        return ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=summed_square, scale_grads=False)
