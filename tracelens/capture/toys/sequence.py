"""Two ways to cut the sequence: Megatron's sequence parallelism beside TP, and DeepSpeed-Ulysses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close
from tracelens.collectives import Primitive

SEQUENCE, HIDDEN, FFN, HEADS = 16, 32, 64, 4


class NormedMlp(nn.Module):
    """A norm, which works on single tokens, and an MLP, which tensor parallelism cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(self.norm(x))))


class MegatronSequenceParallel(Exercise):
    """The all-reduce of TP split into all-gather and reduce-scatter, by PyTorch's DTensor."""

    name = "sp"
    title = "sequence parallelism: norm on own tokens, MLP cut by columns and rows"
    layout: ClassVar = {"tp": WORLD_SIZE, "sequence_parallel": True}

    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("tp",))
        torch.manual_seed(0)
        reference = NormedMlp()
        self.x = torch.randn(1, SEQUENCE, HIDDEN)
        whole = self.x.clone().requires_grad_()
        self.out = reference(whole)
        self.out.square().sum().backward()
        self.dx, self.reference = whole.grad, reference

        torch.manual_seed(0)
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        self.model = parallelize_module(NormedMlp(), self.mesh, plan)

    def step(self) -> Iterator[Check]:
        """Forward and backward with a quarter of the tokens."""
        rank = dist.get_rank()
        self.model.zero_grad()
        x = self.x.chunk(WORLD_SIZE, dim=1)[rank].clone().requires_grad_()
        out = self.model(DTensor.from_local(x, self.mesh, [Shard(1)]))
        out = out.to_local() if isinstance(out, DTensor) else out
        out.square().sum().backward()

        own = self.out.detach().chunk(WORLD_SIZE, dim=1)[rank]
        yield check_close("output of own tokens", out.detach(), own, tolerance=1e-5)
        yield check_close("gradient of own tokens", x.grad, self.dx.chunk(WORLD_SIZE, dim=1)[rank], tolerance=1e-5)
        for name, dim in (("up", 0), ("down", 1)):
            gradient = getattr(self.model, name).weight.grad.to_local()
            reference = getattr(self.reference, name).weight.grad.chunk(WORLD_SIZE, dim=dim)[rank]
            yield check_close(f"gradient of {name}", gradient, reference, tolerance=1e-5)
        # every rank has seen its own tokens only, so this one gradient is a sum still to be made
        norm = self.model.norm.weight.grad.full_tensor()
        yield check_close("gradient of norm", norm, self.reference.norm.weight.grad, tolerance=1e-5)

    def sent(self) -> list[Sent]:
        """Gather the tokens before the MLP's first layer, scatter the sums after its last; backward alike."""
        tokens = SEQUENCE * HIDDEN
        return [
            Sent.of([0, 1, 2, 3], Primitive.all_gather, calls=2, elements=tokens),
            Sent.of([0, 1, 2, 3], Primitive.reduce_scatter, calls=2, elements=tokens),
            Sent.of([0, 1, 2, 3], Primitive.all_reduce, calls=1, elements=HIDDEN),
        ]


Direction = tuple[int, int]
"""Dimension to cut, dimension to join."""

TO_HEADS: Direction = (1, 0)
TO_TOKENS: Direction = (0, 1)


class HeadsForTokens(torch.autograd.Function):
    """All tokens of own heads for own tokens of all heads: [s/c, a, d] to [s, a/c, d], or back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, direction: Direction) -> torch.Tensor:
        ctx.direction = direction
        return exchange(x, direction)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return exchange(grads[0], ctx.direction[::-1]), None


def exchange(x: torch.Tensor, direction: Direction) -> torch.Tensor:
    """One equal all-to-all; the dimension cut and the dimension joined change places."""
    cut, joined = direction
    blocks = torch.cat(x.chunk(WORLD_SIZE, dim=cut), dim=0).contiguous()
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    return torch.cat(received.chunk(WORLD_SIZE, dim=0), dim=joined)


class Ulysses(Exercise):
    """Attention over a sequence cut in four: each rank attends with one head to all tokens."""

    name = "ulysses"
    title = "Ulysses: heads for tokens and back, by four all-to-alls (Jacobs et al. 2023)"
    layout: ClassVar = {"cp": WORLD_SIZE, "cp_kind": "ulysses"}

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.qkv = torch.randn(3, SEQUENCE, HEADS, HIDDEN // HEADS)
        whole = self.qkv.clone().requires_grad_()
        self.out = attend_heads(*whole)
        self.out.square().sum().backward()
        self.dqkv = whole.grad

    def step(self) -> Iterator[Check]:
        """Forward and backward with a quarter of the tokens."""
        rank = dist.get_rank()
        own = [part.chunk(WORLD_SIZE)[rank].clone().requires_grad_() for part in self.qkv]
        q, k, v = (HeadsForTokens.apply(part, TO_HEADS) for part in own)
        out = HeadsForTokens.apply(attend_heads(q, k, v), TO_TOKENS)
        out.square().sum().backward()

        yield check_close("output", out.detach(), self.out.detach().chunk(WORLD_SIZE)[rank], tolerance=1e-6)
        for name, part, reference in zip("QKV", own, self.dqkv, strict=True):
            yield check_close(f"d{name}", part.grad, reference.chunk(WORLD_SIZE)[rank], tolerance=1e-5)

    def sent(self) -> list[Sent]:
        """Q, K, V and the output forward, and their gradients backward."""
        return [Sent.of([0, 1, 2, 3], Primitive.all_to_all, calls=8, elements=SEQUENCE // WORLD_SIZE * HIDDEN)]


def attend_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, [tokens, heads, dim] each."""
    q, k, v = (part.transpose(0, 1) for part in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
