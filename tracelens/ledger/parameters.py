"""The weight tensors of a model, each with its shape as a formula and how tensor parallelism cuts it.

Shapes are those of `torch.nn.Linear` (rows are outputs). Sources: the modelling files of Hugging Face
transformers for the families named in `huggingface.py`; latent attention as in DeepSeek-V2 (arXiv 2405.04434).
Within a block, tensors are listed in the order in which their modules are defined.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number, add
from tracelens.ledger.model import ModelSpec, Norm

ONE = Number(1)


class Split(StrEnum):
    """How tensor parallelism holds a tensor."""

    column = "column"
    """Outputs (rows of the tensor) are cut."""
    row = "row"
    """Inputs (columns of the tensor) are cut."""
    none = "none"
    """Every rank of the group holds the whole tensor."""


class Part(StrEnum):
    """The parts that parameters are counted by."""

    embedding = "embedding"
    attention = "attention"
    mlp = "mlp"
    router = "router"
    experts = "experts"
    shared_experts = "shared_experts"
    norm = "norm"
    head = "head"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight tensor; the routed experts of a block stand together in one tensor per matrix."""

    name: str
    part: Part
    rows: Expr
    columns: Expr = ONE
    split: Split = Split.none
    copies: Expr = ONE
    """Equal tensors: the experts of a block."""

    @property
    def is_vector(self) -> bool:
        """Norm weights and biases."""
        return self.columns == ONE

    @property
    def size(self) -> Expr:
        """Elements of the whole tensor."""
        return _area(self.rows, self.columns) * self.copies

    @property
    def local_rows(self) -> Expr:
        """Rows that one rank of the tensor-parallel group holds."""
        return self.rows / y.t if self.split is Split.column else self.rows

    @property
    def local_columns(self) -> Expr:
        """Columns that one rank of the tensor-parallel group holds."""
        return self.columns / y.t if self.split is Split.row else self.columns

    @property
    def local_size(self) -> Expr:
        """Elements that one rank of the tensor-parallel group holds; experts by their own degrees."""
        return _local_size(self)


@functools.lru_cache(maxsize=1024)
def _local_size(tensor: Tensor) -> Expr:
    if tensor.part is Part.experts:
        return tensor.size / (y.e if tensor.split is Split.none else y.e * y.etp)
    return tensor.size if tensor.split is Split.none else tensor.size / y.t


def _area(rows: Expr, columns: Expr) -> Expr:
    """Rows times columns, the hidden size last, so that equal sizes read alike."""
    return columns * rows if rows == y.h and columns != ONE else rows * columns


@functools.lru_cache(maxsize=256)
def embedding_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """The token table, and the position table of models that learn one."""
    tensors = [Tensor("embedding", Part.embedding, y.V, y.h, Split.column)]
    if model.positions:
        tensors.append(Tensor("position_embedding", Part.embedding, y.positions, y.h))
    return tuple(tensors)


@functools.lru_cache(maxsize=256)
def head_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """The final norm, and the output projection of models whose embeddings are not tied."""
    tensors = _norm(model, "final_norm", y.h)
    if not model.tied_embeddings:
        tensors.append(Tensor("head", Part.head, y.V, y.h, Split.column))
    return tuple(tensors)


@functools.lru_cache(maxsize=256)
def block_tensors(model: ModelSpec, *, moe: bool) -> tuple[Tensor, ...]:
    """One transformer block, dense or a mixture of experts."""
    attention = _latent_attention(model) if model.latent else _attention(model)
    feed_forward = _mixture(model) if moe else _mlp(model)
    norms = [*_norm(model, "attention_norm", y.h), *_norm(model, "mlp_norm", y.h)]
    return (*attention, *feed_forward, *norms)


def _attention(model: ModelSpec) -> list[Tensor]:
    part, bias = Part.attention, model.qkv_bias
    tensors = [
        *_linear("wq", part, (y.h_q, y.h), Split.column, bias=bias),
        *_linear("wk", part, (y.h_kv, y.h), Split.column, bias=bias),
        *_linear("wv", part, (y.h_kv, y.h), Split.column, bias=bias),
        *_linear("wo", part, (y.h, y.h_q), Split.row, bias=model.output_bias),
    ]
    if model.qk_norm:
        tensors += [Tensor("q_norm", Part.norm, y.d_h), Tensor("k_norm", Part.norm, y.d_h)]
    if model.attention_sinks:
        tensors.append(Tensor("sinks", part, y.a, split=Split.column))
    return tensors


def _latent_attention(model: ModelSpec) -> list[Tensor]:
    part = Part.attention
    key, value = y.d_nope + y.d_rope, y.d_nope + y.d_v
    tensors = [Tensor("wq", part, y.a * key, y.h, Split.column)]
    if model.latent is not None and model.latent.q_rank is not None:
        tensors = [
            Tensor("wq_a", part, y.q_rank, y.h),
            Tensor("q_norm", Part.norm, y.q_rank),
            Tensor("wq_b", part, y.a * key, y.q_rank, Split.column),
        ]
    return [
        *tensors,
        Tensor("wkv_a", part, y.kv_rank + y.d_rope, y.h),
        Tensor("kv_norm", Part.norm, y.kv_rank),
        Tensor("wkv_b", part, y.a * value, y.kv_rank, Split.column),
        Tensor("wo", part, y.h, y.a * y.d_v, Split.row),
    ]


