"""A pipeline of four stages under the GPipe schedule: all forwards, then all backwards (Huang et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.distributed as dist

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close, check_values
from tracelens.collectives import Primitive


class Pipeline(Exercise):
    """Four layers x -> tanh(x W), one on each rank, and four micro-batches."""

    name = "pp"
    title = "GPipe: activations passed on, gradients passed back"
    layout: ClassVar = {"pp": WORLD_SIZE, "schedule": "gpipe", "microbatches": 4}

    MICROBATCHES, ROWS, HIDDEN = 4, 2, 8

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        random = torch.Generator().manual_seed(0)
        self.weights = torch.randn(WORLD_SIZE, self.HIDDEN, self.HIDDEN, generator=random) / 3
        self.batch = torch.randn(self.MICROBATCHES, self.ROWS, self.HIDDEN, generator=random)

        reference = self.weights.clone().requires_grad_()
        for microbatch in self.batch:
            x = microbatch
            for weight in reference:
                x = torch.tanh(x @ weight)
            x.square().sum().backward()
        self.reference_grad = reference.grad[self.rank]

    def step(self) -> Iterator[Check]:
        """One batch: four forwards, four backwards."""
        weight = self.weights[self.rank].clone().requires_grad_()
        is_first, is_last = self.rank == 0, self.rank == WORLD_SIZE - 1

        kept = []  # input and output of every micro-batch: what the backward pass needs, all at once
        for microbatch in self.batch:
            x = microbatch.clone() if is_first else self._receive_from(self.rank - 1)
            x.requires_grad_()
            out = torch.tanh(x @ weight)
            if not is_last:
                dist.send(out.detach(), self.rank + 1)
            kept.append((x, out))

        held = len(kept)
        while kept:
            x, out = kept.pop(0)
            if is_last:
                out.square().sum().backward()
            else:
                out.backward(self._receive_from(self.rank + 1))
            if not is_first:
                dist.send(x.grad, self.rank - 1)

        yield check_values("micro-batches held before the first backward", [held], [self.MICROBATCHES])
        yield check_close("dW of this stage", weight.grad, self.reference_grad, tolerance=1e-5)

    def _receive_from(self, rank: int) -> torch.Tensor:
        received = torch.empty(self.ROWS, self.HIDDEN)
        dist.recv(received, rank)
        return received

    def sent(self) -> list[Sent]:
        """A message per micro-batch, boundary and direction."""
        neighbours = (self.rank > 0) + (self.rank < WORLD_SIZE - 1)
        messages, elements = self.MICROBATCHES * neighbours, self.ROWS * self.HIDDEN
        return [
            Sent.of([0, 1, 2, 3], primitive, calls=messages, elements=elements)
            for primitive in (Primitive.send, Primitive.recv)
        ]
