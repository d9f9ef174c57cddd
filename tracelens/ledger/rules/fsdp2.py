"""FSDP2 (`fully_shard`): one all-gather and one reduce-scatter per unit.

Sources: torch `distributed/fsdp/_fully_shard/_fsdp_param_group.py` (when), `_fsdp_collectives.py` (what),
`_fsdp_param.py` (padding of dim 0); torchtitan `distributed/fsdp.py` (units, resharding).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Bindings, Expr, Number, add, ceil_to, to_expr
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.options import NativeOptions, Units
from tracelens.ledger.parameters import (
    ONE,
    Part,
    Tensor,
    block_tensors,
    embedding_tensors,
    head_tensors,
)
from tracelens.ledger.results import Overlap
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "torch distributed/fsdp/_fully_shard/_fsdp_param_group.py"
TITAN_SOURCE = "torchtitan distributed/fsdp.py apply_fsdp_to_decoder"
CHUNKED_SOURCE = "torchtitan components/loss.py ChunkedLossWrapper"


NONE = Number(0)


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that are gathered together."""

    name: str
    tensors: tuple[Tensor, ...]
    count: Expr = ONE
    """Units of this kind on the pipeline rank."""
    kept: Expr = NONE
    """How many of them stay gathered between forward and backward."""
    expert: bool = False


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan, sizes: Bindings) -> Iterator[Term]:
    """All-gathers, reduce-scatters and the all-reduce of HSDP, unit by unit."""
    if not layout.zero_level or layout.shard_ranks * layout.dp_replicate == 1:
        return
    for unit in list_units(model, layout, stage):
        if unit.expert and layout.expert_shard_ranks == 1:
            continue
        yield from _unit_terms(unit, layout, sizes)


def reshards(layout: Layout) -> bool:
    """Whether blocks are freed after forward; torchtitan's default keeps them under a pipeline."""
    if layout.zero_level < 3:
        return False
    given = layout.reshard_after_forward
    return layout.pp == 1 if given is None else given is not False


def list_units(model: ModelSpec, layout: Layout, stage: StagePlan) -> list[Unit]:
    """What is wrapped on one pipeline rank."""
    options = layout.native()
    blocks = _block_units(model, layout, stage, options)
    last_kept = to_expr(0 if options.root_reshards and reshards(layout) else 1)
    embedding = tuple(embedding_tensors(model)) if stage.has_embedding else ()
    head = tuple(head_tensors(model)) if stage.has_head else ()
    if options.units is Units.blocks:
        # every model chunk has a root of its own, which holds what its blocks leave
        roots = [(*embedding, *head)] if layout.pp == 1 else [embedding, head]
        return [*(Unit("root", root, kept=last_kept) for root in roots if root), *blocks]
    if model.tied_embeddings and layout.pp == 1:
        return [Unit("head", (*embedding, *head), kept=last_kept), *blocks]
    kept = to_expr(0 if reshards(layout) else 1)
    units = [Unit("embedding", embedding, kept=kept)] if embedding else []
    return [*units, *blocks, *([Unit("head", head, kept=last_kept)] if head else [])]


def _block_units(model: ModelSpec, layout: Layout, stage: StagePlan, options: NativeOptions) -> list[Unit]:
    units: list[Unit] = []
    kinds = [("block", False, y.L_d, stage.layers - stage.moe_layers), ("moe_block", True, y.L_e, stage.moe_layers)]
    for name, moe, symbol, count in kinds:
        if not count:
            continue
        kept = _kept_blocks(layout, options, symbol)
        tensors = block_tensors(model, moe=moe)
        own_mesh = moe and layout.ep > 1
        dense = tuple(tensor for tensor in tensors if tensor.part is not Part.experts or not own_mesh)
        units.append(Unit(name, dense, symbol, kept))
        if own_mesh:
            experts = tuple(tensor for tensor in tensors if tensor.part is Part.experts)
            units.append(Unit("experts", experts, symbol, kept, expert=True))
    return units


def _kept_blocks(layout: Layout, options: NativeOptions, count: Expr) -> Expr:
    if not reshards(layout):
        return count
    return to_expr(0 if options.last_block_reshards else 1)


