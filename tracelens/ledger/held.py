"""Parameters that one rank of a pipeline stage computes with, as a formula in its layers."""

from __future__ import annotations

import functools

from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number, add
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import (
    Part,
    Tensor,
    block_tensors,
    embedding_tensors,
    head_tensors,
    total_local_size,
)
from tracelens.ledger.stages import StagePlan


def dense_formula(model: ModelSpec, stage: StagePlan) -> Expr:
    """All but the routed experts; the tied table counts on both stages that hold it, once where they are one."""
    ends = _ends(model, embedding=stage.has_embedding, head=stage.has_head)
    return add(_stage_blocks(model, stage, experts=False), ends)


def expert_formula(model: ModelSpec, stage: StagePlan) -> Expr:
    """The routed experts."""
    return _stage_blocks(model, stage, experts=True)


@functools.lru_cache(maxsize=256)
def _ends(model: ModelSpec, *, embedding: bool, head: bool) -> Expr:
    ends: list[Tensor] = []
    if embedding:
        ends += embedding_tensors(model)
    if head:
        ends += head_tensors(model)
        if model.tied_embeddings and not embedding:
            ends += embedding_tensors(model)[:1]
    return total_local_size(ends)


def _stage_blocks(model: ModelSpec, stage: StagePlan, *, experts: bool) -> Expr:
    dense, moe = stage.layers > stage.moe_layers, stage.moe_layers > 0
    return _blocks(model, dense=dense, moe=moe, experts=experts)


@functools.lru_cache(maxsize=256)
def _blocks(model: ModelSpec, *, dense: bool, moe: bool, experts: bool) -> Expr:
    total: Expr = Number(0)
    for is_moe, symbol, present in ((False, y.L_d, dense), (True, y.L_e, moe)):
        tensors = block_tensors(model, moe=is_moe) if present else ()
        chosen = [tensor for tensor in tensors if (tensor.part is Part.experts) is experts]
        total = total + symbol * total_local_size(chosen)
    return total
