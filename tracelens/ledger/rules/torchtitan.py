"""Native PyTorch: torchtitan, and scripts that use the same building blocks without its trainer.

Sources: torchtitan 0.3.0 (`trainer.py`, `distributed/`), torch 2.13; the parts are in `fsdp2.py`, `dtensor_tp.py`,
`native_cp.py`, `pipeline.py` and `experts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.bindings import bind_layout
from tracelens.ledger.expressions import Expr, Number
from tracelens.ledger.held import dense_formula, expert_formula
from tracelens.ledger.layout import Framework, GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, block_tensors, embedding_tensors, head_tensors
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules import dtensor_tp, experts, fsdp2, native_cp, pipeline
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

TRAINER_SOURCE = "torchtitan trainer.py train_step"
NORM_SOURCE = "torch nn/utils/clip_grad.py get_total_norm on DTensors"
BIAS_SOURCE = "torchtitan components/optimizer.py (expert bias from tokens per expert)"


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of one pipeline rank."""
    sizes = bind_layout(model, layout)
    yield from fsdp2.list_terms(model, layout, stage, sizes)
    if layout.zero_level == 0 and layout.dp * layout.cp > 1:
        yield _unsharded_gradients(model, stage, layout)
    yield from dtensor_tp.list_terms(model, layout, stage)
    yield from native_cp.list_terms(layout, stage)
    yield from pipeline.list_terms(layout, stage, overlap=Overlap.yes)
    if layout.ep > 1 and stage.moe_layers:
        yield from experts.list_all_to_all_terms(layout, layout.param_dtype)
    yield from _norm_terms(model, layout, stage)
    yield from _scalars(layout, stage)


def _unsharded_gradients(model: ModelSpec, stage: StagePlan, layout: Layout) -> Term:
    """`replicate`: every gradient all-reduced once, in buckets that are not told apart here."""
    return Term(
        name="dp.gradients.all_reduce",
        group=GroupKind.dp_cp,
        primitive=Primitive.all_reduce,
        dtype=layout.gradient_dtype,
        elements=dense_formula(model, stage) + expert_formula(model, stage),
        calls=Number(1),
        phase=Phase.backward,
        source="torch distributed/_composable/replicate.py",
        overlap=Overlap.yes,
    )


def count_tensors(model: ModelSpec, layout: Layout, stage: StagePlan, *, routed: bool | None = None) -> Expr:
    """Parameter tensors on a pipeline rank; `routed` keeps only those of experts, or only the others."""

    def count(tensors: Iterable[Part]) -> int:
        return sum(routed is None or (part is Part.experts) is routed for part in tensors)

    # queries, keys and values of torchtitan 0.3 are one tensor
    fused = 2 if layout.native().fused_qkv and routed is not True and model.latent is None else 0
    total: Expr = Number(0)
    if stage.has_embedding:
        total = total + count(tensor.part for tensor in embedding_tensors(model))
    if stage.has_head:
        total = total + count(tensor.part for tensor in head_tensors(model))
    for moe, symbol in ((False, y.L_d), (True, y.L_e)):
        if stage.moe_layers if moe else stage.layers - stage.moe_layers:
            total = total + symbol * (count(tensor.part for tensor in block_tensors(model, moe=moe)) - fused)
    return total


def _norm_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The norms of all tensors, stacked, are reduced over every axis that cuts them."""
    if not layout.native().clip_gradients:
        return
    apart = layout.ep > 1 and stage.moe_layers > 0
    dense = count_tensors(model, layout, stage, routed=False if apart else None)
    groups = [(GroupKind.dp_shard_cp, dense, layout.shard_ranks), (GroupKind.tp, dense, layout.tp)]
    if apart:
        routed = count_tensors(model, layout, stage, routed=True)
        groups += [
            (GroupKind.expert_shard, routed, layout.expert_shard_ranks),
            (GroupKind.ep, routed, layout.ep),
        ]
    if layout.framework is Framework.torchtitan:
        groups.append((GroupKind.pp, Number(1), layout.pp))
    for group, elements, size in groups:
        if size > 1:
            yield _scalar(f"norm.{group}", group, "fp32", NORM_SOURCE, elements=elements)


def _scalars(layout: Layout, stage: StagePlan) -> Iterator[Term]:
    options = layout.native()
    if options.loss_average and layout.dp * layout.cp > 1:
        yield _scalar("loss", GroupKind.dp_cp, "fp32", "script", calls=1)
    if not options.trainer_scalars or layout.dp * layout.cp == 1:
        return
    yield _scalar("valid_tokens", GroupKind.dp_cp, "int64", TRAINER_SOURCE, calls=1)
    yield _scalar("logged_loss", GroupKind.dp_cp, "fp32", TRAINER_SOURCE, calls=2)
    yield _scalar("logged_tokens", GroupKind.dp_cp, "int64", TRAINER_SOURCE, calls=1)
    if stage.moe_layers:
        yield _scalar("tokens_per_expert", GroupKind.dp_cp, "fp32", BIAS_SOURCE, elements=y.L_e * y.E)


def _scalar(
    name: str, group: GroupKind, dtype: str, source: str, *, elements: Expr | None = None, calls: int = 1
) -> Term:
    return Term(
        name=f"step.{name}.all_reduce",
        group=group,
        primitive=Primitive.all_reduce,
        dtype=dtype,
        elements=Number(1) if elements is None else elements,
        calls=Number(calls),
        phase=Phase.optimizer,
        source=source,
    )
