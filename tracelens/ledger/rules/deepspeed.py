"""DeepSpeed ZeRO 0 to 3, Ulysses sequence parallelism and its padded mixture of experts.

Sources: DeepSpeed 0.19 `runtime/engine.py` (`buffered_allreduce_fallback`), `sequence/layer.py`,
`runtime/zero/stage_1_and_2.py`, `stage3.py`, `partitioned_param_coordinator.py`, `moe/sharded_moe.py`. Seen in runs:
levels 1 and 2 all-reduce whole buckets although `reduce_scatter` is on. Level 3 groups parameters for a gather as
its prefetcher sees fit, so its number of all-gathers is an upper bound; its bytes are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.bindings import bind_layout
from tracelens.ledger.expressions import Expr, Number, add, ceil_to, ceiling, to_expr
from tracelens.ledger.held import dense_formula, expert_formula
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, block_tensors
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules import buckets
from tracelens.ledger.rules.activations import TOKENS
from tracelens.ledger.rules.buckets import Sized
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Payload, Term
from tracelens.results import Phase

LOW_SOURCE = "DeepSpeed runtime/zero/stage_1_and_2.py average_tensor"
STAGE3_SOURCE = "DeepSpeed runtime/zero/stage3.py, partitioned_param_coordinator.py"
ENGINE_SOURCE = "DeepSpeed runtime/engine.py buffered_allreduce_fallback"
ULYSSES_SOURCE = "DeepSpeed sequence/layer.py _SeqAllToAll"
MOE_SOURCE = "DeepSpeed moe/sharded_moe.py MOELayer"
ENGINE_BUCKET = 500_000_000.0
"""Elements of a bucket of level 0; no option changes it."""
AR, AG, RS = Primitive.all_reduce, Primitive.all_gather, Primitive.reduce_scatter


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of every rank."""
    sizes = bind_layout(model, layout)
    yield from _ulysses(layout)
    if layout.ep > 1:
        yield from _padded_experts(model, layout)
    if layout.dp * layout.cp == 1:
        return
    # levels 2 and 3 (and 1 with overlap) reduce from hooks, the others walk the parameters afterwards
    hooks = layout.zero_level > 1 or (layout.zero_level == 1 and layout.deepspeed().overlap_comm)
    ready = buckets.gradients(model, stage, sizes, experts=layout.ep == 1, registered=not hooks)
    if layout.zero_level == 0:
        yield from _all_reduced_at_the_boundary(ready, layout)
    elif layout.zero_level < 3:
        whole = dense_formula(model, stage)
        if layout.ep == 1:
            whole = whole + expert_formula(model, stage)
        yield from _levels_one_and_two(ready, whole, layout)
    else:
        yield from _level_three(ready, layout)
    yield from _scalars(layout)


def _term(name: str, primitive: Primitive, payload: Payload, calls: Expr | int, source: str) -> Term:
    """A term of the data-parallel group in backward."""
    return Term(
        name=name,
        group=GroupKind.dp_cp,
        primitive=primitive,
        dtype=payload.dtype,
        elements=payload.elements,
        calls=to_expr(calls),
        phase=Phase.backward,
        source=source,
        overlap=Overlap.partial,
    )


def _reduction_dtype(layout: Layout) -> str:
    """Levels 1 and 2 reduce in fp32 as soon as the sequence is cut (`seq_parallel` in the engine)."""
    cut = layout.cp > 1 and layout.grad_dtype is None and 0 < layout.zero_level < 3
    return "fp32" if cut else layout.gradient_dtype


def _all_reduced_at_the_boundary(ready: list[Sized], layout: Layout) -> Iterator[Term]:
    filled = buckets.fill_until_full(ready, itertools.repeat(ENGINE_BUCKET + 1))
    for index, (elements, calls) in enumerate(buckets.count_equal(filled)):
        payload = Payload(elements, _reduction_dtype(layout))
        yield _term(f"dp.bucket{index}.all_reduce", AR, payload, calls, ENGINE_SOURCE)


def _levels_one_and_two(ready: list[Sized], whole: Expr, layout: Layout) -> Iterator[Term]:
    options = layout.deepspeed()
    # level 1 waits for the accumulation boundary; level 2 keeps no whole gradients, so it can't
    times = y.m if layout.zero_level == 2 else Number(1)
    flushed = buckets.flush_before_overflow(ready, options.reduce_bucket_elements)
    for index, (elements, calls) in enumerate(buckets.count_equal(flushed)):
        payload = Payload(elements, _reduction_dtype(layout))
        primitive = AR if options.multi_rank_bucket_allreduce else Primitive.reduce
        yield _term(f"dp.bucket{index}.{primitive}", primitive, payload, calls * times, LOW_SOURCE)
    if sum(item.elements for item in ready) % (2 * layout.dp * layout.cp):
        # the flat group is aligned to nccl_start_alignment_factor (2) times the ranks
        whole = ceil_to(whole, 2 * y.d * y.c)
    parameters = Payload(whole, layout.param_dtype)
    yield _in_optimizer(_term("dp.parameters.all_gather", AG, parameters, 1, LOW_SOURCE))


