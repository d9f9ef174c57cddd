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

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 512
    vocab: int = 1024
    seq: int = 128
    batch: int = 2
    experts: int = 0
    topk: int = 2


class Attention(nn.Module):
    """Attention with grouped keys; exchanges heads over a group for Ulysses."""

    def __init__(self, sizes: Sizes, heads_group: Any = None) -> None:
        super().__init__()
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

    def __init__(self, sizes: Sizes, heads_group: Any = None, expert_group: Any = None) -> None:
        super().__init__()
        self.attention = Attention(sizes, heads_group)
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
        groups: tuple[Any, Any] = (None, None),
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
        return x if self.norm is None else self.output(self.norm(x))
