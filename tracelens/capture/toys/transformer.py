"""A small real model: four units, each a module that takes what the one before gives."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCAB, HIDDEN, HEADS, FFN, SEQUENCE = 64, 32, 4, 64, 16


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, HIDDEN))


class Block(nn.Module):
    """Attention and an MLP, each behind a norm and beside a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


def make_transformer() -> nn.Sequential:
    """Embedding, two blocks, and the head with its norm; the same weights on every rank."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False))
    return nn.Sequential(nn.Embedding(VOCAB, HIDDEN), Block(), Block(), head)


def make_batch(sequences: int) -> torch.Tensor:
    """Tokens [sequences, SEQUENCE], the same on every rank."""
    return torch.randint(0, VOCAB, (sequences, SEQUENCE), generator=torch.Generator().manual_seed(1))


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