def _level_three(ready: list[Sized], layout: Layout) -> Iterator[Term]:
    options = layout.deepspeed()
    large = [item for item in ready if item.elements > options.persistence_threshold]
    small = [item for item in ready if item.elements <= options.persistence_threshold]
    for index, (elements, calls) in enumerate(_padded_each(large, layout)):
        payload = Payload(elements, layout.param_dtype)
        fetched = _term(f"dp.parameter{index}.all_gather", AG, payload, calls * y.m, STAGE3_SOURCE)
        yield replace(fetched, phase=Phase.forward)
    for index, (elements, calls) in enumerate(_padded_each(_released(large, layout), layout)):
        payload = Payload(elements, layout.param_dtype)
        name = f"dp.parameter{index}.all_gather_backward"
        yield _term(name, AG, payload, calls * y.m, STAGE3_SOURCE)
    flushed = buckets.flush_before_overflow(ready, options.reduce_bucket_elements)
    padded = [[Sized(_padded(item, layout), item.elements) for item in bucket] for bucket in flushed]
    for index, (elements, calls) in enumerate(buckets.count_equal(padded)):
        payload = Payload(elements, layout.gradient_dtype)
        yield _term(f"dp.bucket{index}.reduce_scatter", RS, payload, calls * y.m, STAGE3_SOURCE)
    for index, (elements, calls) in enumerate(_padded_each(small, layout)):
        payload = Payload(elements, layout.param_dtype)
        name = f"dp.persistent_parameter{index}.all_gather"
        yield _in_optimizer(_term(name, AG, payload, calls, STAGE3_SOURCE))


def _padded(item: Sized, layout: Layout) -> Expr:
    ranks = layout.dp * layout.cp
    return item.formula if item.elements % ranks == 0 else ceil_to(item.formula, y.d * y.c)


def _padded_each(items: list[Sized], layout: Layout) -> Iterator[tuple[Expr, Expr]]:
    return buckets.count_equal([Sized(_padded(item, layout), item.elements)] for item in items)


def _released(ready: list[Sized], layout: Layout) -> list[Sized]:
    """Parameters whose next use lies further off than `max_reuse_distance`: freed, then gathered again.

    Between a parameter's forward and its backward lie, twice, all that come after it.
    """
    distance = 0
    released: list[Sized] = []
    for item in ready:
        if 2 * distance >= layout.deepspeed().max_reuse_distance:
            released.append(item)
        distance += item.elements
    return released


def _in_optimizer(term: Term) -> Term:
    return replace(term, phase=Phase.optimizer, overlap=Overlap.no)


def _scalars(layout: Layout) -> Iterator[Term]:
    options = layout.deepspeed()
    if not layout.zero_level:
        return
    if options.overflow_check and layout.zero_level < 3:
        flag = Payload(Number(1), "uint8")
        yield _in_optimizer(_term("step.overflow.all_reduce", AR, flag, 1, LOW_SOURCE))
    if options.clip_gradients:
        norm = Payload(Number(1), "fp64" if layout.zero_level == 3 else "fp32")
        yield _in_optimizer(_term("step.norm.all_reduce", AR, norm, 1, LOW_SOURCE))


def _ulysses(layout: Layout) -> Iterator[Term]:
    """Queries, keys, values and outputs from slices of the sequence to slices of the heads, and back."""
    if layout.cp == 1:
        return
    for phase in (Phase.forward, Phase.backward):
        for name, width in (("q_and_out", y.h_q), ("k_and_v", y.h_kv)):
            yield Term(
                name=f"cp.ulysses.{name}.{phase}.all_to_all",
                group=GroupKind.cp,
                primitive=Primitive.all_to_all,
                dtype=layout.param_dtype,
                elements=TOKENS * width,
                calls=2 * y.L_s * y.m,
                phase=phase,
                source=ULYSSES_SOURCE,
            )


def _padded_experts(model: ModelSpec, layout: Layout) -> Iterator[Term]:
    """Every rank sends every expert its whole capacity, filled or not."""
    factor = 1.0 if layout.capacity_factor is None else layout.capacity_factor
    slots = y.E * ceiling(Number(factor) * TOKENS * y.k / y.E) * y.h
    for phase in (Phase.forward, Phase.backward):
        yield Term(
            name=f"ep.tokens.{phase}.all_to_all",
            group=GroupKind.ep,
            primitive=Primitive.all_to_all,
            dtype=layout.param_dtype,
            elements=slots,
            calls=2 * y.L_e * y.m,
            phase=phase,
            source=MOE_SOURCE,
        )
    if layout.expert_dp > 1:
        tensors = [tensor for tensor in block_tensors(model, moe=True) if tensor.part is Part.experts]
        yield Term(
            name="expert_dp.gradients.all_reduce",
            group=GroupKind.expert_dp,
            primitive=AR,
            dtype=_reduction_dtype(layout),
            elements=y.L_e * add(*(tensor.local_size for tensor in tensors)),
            calls=y.m if layout.zero_level == 2 else Number(1),
            phase=Phase.backward,
            source=LOW_SOURCE,
            overlap=Overlap.partial,
        )
