"""FSDP1 (`FullyShardedDataParallel`): one flat parameter a block, and the root's.

Source: torch `distributed/fsdp/_runtime_utils.py` (`_pre_forward`, `_post_forward`, `_reduce_grad`) and
`_flat_param.py` (padding of the flat parameter to the world size). The root is never resharded after forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.bindings import bind_layout
from tracelens.ledger.expressions import Bindings, Expr, Number, ceil_to
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import (
    Tensor,
    block_tensors,
    embedding_tensors,
    head_tensors,
    total_local_size,
)
from tracelens.ledger.results import Overlap
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "torch distributed/fsdp/_runtime_utils.py"


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of every rank."""
    sizes = bind_layout(model, layout)
    if layout.dp == 1:
        return
    yield from _unit_terms("root", [*embedding_tensors(model), *head_tensors(model)], Number(1), layout, sizes)
    for name, moe, count in (("block", False, y.L_d), ("moe_block", True, y.L_e)):
        if stage.moe_layers if moe else stage.layers - stage.moe_layers:
            yield from _unit_terms(name, block_tensors(model, moe=moe), count, layout, sizes)
    for wanted, scalar in ((layout.fsdp1().clip_gradients, "norm"), (layout.fsdp1().loss_average, "loss")):
        if wanted:
            yield Term(
                name=f"step.{scalar}.all_reduce",
                group=GroupKind.dp_shard_cp if layout.zero_level else GroupKind.dp_cp,
                primitive=Primitive.all_reduce,
                dtype="fp32",
                elements=Number(1),
                calls=Number(1),
                phase=Phase.optimizer,
                source="torch distributed/fsdp/fully_sharded_data_parallel.py clip_grad_norm_",
            )


def _unit_terms(name: str, tensors: Iterable[Tensor], count: Expr, layout: Layout, sizes: Bindings) -> Iterator[Term]:
    elements = total_local_size(tensors)
    if elements.evaluate(sizes) % layout.shard_ranks:
        elements = ceil_to(elements, y.n)
    gather = Term(
        name=f"fsdp.{name}.all_gather",
        group=GroupKind.dp_shard_cp,
        primitive=Primitive.all_gather,
        dtype=layout.param_dtype,
        elements=elements,
        calls=y.m * count,
        phase=Phase.forward,
        source=SOURCE,
        overlap=Overlap.yes,
    )
    if layout.zero_level:
        yield gather
        if layout.zero_level == 3 and name != "root":
            yield replace(gather, name=f"fsdp.{name}.all_gather_backward", phase=Phase.backward)
    yield from _reductions(name, elements, count, layout, gather)


def _reductions(name: str, elements: Expr, count: Expr, layout: Layout, gather: Term) -> Iterator[Term]:
    once = layout.fsdp1().accumulate_without_sync
    reduce = replace(
        gather,
        name=f"fsdp.{name}.reduce_scatter",
        primitive=Primitive.reduce_scatter,
        dtype=layout.gradient_dtype,
        calls=count if once else y.m * count,
        phase=Phase.backward,
    )
    if layout.zero_level:
        yield reduce
    if layout.dp_replicate > 1:
        yield replace(
            reduce,
            name=f"fsdp.{name}.all_reduce",
            primitive=Primitive.all_reduce,
            group=GroupKind.dp_replicate,
            elements=elements / y.n,
        )
