"""Parameters that one rank of a pipeline stage computes with, as a formula in its layers."""

from __future__ import annotations

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
    ends: list[Tensor] = []
    if stage.has_embedding:
        ends += embedding_tensors(model)
    if stage.has_head:
        ends += head_tensors(model)
        if model.tied_embeddings and not stage.has_embedding:
            ends += embedding_tensors(model)[:1]
    return add(_blocks(model, stage, experts=False), total_local_size(ends))


def expert_formula(model: ModelSpec, stage: StagePlan) -> Expr:
    """The routed experts."""
    return _blocks(model, stage, experts=True)


def _blocks(model: ModelSpec, stage: StagePlan, *, experts: bool) -> Expr:
    total: Expr = Number(0)
    kinds = ((False, y.L_d, stage.layers - stage.moe_layers), (True, y.L_e, stage.moe_layers))
    for moe, symbol, count in kinds:
        tensors = block_tensors(model, moe=moe) if count else []
        chosen = [tensor for tensor in tensors if (tensor.part is Part.experts) is experts]
        total = total + symbol * total_local_size(chosen)
    return total
