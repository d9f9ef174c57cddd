"""Megatron-Core: the terms of one pipeline rank, and the small calls of every step.

Sources: Megatron-LM core 0.18 `training/training.py` (`train_step`), `optimizer/clip_grads.py`,
`optimizer/optimizer.py`, `distributed/finalize_model_grads.py`; the large terms are in `megatron_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.bindings import bind_layout
from tracelens.ledger.expressions import Expr, Number, to_expr
from tracelens.ledger.layout import GroupKind, Layout, Precision
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules import megatron_cp, megatron_dp, megatron_moe, megatron_tp, pipeline
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

STEP_SOURCE = "Megatron-LM training/training.py train_step"
NORM_SOURCE = "Megatron-Core optimizer/clip_grads.py get_grad_norm_fp32"
EMBEDDING_SOURCE = "Megatron-Core distributed/finalize_model_grads.py _allreduce_word_embedding_grads"
SCALER_SOURCE = "Megatron-Core optimizer/optimizer.py _unscale_main_grads_and_check_for_nan"


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of one pipeline rank."""
    sizes = bind_layout(model, layout)
    yield from megatron_tp.list_terms(model, layout, stage)
    yield from megatron_cp.list_terms(model, layout, stage)
    yield from megatron_moe.list_terms(layout, stage, sizes)
    # blocking without interleaving; with it, isend and irecv run beside the next chunk
    yield from pipeline.list_terms(layout, stage, overlap=Overlap.yes if layout.vp > 1 else Overlap.partial)
    yield from megatron_dp.list_terms(model, layout, stage, sizes)
    if model.tied_embeddings and layout.pp > 1 and (stage.has_embedding or stage.has_head):
        yield _step(
            "tied_embedding",
            GroupKind.embedding,
            layout.gradient_dtype,
            y.V / y.t * y.h,
            source=EMBEDDING_SOURCE,
        )
    yield from _scalars(model, layout, stage)


def _step(
    name: str,
    group: GroupKind,
    dtype: str,
    elements: Expr | int = 1,
    calls: Expr | int = 1,
    *,
    source: str = STEP_SOURCE,
) -> Term:
    return Term(
        name=f"step.{name}.all_reduce",
        group=group,
        primitive=Primitive.all_reduce,
        dtype=dtype,
        elements=to_expr(elements),
        calls=to_expr(calls),
        phase=Phase.optimizer,
        source=source,
    )


def _scalars(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    options = layout.megatron()
    group = GroupKind.optimizer_instance if layout.zero_level else GroupKind.model
    if layout.precision is Precision.fp16:
        yield _step("found_inf", group, "fp32", source=SCALER_SOURCE)
    if options.clip_gradients:
        # chained optimizers take one norm together where they share the group, which sharded ones do
        apart = model.moe is not None and layout.ep > 1 and not layout.zero_level
        yield _step("norm", group, "fp32", calls=2 if apart else 1, source=NORM_SOURCE)
    if options.status_scalars:
        yield _step("update_successful", GroupKind.model, "int32")
        yield _step("largest_norm", GroupKind.model, "fp32")
    if options.loss_average_per_microbatch and stage.has_head:
        yield _step("loss", GroupKind.dp_cp, "fp32", calls=y.m)
    elif stage.has_head:
        yield _step("loss", GroupKind.dp_cp, "fp32", 2)
    if options.per_token_loss:
        yield _step("num_tokens", GroupKind.dp_cp, "int32")
        if layout.pp > 1:
            yield Term(
                name="step.num_tokens.broadcast",
                group=GroupKind.pp,
                primitive=Primitive.broadcast,
                dtype="int32",
                elements=Number(1),
                calls=Number(1),
                phase=Phase.optimizer,
                source=EMBEDDING_SOURCE,
            )
