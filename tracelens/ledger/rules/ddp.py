"""`torch.nn.parallel.DistributedDataParallel`: gradients all-reduced bucket by bucket.

Source: torch `csrc/distributed/c10d/reducer.cpp` (`compute_bucket_assignment_by_size`, `rebuild_buckets`): after
the first step the buckets follow the order in which gradients became ready.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tracelens.collectives import DTYPE_BYTES, Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.bindings import bind_layout
from tracelens.ledger.expressions import Expr, Number
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, block_tensors
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules import buckets, experts
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "torch csrc/distributed/c10d/reducer.cpp"
MIB = 1024**2


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of every rank."""
    if layout.ep > 1:
        yield from experts.list_all_to_all_terms(layout, layout.gradient_dtype)
        yield from _expert_gradients(model, layout)
    if layout.dp > 1:
        yield from _gradients(model, layout, stage)
        if layout.ddp().loss_average:
            yield _term("step.loss.all_reduce", "fp32", Number(1), Number(1), Phase.optimizer, "script")


def _gradients(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    options = layout.ddp()
    size = DTYPE_BYTES[layout.gradient_dtype]
    first = options.first_bucket_mib
    cap = options.bucket_mib * MIB / size
    caps = itertools.chain([cap if first is None else first * MIB / size], itertools.repeat(cap))
    ready = buckets.gradients(model, stage, bind_layout(model, layout), experts=layout.ep == 1)
    once = Number(1) if options.accumulate_without_sync else y.m
    for index, (elements, calls) in enumerate(buckets.count_equal(buckets.fill_until_full(ready, caps))):
        name = f"dp.bucket{index}.all_reduce"
        yield _term(name, layout.gradient_dtype, elements, calls * once, Phase.backward, SOURCE)


def _expert_gradients(model: ModelSpec, layout: Layout) -> Iterator[Term]:
    """Experts are no part of the wrapped module; replicas of them are reduced in a group of their own."""
    if layout.expert_dp == 1:
        return
    tensors = [tensor for tensor in block_tensors(model, moe=True) if tensor.part is Part.experts]
    for tensor in tensors:
        name = f"expert_dp.{tensor.name}.all_reduce"
        term = _term(name, layout.gradient_dtype, tensor.local_size, y.L_e, Phase.backward, SOURCE)
        yield replace(term, group=GroupKind.expert_dp)


def _term(name: str, dtype: str, elements: Expr, calls: Expr, phase: Phase, source: str) -> Term:
    return Term(
        name=name,
        group=GroupKind.dp_cp,
        primitive=Primitive.all_reduce,
        dtype=dtype,
        elements=elements,
        calls=calls,
        phase=phase,
        source=source,
        overlap=Overlap.yes if phase is Phase.backward else Overlap.no,
    )
