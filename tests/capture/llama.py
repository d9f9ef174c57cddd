"""A Llama-like model with the parameter shapes of the framework traces, and the ways to cut it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.repeats = heads // kv_heads
        self.wq = nn.Linear(hidden, hidden, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = (
            layer(x).view(batch, sequence, -1, self.head_dim).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        k, v = k.repeat_interleave(self.repeats, dim=1), v.repeat_interleave(self.repeats, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, ffn, bias=False)
        self.w2 = nn.Linear(ffn, hidden, bias=False)
        self.w3 = nn.Linear(hidden, ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape["hidden"])
        self.attention = Attention(shape["hidden"], shape["heads"], shape["kv_heads"])
        self.ffn_norm = nn.RMSNorm(shape["hidden"])
        self.feed_forward = FeedForward(shape["hidden"], shape["ffn"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The whole model, or the layers of one pipeline stage.

    Args:
        shape: hidden, heads, kv_heads, ffn, vocab and layers, as in `truth.json`.
        layers: the layers of the stage; all where left out.
    """

    def __init__(self, shape: dict[str, Any], layers: range | None = None) -> None:
        super().__init__()
        layers = range(shape["layers"]) if layers is None else layers
        is_first, is_last = layers[0] == 0, layers[-1] == shape["layers"] - 1
        self.embedding = nn.Embedding(shape["vocab"], shape["hidden"]) if is_first else None
        self.layers = nn.ModuleDict({str(index): Block(shape) for index in layers})
        self.norm = nn.RMSNorm(shape["hidden"]) if is_last else None
        self.output = nn.Linear(shape["hidden"], shape["vocab"], bias=False) if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.norm is None or self.output is None else self.output(self.norm(x))


def shard(model: Llama, mesh: DeviceMesh, *, reshard: bool = True) -> None:
    """FSDP2 as torchtitan sets it up: bf16 parameters, fp32 gradients, a unit per block and one for the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in (*model.layers.values(), model):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def cut(model: Llama, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Tensor parallelism through DTensor, with the plan of torchtitan's Llama."""
    inside = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, Any] = {}
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=inside)
    if model.output is not None:
        plan["output"] = ColwiseParallel(input_layouts=inside, output_layouts=Replicate())
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    block_plan: dict[str, Any] = {
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=inside),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=inside),
        "feed_forward.w3": ColwiseParallel(),
    }
    if sequence_parallel:
        whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        block_plan |= {
            "attention_norm": SequenceParallel(),
            "ffn_norm": SequenceParallel(),
            "attention": whole,
            "feed_forward": whole,
        }
    for block in model.layers.values():
        parallelize_module(block, mesh, block_plan)
