"""Megatron-Core, data parallel: gradient and parameter buffers, bucket by bucket.

Sources: Megatron-LM core 0.18 `distributed/distributed_data_parallel.py` (when buckets are cut),
`optimizer/distrib_optimizer.py` (`_compute_per_buffer_param_layout`: order, alignment, padding),
`distributed/param_and_grad_buffer.py` (`start_grad_sync`, `start_param_sync`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Bindings, Expr, Number, add
from tracelens.ledger.held import dense_formula, expert_formula
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, Tensor, block_tensors, embedding_tensors, head_tensors
from tracelens.ledger.results import Overlap
from tracelens.ledger.stages import Chunk, StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "Megatron-Core distributed/param_and_grad_buffer.py"
# the order in which a block's modules are registered; linear_qkv and a gated linear_fc1 are one tensor each
_MODULES = (
    ("attention_norm",),
    ("wo",),
    ("wq", "wk", "wv"),
    ("wq_a",),
    ("wq_b",),
    ("wkv_a",),
    ("wkv_b",),
    ("q_norm",),
    ("k_norm",),
    ("kv_norm",),
    ("sinks",),
    ("mlp_norm",),
    ("router",),
    ("w1", "w3"),
    ("w2",),
    ("shared_gate",),
)


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor of a buffer."""

    formula: Expr
    elements: int
    own_bucket: bool = False


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a buffer is reduced, and over how many ranks it is cut."""

    name: str
    whole: GroupKind
    shard: GroupKind
    replicate: GroupKind
    shards: int
    replicas: int
    divisor: Expr


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan, sizes: Bindings) -> Iterator[Term]:
    """Gradient reductions and parameter gathers of one pipeline rank, once per step."""
    dense = Buffer(
        "dp",
        GroupKind.dp_cp,
        GroupKind.dp_shard_cp,
        GroupKind.dp_replicate,
        layout.shard_ranks,
        layout.dp_replicate,
        y.n,
    )
    expert = Buffer(
        "expert_dp",
        GroupKind.expert_dp,
        GroupKind.expert_shard,
        GroupKind.expert_replicate,
        layout.expert_shard_ranks,
        max(1, layout.expert_dp // layout.expert_shard_ranks),
        y.n_e,
    )
    # experts have a buffer of their own as soon as they are spread over ranks
    apart = layout.ep > 1
    counts: dict[tuple[Buffer, Expr], int] = {}
    for index, chunk in enumerate(stage.chunks):
        limit = _bucket_limit(layout, stage, index)
        for buffer in (dense, expert) if apart else (dense,):
            parts = (buffer is expert,) if apart else (False, True)
            placed = _buffer_tensors(model, layout, stage, chunk, sizes, experts=parts)
            divisor = math.lcm(buffer.shards, 128) if layout.zero_level else None
            for bucket in fill_buckets(placed, limit, divisor):
                size = bucket.formula
                if len(stage.chunks) == 1 and len(bucket.tensors) == len(placed):
                    # one bucket for all: say it in layers instead of tensor by tensor
                    wholes = [expert_formula if routed else dense_formula for routed in parts]
                    size = add(*(whole(model, stage) for whole in wholes), bucket.padding)
                counts[buffer, size] = counts.get((buffer, size), 0) + 1
    # each of the two chained optimizers gathers every buffer when it is done
    gathers = 2 if apart and stage.moe_layers and not layout.megatron().overlap_param_gather else 1
    for index, ((buffer, size), count) in enumerate(counts.items()):
        for term in _bucket_terms(f"{buffer.name}.bucket{index}", buffer, size, Number(count), layout):
            is_gather = term.primitive is Primitive.all_gather
            yield replace(term, calls=gathers * term.calls) if is_gather else term


def _buffer_tensors(
    model: ModelSpec, layout: Layout, stage: StagePlan, chunk: Chunk, sizes: Bindings, *, experts: tuple[bool, ...]
) -> list[Placed]:
    """The tensors of a model chunk in reverse order of registration."""
    modules: list[tuple[Tensor, ...]] = []
    first, last = chunk.stage == 0, stage.has_head and chunk is stage.chunks[-1]
    shared = model.tied_embeddings and layout.pp > 1
    if first and False in experts:
        modules += [(tensor,) for tensor in embedding_tensors(model)]
    for layer in range(chunk.first_layer, chunk.first_layer + chunk.layers):
        modules += _block_modules(model, moe=model.is_moe_layer(layer), experts=experts)
    if last and False in experts:
        modules += [(tensor,) for tensor in head_tensors(model)]
        if shared and not first:
            modules += [(tensor,) for tensor in embedding_tensors(model)[:1]]
    placed: dict[tuple[Tensor, ...], Placed] = {}
    for module in dict.fromkeys(modules):
        formula = add(*(tensor.local_size for tensor in module))
        own = shared and module[0].name == "embedding"
        placed[module] = Placed(formula, int(formula.evaluate(sizes)), own)
    return [placed[module] for module in reversed(modules)]


def _is_routed(tensor: Tensor) -> bool:
    return tensor.part is Part.experts


@functools.lru_cache(maxsize=256)
def _block_modules(model: ModelSpec, *, moe: bool, experts: tuple[bool, ...]) -> tuple[tuple[Tensor, ...], ...]:
    """The tensors of a block in the order of registration, those that Megatron fuses together."""
    tensors = block_tensors(model, moe=moe)
    chosen = [tensor for tensor in tensors if _is_routed(tensor) in experts]
    modules: list[tuple[Tensor, ...]] = []
    for names in _MODULES:
        for suffix in ("", "_bias"):
            wanted = {name + suffix for name in names}
            for part in dict.fromkeys(tensor.part for tensor in chosen):
                module = tuple(tensor for tensor in chosen if tensor.name in wanted and tensor.part is part)
                if module:
                    modules.append(module)
    return tuple(modules)


def _bucket_limit(layout: Layout, stage: StagePlan, chunk: int) -> int | None:
    """Elements after which a bucket closes; None is one bucket for all."""
    options = layout.megatron()
    if not options.overlap_grad_reduce or stage.rank > 0 or chunk > 0:
        return None
    return options.bucket_elements or max(40_000_000, 1_000_000 * layout.dp * layout.cp)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that are reduced together, and the elements that lie between and after them."""

    tensors: tuple[Placed, ...]
    padding: int

    @property
    def formula(self) -> Expr:
        """Elements of the bucket."""
        return add(*(tensor.formula for tensor in self.tensors), self.padding)


