"""ZeRO by hand on a small transformer: shard the optimizer, then the gradients, then the parameters.

Rajbhandari et al. 2020, section 5. Every rank owns a quarter of each unit's parameters, laid flat. One step of SGD
with momentum; the reference is one process with the batch of all four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close
from tracelens.capture.toys.transformer import make_batch, make_transformer, next_token_loss
from tracelens.collectives import Primitive

LEARNING_RATE, MOMENTUM = 0.1, 0.9
TOLERANCE = 1e-5


def flat(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    """All elements in one row."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def named_views(module: nn.Module, row: torch.Tensor) -> dict[str, torch.Tensor]:
    """The row cut into the shapes of a module's parameters."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    parts = row.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def own_part(row: torch.Tensor) -> torch.Tensor:
    """The quarter of this rank."""
    return row.chunk(WORLD_SIZE)[dist.get_rank()].clone()


def reduce_scatter(row: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks, each keeping its own part."""
    part = torch.empty(row.numel() // WORLD_SIZE)
    dist.reduce_scatter_tensor(part, row)
    return part / WORLD_SIZE


def all_gather(part: torch.Tensor) -> torch.Tensor:
    """The whole row from all parts."""
    row = torch.empty(part.numel() * WORLD_SIZE)
    dist.all_gather_into_tensor(row, part)
    return row


class ZeroStage(Exercise):
    """What the three stages share: the model in units, the reference, and the optimizer on own parts."""

    def __init__(self) -> None:
        self.units = make_transformer()
        self.batch = make_batch(WORLD_SIZE)
        self.tokens = self.batch[dist.get_rank() :][:1]
        self.initial = [flat(unit.parameters()) for unit in self.units]
        self.momenta = [0.1 * own_part(row) for row in self.initial]  # as if steps had gone before

        next_token_loss(self.units(self.batch), self.batch).backward()
        self.reference = [
            row - LEARNING_RATE * (MOMENTUM * 0.1 * row + flat(p.grad for p in unit.parameters()))
            for row, unit in zip(self.initial, self.units, strict=True)
        ]
        self.units.zero_grad()

    def update(self, unit: int, part: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """SGD with momentum on this rank's part of a unit."""
        return part - LEARNING_RATE * (MOMENTUM * self.momenta[unit] + gradient)

    def compare(self, rows: list[torch.Tensor]) -> Iterator[Check]:
        """Updated parameters against those of one process."""
        for name, row, reference in zip(("embedding", "block 0", "block 1", "head"), rows, self.reference, strict=True):
            yield check_close(f"updated {name}", row, reference, tolerance=TOLERANCE)

    def per_unit(self, primitive: Primitive, *, calls: int = 1) -> Sent:
        """Calls per unit, each of all the unit's elements."""
        elements = sum(row.numel() for row in self.initial)
        return Sent.total([0, 1, 2, 3], primitive, calls=calls * len(self.initial), elements=calls * elements)


class ZeroOne(ZeroStage):
    """Every rank has all parameters and gradients, and the momentum of its own part."""

    name = "zero1"
    title = "ZeRO-1: the optimizer sharded"
    layout: ClassVar = {"dp": WORLD_SIZE, "zero": 1}

    def step(self) -> Iterator[Check]:
        """Backward to the end, then reduce, update and gather each unit."""
        next_token_loss(self.units(self.tokens), self.tokens).backward()
        rows = []
        for index, unit in enumerate(self.units):
            gradient = reduce_scatter(flat(p.grad for p in unit.parameters()))
            rows.append(all_gather(self.update(index, own_part(self.initial[index]), gradient)))
        self.units.zero_grad()
        yield from self.compare(rows)

    def sent(self) -> list[Sent]:
        """2N: gradients one way, parameters the other."""
        return [self.per_unit(Primitive.reduce_scatter), self.per_unit(Primitive.all_gather)]


class ZeroTwo(ZeroStage):
    """As ZeRO-1, but a unit's gradient is reduced and dropped as soon as the backward pass has left it."""

    name = "zero2"
    title = "ZeRO-2: gradients sharded too"
    layout: ClassVar = {"dp": WORLD_SIZE, "zero": 2}

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[int, torch.Tensor] = {}
        for index, unit in enumerate(self.units):
            waiting = len(list(unit.parameters()))
            for parameter in unit.parameters():
                parameter.register_post_accumulate_grad_hook(self._reduce_when_complete(index, waiting))

    def _reduce_when_complete(self, index: int, parameters: int) -> Any:
        def hook(_: torch.Tensor) -> None:
            unit = self.units[index]
            ready = [p for p in unit.parameters() if p.grad is not None]
            if len(ready) == parameters:
                self.gradients[index] = reduce_scatter(flat(p.grad for p in ready))
                unit.zero_grad()

        return hook

    def step(self) -> Iterator[Check]:
        """The backward pass reduces; then update and gather."""
        next_token_loss(self.units(self.tokens), self.tokens).backward()
        rows = [
            all_gather(self.update(index, own_part(self.initial[index]), self.gradients.pop(index)))
            for index in range(len(self.units))
        ]
        yield from self.compare(rows)

    def sent(self) -> list[Sent]:
        """2N, as ZeRO-1: only the moment differs."""
        return [self.per_unit(Primitive.reduce_scatter), self.per_unit(Primitive.all_gather)]


class Gather(torch.autograd.Function):
    """All-gather forward; its conjugate backward, the reduce-scatter of the gradient."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        return all_gather(part)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return reduce_scatter(grads[0].contiguous())


class ZeroThree(ZeroStage):
    """Every rank keeps its part only; a unit is gathered to run, dropped, and gathered again to go backward."""

    name = "zero3"
    title = "ZeRO-3: parameters sharded too"
    layout: ClassVar = {"dp": WORLD_SIZE, "zero": 3}

    def step(self) -> Iterator[Check]:
        """Checkpointing drops what a unit's forward pass made, and with it the gathered parameters."""
        parts = [own_part(row).requires_grad_() for row in self.initial]

        def run(x: torch.Tensor, part: torch.Tensor, unit: nn.Module) -> torch.Tensor:
            return functional_call(unit, named_views(unit, Gather.apply(part)), (x,))

        x = self.tokens
        for unit, part in zip(self.units, parts, strict=True):
            x = checkpoint(run, x, part, unit, use_reentrant=False)
        next_token_loss(x, self.tokens).backward()

        updated = [self.update(index, part.detach(), part.grad) for index, part in enumerate(parts)]
        for index, (part, reference) in enumerate(zip(updated, self.reference, strict=True)):
            yield check_close(f"updated part of unit {index}", part, own_part(reference), tolerance=TOLERANCE)

    def sent(self) -> list[Sent]:
        """3N: parameters forward and backward, gradients once."""
        return [self.per_unit(Primitive.all_gather, calls=2), self.per_unit(Primitive.reduce_scatter)]
