"""A small decoder that PyTorch's own parallelism can be applied to, for layouts to infer (needs torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd


@dataclass(frozen=True)
class Sizes:
    """Sizes of the decoder and its batch."""

    hidden: int = 128
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 192
    vocab: int = 512
    seq: int = 64
    batch: int = 1
    experts: int = 0
    topk: int = 2


class TorchRing(torch.autograd.Function):
    """torch's own ring attention with the kernels left out; gathers or rotates, as `set_rotate_method` says."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any) -> torch.Tensor:
        """Exchange K and V."""
        from torch.distributed.tensor.experimental._context_parallel import _attention as ring

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002
            return torch.zeros_like(q), torch.zeros(q.shape[:3])

        out, lse = ring._templated_ring_attention(group, 2, attend, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Exchange K, V and their gradients."""
        from torch.distributed.tensor.experimental._context_parallel import _attention as ring

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> Any:
            return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

        q, k, v, out, lse = ctx.saved_tensors
        grads = ring._templated_ring_attention_backward(
            ctx.group, 2, attend, grad, "grad_out", q, k, v, out, lse, is_causal=True
        )
        return *(g.to(q.dtype) for g in grads), None


class MessageRing(torch.autograd.Function):
    """The message pattern of TransformerEngine's p2p ring: c-1 exchanges of K and V, then c with gradients."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any) -> torch.Tensor:
        """Pass K and V round."""
        ctx.group, ctx.shapes = group, (q.shape, k.shape, v.shape)
        for _ in range(dist.get_world_size(group) - 1):
            _pass_on(2 * k.numel(), group, k.dtype)
        return q * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Pass K, V and the sums of their gradients round."""
        size, n = 2 * torch.Size(ctx.shapes[1]).numel(), dist.get_world_size(ctx.group)
        for step in range(n):
            _pass_on(size if step in (0, n - 1) else 2 * size, ctx.group, grad.dtype, back=True)
        q, k, v = (torch.zeros(shape, dtype=grad.dtype) for shape in ctx.shapes)
        return q, k, v, None


def _pass_on(elements: int, group: Any, dtype: torch.dtype, *, back: bool = False) -> None:
    n, own = dist.get_world_size(group), dist.get_rank(group)
    ranks = dist.get_process_group_ranks(group)
    ahead, behind = ranks[(own + 1) % n], ranks[(own - 1) % n]
    if back:
        ahead, behind = behind, ahead
    for work in (
        dist.isend(torch.zeros(elements, dtype=dtype), ahead, group=group),
        dist.irecv(torch.zeros(elements, dtype=dtype), behind, group=group),
    ):
        work.wait()


class GatheredKeys(torch.autograd.Function):
    """Context parallelism by all-gather as TransformerEngine has it: K and V gathered, their gradients scattered."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Any) -> torch.Tensor:
        """Gather K and V."""
        ctx.group, ctx.kv = group, (k, v)
        for t in (k, v):
            _gather(t, group)
        return q * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Gather again, scatter the gradients."""
        n = dist.get_world_size(ctx.group)
        for t in ctx.kv:
            _gather(t, ctx.group)
        for t in ctx.kv:
            dist.reduce_scatter_tensor(
                torch.empty(t.numel(), dtype=t.dtype), torch.zeros(t.numel() * n, dtype=t.dtype), group=ctx.group
            )
        return grad, *(torch.zeros_like(t) for t in ctx.kv), None


def _gather(t: torch.Tensor, group: Any) -> None:
    out = torch.empty(t.numel() * dist.get_world_size(group), dtype=t.dtype)
    dist.all_gather_into_tensor(out, t.contiguous().view(-1), group=group)


CONTEXT: dict[str, Any] = {
    "allgather": TorchRing,
    "ring_alltoall": TorchRing,
    "ring_p2p": MessageRing,
    "gathered": GatheredKeys,
}


class Attention(nn.Module):
    """Attention with grouped keys; exchanges heads over a group for Ulysses, K and V for the other kinds."""

    def __init__(self, sizes: Sizes, heads_group: Any = None, ring: Any = None) -> None:
        super().__init__()
        self.ring = ring
        h, self.head = sizes.hidden, sizes.hidden // sizes.heads
        self.wq = nn.Linear(h, h, bias=False)
        self.wk = nn.Linear(h, sizes.kv_heads * self.head, bias=False)
        self.wv = nn.Linear(h, sizes.kv_heads * self.head, bias=False)
        self.wo = nn.Linear(h, h, bias=False)
        self.heads_group = heads_group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over the whole sequence."""
        b, s, _ = x.shape
        q, k, v = (w(x).view(b, s, -1, self.head) for w in (self.wq, self.wk, self.wv))
        if self.heads_group is not None:
            q, k, v = (_swap(t, self.heads_group, to_heads=True) for t in (q, k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.ring is not None:
            kind, group = self.ring
            out = CONTEXT[kind].apply(q.contiguous(), k.contiguous(), v.contiguous(), group)
            return self.wo(out.transpose(1, 2).reshape(b, s, -1))
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        if self.heads_group is not None:
            out = _swap(out, self.heads_group, to_heads=False)
        return self.wo(out.reshape(b, s, -1))


def _swap(x: torch.Tensor, group: Any, *, to_heads: bool) -> torch.Tensor:
    """Sequence shards for head shards and back, as Ulysses does (arXiv 2309.14509)."""
    n = dist.get_world_size(group)
    b, s, heads, d = x.shape
    shape = (b, s * n, heads // n, d) if to_heads else (b, s // n, heads * n, d)
    flat = all_to_all_single_autograd(x.reshape(n, -1).contiguous(), None, None, group)
    return flat.reshape(shape)


class FeedForward(nn.Module):
    """Gated feed-forward."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.w2 = nn.Linear(sizes.ffn, sizes.hidden, bias=False)
        self.w3 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """SwiGLU."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """Experts spread over a group: dispatch and combine by all-to-all with the splits that the router makes."""

    def __init__(self, sizes: Sizes, group: Any) -> None:
        super().__init__()
        self.group, self.experts, self.topk = group, sizes.experts, sizes.topk
        self.router = nn.Linear(sizes.hidden, sizes.experts, bias=False)
        own = sizes.experts // dist.get_world_size(group)
        self.own = nn.ModuleList(FeedForward(sizes) for _ in range(own))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Route each token to its experts and back."""
        tokens = x.reshape(-1, x.shape[-1])
        n = dist.get_world_size(self.group)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.topk, -1)
        order = chosen.reshape(-1).argsort()
        counts = torch.bincount(chosen.reshape(-1), minlength=self.experts)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        sends = counts.view(n, -1).sum(1).tolist()
        gets = list(sends)  # one rank can't know the others: as many as it sends
        routed = tokens.repeat_interleave(self.topk, 0)[order]
        arrived = all_to_all_single_autograd(routed, gets, sends, self.group)
        parts = arrived.chunk(len(self.own))
        done = torch.cat([expert(part) for expert, part in zip(self.own, parts, strict=False)])
        back = all_to_all_single_autograd(done.contiguous(), sends, gets, self.group)
        restored = torch.zeros_like(back).index_copy(0, order, back)
        mixed = (restored.view(-1, self.topk, x.shape[-1]) * weights.unsqueeze(-1)).sum(1)
        return mixed.view_as(x)


class Block(nn.Module):
    """One layer."""

    def __init__(self, sizes: Sizes, heads_group: Any = None, expert_group: Any = None, ring: Any = None) -> None:
        super().__init__()
        self.attention = Attention(sizes, heads_group, ring)
        self.feed_forward = FeedForward(sizes) if expert_group is None else Experts(sizes, expert_group)
        self.attention_norm = nn.RMSNorm(sizes.hidden)
        self.ffn_norm = nn.RMSNorm(sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pre-norm residual layer."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Decoder(nn.Module):
    """A decoder, or the part of it that a pipeline stage holds."""

    def __init__(
        self,
        sizes: Sizes,
        layers: range | None = None,
        *,
        first: bool = True,
        last: bool = True,
        groups: tuple[Any, Any, Any] = (None, None, None),
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab, sizes.hidden) if first else None
        self.layers = nn.ModuleDict(
            {str(i): Block(sizes, *groups) for i in (layers if layers is not None else range(sizes.layers))}
        )
        self.norm = nn.RMSNorm(sizes.hidden) if last else None
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, or the activations for the next stage."""
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.norm is None or self.output is None else self.output(self.norm(x))