def fill_buckets(placed: list[Placed], limit: int | None, divisor: int | None) -> Iterator[Bucket]:
    """Buckets closed by the tensor that reaches the limit.

    Args:
        placed: the tensors of a buffer in order.
        limit: elements that close a bucket; None is one bucket.
        divisor: bucket ends are padded to multiples of it and tensors start at multiples of 64; None pads nothing.
    """
    waiting: list[Placed] = []
    filled = 0
    for tensor in placed:
        if tensor.own_bucket and waiting:
            yield _close(waiting, filled, divisor)
            waiting, filled = [], 0
        waiting.append(tensor)
        filled = _next_start(filled, divisor) + tensor.elements
        if tensor.own_bucket or (limit is not None and filled >= limit):
            yield _close(waiting, filled, divisor)
            waiting, filled = [], 0
    if waiting:
        yield _close(waiting, filled, divisor)


def _next_start(position: int, divisor: int | None) -> int:
    return position if divisor is None else math.ceil(position / 64) * 64


def _close(tensors: list[Placed], filled: int, divisor: int | None) -> Bucket:
    end = filled if divisor is None else math.ceil(filled / divisor) * divisor
    return Bucket(tuple(tensors), end - sum(tensor.elements for tensor in tensors))


def _bucket_terms(name: str, buffer: Buffer, size: Expr, calls: Expr, layout: Layout) -> Iterator[Term]:
    options = layout.megatron()
    overlap = Overlap.yes if options.overlap_grad_reduce else Overlap.no
    reduction = Term(
        name=f"{name}.all_reduce",
        group=buffer.whole,
        primitive=Primitive.all_reduce,
        dtype=layout.gradient_dtype,
        elements=size,
        calls=calls,
        phase=Phase.backward if options.overlap_grad_reduce else Phase.optimizer,
        source=SOURCE,
        overlap=overlap,
    )
    if not layout.zero_level:
        yield reduction
        return
    yield replace(
        reduction,
        name=f"{name}.reduce_scatter",
        group=buffer.shard,
        primitive=Primitive.reduce_scatter,
    )
    if buffer.replicas > 1:
        # several optimizer instances: the shard is reduced once more, across them
        yield replace(reduction, group=buffer.replicate, elements=size / buffer.divisor)
    yield replace(
        reduction,
        name=f"{name}.all_gather",
        group=buffer.shard,
        primitive=Primitive.all_gather,
        dtype=layout.param_dtype,
        phase=Phase.forward if options.overlap_param_gather else Phase.optimizer,
        overlap=Overlap.yes if options.overlap_param_gather else Overlap.no,
    )
