"""What the ledger must know of a model: sizes, not weights."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tracelens.errors import ModelError


class Norm(StrEnum):
    """How a block normalises: `layernorm` has a bias beside its weight."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class MoE(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mixture-of-experts part of a model."""

    experts: int
    """Routed experts of a block."""
    top_k: int
    """Experts that a token is routed to."""
    ffn: int
    """Width of one routed expert."""
    shared_ffn: int = 0
    """Width of all shared experts of a block together; 0 is a model without."""
    shared_gate: bool = False
    """A sigmoid gate of one row scales the shared experts (Qwen2-MoE)."""
    first_dense_layers: int = 0
    """Leading layers that stay dense."""
    every: int = 1
    """One layer in `every` is a mixture."""
    router_bias: bool = False
    """The router has a bias of one number per expert."""
    expert_bias: bool = False
    """The two (three) matrices of an expert have biases."""


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are compressed."""

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None
    """Rank of the compressed queries; null when queries are projected directly."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a decoder-only transformer."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int | None = None
    """Key and value heads; null is as many as query heads."""
    head_dim: int | None = None
    """Dimension of a head; null is hidden / heads."""
    ffn: int | None = None
    """Width of a dense feed-forward layer; null in models whose every layer is a mixture."""
    gated: bool = True
    """Three matrices in the feed-forward layer (SwiGLU) instead of two."""
    vocab: int
    tied_embeddings: bool = False
    seq_len: int = 8192
    """Tokens of a training sequence."""
    positions: int = 0
    """Rows of a learned position table; 0 with rotary or no positions."""
    norm: Norm = Norm.rmsnorm
    qk_norm: bool = False
    """Norms of head_dim on queries and keys (Qwen3)."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_sinks: bool = False
    """One learned number per head (GPT-OSS)."""
    latent: LatentAttention | None = None
    moe: MoE | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that can't be; take the norm as a word too."""
        if not isinstance(self.norm, Norm):
            msgspec.structs.force_setattr(self, "norm", Norm(self.norm))
        sizes = {"layers": self.layers, "hidden": self.hidden, "heads": self.heads, "vocab": self.vocab}
        sizes |= {"seq_len": self.seq_len}
        optional = {"kv_heads": self.kv_heads, "head_dim": self.head_dim, "ffn": self.ffn}
        sizes |= {key: value for key, value in optional.items() if value is not None}
        for key, value in sizes.items():
            if value < 1:
                raise ModelError(f"model `{self.name}`: {key} must be at least 1: `{value}`")
        if self.ffn is None and (self.moe is None or self.moe_layers != self.layers):
            raise ModelError(
                f"model `{self.name}`: ffn is missing and {self.layers - self.moe_layers} layers are dense",
                hint="give the width of the dense feed-forward layer as ffn",
            )
        if self.head_dim is None and self.latent is None and self.hidden % self.heads:
            raise ModelError(
                f"model `{self.name}`: hidden {self.hidden} is no multiple of heads {self.heads}",
                hint="give head_dim",
            )
        if self.heads % self.key_value_heads:
            raise ModelError(
                f"model `{self.name}`: heads {self.heads} is no multiple of kv_heads {self.key_value_heads}"
            )
        if self.moe is not None and self.moe.top_k > self.moe.experts:
            raise ModelError(f"model `{self.name}`: top_k {self.moe.top_k} is more than experts {self.moe.experts}")

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def dim_per_head(self) -> int:
        """Dimension of one head."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the block of that index (from 0) is a mixture of experts."""
        if self.moe is None or layer < self.moe.first_dense_layers:
            return False
        return (layer + 1) % self.moe.every == 0

    @property
    def moe_layers(self) -> int:
        """Blocks that are a mixture of experts."""
        if self.moe is None:
            return 0
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))