def _mlp(model: ModelSpec) -> list[Tensor]:
    return _feed_forward(model, Part.mlp, y.f, bias=model.mlp_bias)


def _feed_forward(model: ModelSpec, part: Part, width: Expr, *, bias: bool, copies: Expr = ONE) -> list[Tensor]:
    names = ("w1", "w2", "w3") if model.gated else ("w1", "w2")
    tensors: list[Tensor] = []
    for name in names:
        down = name == "w2"
        shape = (y.h, width) if down else (width, y.h)
        split = Split.row if down else Split.column
        tensors += _linear(name, part, shape, split, bias=bias, copies=copies)
    return tensors


def _mixture(model: ModelSpec) -> list[Tensor]:
    if model.moe is None:
        return []
    moe = model.moe
    tensors = _linear("router", Part.router, (y.E, y.h), Split.none, bias=moe.router_bias)
    tensors += _feed_forward(model, Part.experts, y.f_e, bias=moe.expert_bias, copies=y.E)
    if moe.shared_ffn:
        tensors += _feed_forward(model, Part.shared_experts, y.f_s, bias=False)
    if moe.shared_gate:
        tensors.append(Tensor("shared_gate", Part.shared_experts, ONE, y.h))
    return tensors


def _linear(
    name: str, part: Part, shape: tuple[Expr, Expr], split: Split, *, bias: bool, copies: Expr = ONE
) -> list[Tensor]:
    tensors = [Tensor(name, part, *shape, split, copies)]
    if bias:
        # the bias of a row-parallel layer is added once, after the reduction, so every rank holds it whole
        bias_split = Split.column if split is Split.column else Split.none
        tensors.append(Tensor(f"{name}_bias", part, shape[0], ONE, bias_split, copies))
    return tensors


def _norm(model: ModelSpec, name: str, width: Expr) -> list[Tensor]:
    tensors = [Tensor(name, Part.norm, width)]
    if model.norm is Norm.layernorm:
        tensors.append(Tensor(f"{name}_bias", Part.norm, width))
    return tensors


def total_local_size(tensors: Iterable[Tensor]) -> Expr:
    """Elements that one rank of the tensor-parallel (and expert-parallel) group holds."""
    return add(*(tensor.local_size for tensor in tensors))


class ParameterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a model, counted from its sizes."""

    parts: dict[str, int]
    """Parameters per part."""
    total: int
    active: int
    """Parameters that one token uses: of the routed experts, only top-k."""


def model_tensors(model: ModelSpec) -> list[tuple[int, Tensor]]:
    """Every kind of tensor with the number of times that it occurs."""
    moe_layers = model.moe_layers
    groups = [
        (1, embedding_tensors(model)),
        (model.layers - moe_layers, block_tensors(model, moe=False) if moe_layers < model.layers else ()),
        (moe_layers, block_tensors(model, moe=True) if moe_layers else ()),
        (1, head_tensors(model)),
    ]
    return [(count, tensor) for count, tensors in groups for tensor in tensors]


def model_sizes(model: ModelSpec) -> dict[str, int]:
    """The unknowns that a model alone decides."""
    sizes = {
        "h": model.hidden,
        "a": model.heads,
        "d_h": model.dim_per_head,
        "h_q": model.heads * model.dim_per_head,
        "h_kv": model.key_value_heads * model.dim_per_head,
        "f": model.ffn or 0,
        "V": model.vocab,
        "L": model.layers,
        "positions": model.positions,
    }
    if model.moe is not None:
        moe = model.moe
        sizes |= {"E": moe.experts, "k": moe.top_k, "f_e": moe.ffn, "f_s": moe.shared_ffn}
    if model.latent is not None:
        latent = model.latent
        sizes |= {
            "q_rank": latent.q_rank or 0,
            "kv_rank": latent.kv_rank,
            "d_nope": latent.nope_dim,
            "d_rope": latent.rope_dim,
            "d_v": latent.value_dim,
            "h_q": model.heads * (latent.nope_dim + latent.rope_dim),
        }
    return sizes


@functools.lru_cache(maxsize=256)
def count_parameters(model: ModelSpec) -> ParameterCount:
    """Parameters per part, in total, and those that one token uses."""
    sizes = model_sizes(model)
    parts: dict[str, int] = {}
    for count, tensor in model_tensors(model):
        size = count * int(tensor.size.evaluate(sizes))
        parts[tensor.part] = parts.get(tensor.part, 0) + size
    total = sum(parts.values())
    routed = parts.get(Part.experts, 0)
    idle = 0 if model.moe is None else routed * (model.moe.experts - model.moe.top_k) // model.moe.experts
    return ParameterCount(parts=parts, total=total, active=total - idle)