def unit_size(unit: Unit, sizes: Bindings) -> Expr:
    """Elements of a gathered unit, every tensor padded so that its rows divide over the shards."""
    return add(*(padded_size(tensor, y.n_e if unit.expert else y.n, sizes) for tensor in unit.tensors))


def padded_size(tensor: Tensor, shards: Expr, sizes: Bindings) -> Expr:
    """Elements of a tensor whose rows are padded to a multiple of the shards; plain where they divide."""
    rows = tensor.copies / y.e if tensor.part is Part.experts else tensor.local_rows
    if rows.evaluate(sizes) % shards.evaluate(sizes) == 0:
        return tensor.local_size
    if tensor.part is Part.experts:
        # more shards than experts: torchtitan shards the second dimension instead
        return tensor.local_size
    return ceil_to(rows, shards) * tensor.local_columns


def _unit_terms(unit: Unit, layout: Layout, sizes: Bindings) -> Iterator[Term]:
    options = layout.native()
    elements = unit_size(unit, sizes)
    group = GroupKind.expert_shard if unit.expert else GroupKind.dp_shard_cp
    dtype = layout.param_dtype if options.mixed_precision else "fp32"
    gather = Term(
        name=f"fsdp.{unit.name}.all_gather",
        group=group,
        primitive=Primitive.all_gather,
        dtype=dtype,
        elements=elements,
        calls=_forward_gathers(unit, layout),
        phase=Phase.forward,
        source=SOURCE if options.units is Units.blocks else TITAN_SOURCE,
        overlap=Overlap.yes,
    )
    chunked = unit.name == "head" and options.loss_chunks > 0 and layout.pp == 1
    if chunked:
        yield from _chunked_head(unit, layout, gather, sizes)
        return
    yield gather
    small = not isinstance(layout.reshard_after_forward, bool) and layout.reshard_after_forward is not None
    yield replace(
        gather,
        name=f"fsdp.{unit.name}.all_gather_backward",
        calls=y.m * (unit.count - unit.kept),
        phase=Phase.backward,
        group=GroupKind.reshard if small and not unit.expert else group,
    )
    yield from _reductions(unit.name, elements, unit, layout, gather)


def _forward_gathers(unit: Unit, layout: Layout) -> Expr:
    if layout.pp == 1:
        return y.m * unit.count
    # a pipeline keeps what is not freed until the step ends
    return y.m * (unit.count - unit.kept) + unit.kept


def _reductions(name: str, elements: Expr, unit: Unit, layout: Layout, gather: Term) -> Iterator[Term]:
    once = layout.pp > 1 or layout.native().accumulate_without_sync
    shards = y.n_e if unit.expert else y.n
    replicas = layout.expert_dp // layout.expert_shard_ranks if unit.expert else layout.dp_replicate
    scatter = replace(
        gather,
        name=f"fsdp.{name}.reduce_scatter",
        primitive=Primitive.reduce_scatter,
        dtype=layout.gradient_dtype,
        elements=elements,
        calls=unit.count if once else y.m * unit.count,
        phase=Phase.backward,
    )
    yield scatter
    if replicas > 1:
        yield replace(
            scatter,
            name=f"fsdp.{name}.all_reduce",
            primitive=Primitive.all_reduce,
            group=GroupKind.expert_replicate if unit.expert else GroupKind.dp_replicate,
            elements=elements / shards,
        )


def _chunked_head(unit: Unit, layout: Layout, gather: Term, sizes: Bindings) -> Iterator[Term]:
    """Final norm and head, whose loss runs in chunks: gathered for each, and again for the norm's backward."""
    yield replace(gather, calls=2 * y.m, source=CHUNKED_SOURCE)
    backward = replace(gather, name="fsdp.head.all_gather_backward", phase=Phase.backward, source=CHUNKED_SOURCE)
    yield replace(backward, calls=y.m)
    parts: Iterable[tuple[str, bool]] = (("head", False), ("final_norm", True))
    for name, is_norm in parts:
        tensors = [tensor for tensor in unit.tensors if (tensor.part is Part.norm) is is_norm]
        if tensors:
            elements = add(*(padded_size(tensor, y.n, sizes) for tensor in tensors))
            yield from _reductions(name, elements, unit, layout, gather)
