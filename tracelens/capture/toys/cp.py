"""Ring attention: queries stay, keys and values travel round the ring (Liu et al. 2023).

Each block leaves the running maximum m, the sum l of exp(s - m) and the weighted sum of values; two blocks are
merged by scaling both to the larger maximum (Milakov and Gimelshein 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close, check_values
from tracelens.collectives import Primitive

Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(m, l, acc) of the queries against the keys seen so far: [q, 1], [q, 1], [q, d]."""


def attend(scores: torch.Tensor, v: torch.Tensor) -> Partial:
    """Attention to one block, not yet divided by its sum."""
    m = scores.max(dim=1, keepdim=True).values
    weights = torch.exp(scores - m)
    return m, weights.sum(dim=1, keepdim=True), weights @ v


def merge(one: Partial, two: Partial) -> Partial:
    """Two partial results as if their blocks had been one."""
    m = torch.maximum(one[0], two[0])
    left, right = torch.exp(one[0] - m), torch.exp(two[0] - m)
    return m, one[1] * left + two[1] * right, one[2] * left + two[2] * right


def pass_on(block: torch.Tensor) -> torch.Tensor:
    """Send a block to the next rank of the ring and take that of the one before."""
    rank, received = dist.get_rank(), torch.empty_like(block)
    sending = dist.isend(block.contiguous(), (rank + 1) % WORLD_SIZE)
    dist.recv(received, (rank - 1) % WORLD_SIZE)
    sending.wait()
    return received


class RingAttention(torch.autograd.Function):
    """softmax(Q K^T / sqrt(d)) V over the whole sequence, each rank holding its own part of Q, K and V."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visited: list[int]) -> torch.Tensor:
        rank, block, scale = dist.get_rank(), torch.stack([k, v]), 1 / math.sqrt(q.shape[1])
        visited.append(rank)
        result = attend(q @ block[0].T * scale, block[1])
        for turn in range(1, WORLD_SIZE):
            block = pass_on(block)
            visited.append((rank - turn) % WORLD_SIZE)
            result = merge(result, attend(q @ block[0].T * scale, block[1]))
        m, total, acc = result
        out = acc / total
        ctx.save_for_backward(q, k, v, out, m + torch.log(total))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        dout, scale = grads[0], 1 / math.sqrt(q.shape[1])
        delta = (dout * out).sum(dim=1, keepdim=True)
        block, dblock, dq = torch.stack([k, v]), torch.zeros(2, *k.shape), torch.zeros_like(q)
        for turn in range(WORLD_SIZE):
            p = torch.exp(q @ block[0].T * scale - log_sum)  # the true probabilities, block by block
            ds = p * (dout @ block[1].T - delta) * scale
            dq += ds @ block[0]
            dblock = dblock + torch.stack([ds.T @ q, p.T @ dout])
            # the gradients follow their keys and values, and need one turn more to come home
            dblock = pass_on(dblock)
            if turn < WORLD_SIZE - 1:
                block = pass_on(block)
        return dq, dblock[0], dblock[1], None


class ContextParallel(Exercise):
    """A sequence of 8 tokens, two on each rank."""

    name = "cp"
    title = "ring attention, keys and values passed round by send and recv"
    layout: ClassVar = {"cp": WORLD_SIZE}

    TOKENS, DIM = 8, 4

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        random = torch.Generator().manual_seed(0)
        self.qkv = torch.randn(3, self.TOKENS, self.DIM, generator=random)
        self.weight = torch.randn(self.TOKENS, self.DIM, generator=random)
        self.own = slice(2 * self.rank, 2 * self.rank + 2)

        whole = self.qkv.clone().requires_grad_()
        q, k, v = whole
        self.reference = torch.softmax(q @ k.T / math.sqrt(self.DIM), dim=1) @ v
        (self.reference * self.weight).sum().backward()
        self.reference_grad = whole.grad

    def step(self) -> Iterator[Check]:
        """Attention over the ring, forward and backward."""
        q, k, v = (part[self.own].clone().requires_grad_() for part in self.qkv)
        visited: list[int] = []
        out = RingAttention.apply(q, k, v, visited)
        (out * self.weight[self.own]).sum().backward()

        yield check_values("K/V blocks in order", visited, self.BLOCKS[self.rank])
        yield check_close("output", out.detach(), self.reference[self.own].detach(), tolerance=1e-6)
        for name, part, grad in zip("QKV", (q, k, v), self.reference_grad, strict=True):
            yield check_close(f"d{name}", part.grad, grad[self.own], tolerance=1e-5)
        yield from merge_by_hand()

    BLOCKS = ([0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0])

    def sent(self) -> list[Sent]:
        """Three K/V blocks forward; backward three more, and dK/dV four times. A block is K and V of 2 tokens."""
        messages = 3 + 3 + 4
        elements = 2 * 2 * self.DIM
        return [
            Sent.of([0, 1, 2, 3], primitive, calls=messages, elements=elements)
            for primitive in (Primitive.send, Primitive.recv)
        ]


def merge_by_hand() -> Iterator[Check]:
    """The article's example: scores [1, 0 | 2, 0], values (1,0), (0,1), (1,1), (2,0)."""
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    one = attend(torch.tensor([[1.0, 0.0]]), values[:2])
    two = attend(torch.tensor([[2.0, 0.0]]), values[2:])
    _, total, acc = merge(one, two)
    yield check_values("sum of the merged blocks", [round(total.item(), 3)], [1.639])
    yield check_values("output of the merged blocks", [round(x, 3) for x in (acc / total)[0].tolist()], [1.0, 0.693])
