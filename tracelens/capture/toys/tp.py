"""Tensor parallelism of an MLP: split columns, then rows, and the conjugate operators f and g.

f and g are those of Megatron-LM (Shoeybi et al. 2019, figure 3): f is the identity forward and an all-reduce
backward, g the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tracelens.capture.toys.exercise import Check, Exercise, Sent, check_values
from tracelens.collectives import Primitive


class F(torch.autograd.Function):
    """Identity forward; backward, sum the parts of dX."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class G(torch.autograd.Function):
    """Forward, sum the parts of Z; identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class TensorParallel(Exercise):
    """Z = relu(X A) B with X = [1, 2]; rank t of a pair holds column t of A and row t of B.

    Ranks 2 and 3 are a second pair that computes the same.
    """

    name = "tp"
    title = "f and g of a column-split and a row-split layer"
    layout: ClassVar = {"tp": 2, "dp": 2, "zero": 0, "sequence_parallel": False}

    A = ((1.0, 2.0), (3.0, 4.0))
    B = ((1.0, 0.0), (0.0, 2.0))

    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.group = self.mesh.get_group("tp")
        self.part = self.mesh.get_local_rank("tp")

    def step(self) -> Iterator[Check]:
        """Forward and backward, and the same on one process."""
        part, group = self.part, self.group
        x = torch.tensor([[1.0, 2.0]], requires_grad=True)
        a = torch.tensor(self.A)[:, part : part + 1].clone().requires_grad_()
        b = torch.tensor(self.B)[part : part + 1, :].clone().requires_grad_()

        y = torch.relu(F.apply(x, group) @ a)
        partial = y @ b
        z = G.apply(partial, group)
        z.sum().backward()

        yield check_values("Y, own column", y.detach(), [[[7.0]], [[10.0]]][part])
        yield check_values("Z, own part of the sum", partial.detach(), [[[7.0, 0.0]], [[0.0, 20.0]]][part])
        yield check_values("Z after g", z.detach(), [[7.0, 20.0]])
        yield check_values("dB, own row", b.grad, [[[7.0, 7.0]], [[10.0, 10.0]]][part])
        yield check_values("dA, own column", a.grad, [[[1.0], [2.0]], [[2.0], [4.0]]][part])
        yield check_values("dX after f", x.grad, [[5.0, 11.0]])
        yield from self._compare_with_one_process(x, a, b, z)

    def _compare_with_one_process(
        self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, z: torch.Tensor
    ) -> Iterator[Check]:
        part = self.part
        x_full = torch.tensor([[1.0, 2.0]], requires_grad=True)
        a_full = torch.tensor(self.A, requires_grad=True)
        b_full = torch.tensor(self.B, requires_grad=True)
        z_full = torch.relu(x_full @ a_full) @ b_full
        z_full.sum().backward()
        yield check_values("Z of one process", z.detach(), z_full.detach())
        yield check_values("dX of one process", x.grad, x_full.grad)
        yield check_values("dA of one process", a.grad, a_full.grad[:, part : part + 1])
        yield check_values("dB of one process", b.grad, b_full.grad[part : part + 1])

    def sent(self) -> list[Sent]:
        """Two numbers forward, where g sums Z, and two backward, where f sums dX."""
        first = dist.get_rank() // 2 * 2
        return [Sent.of([first, first + 1], Primitive.all_reduce, calls=2, elements=2)]
