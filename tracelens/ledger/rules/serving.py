"""Serving (vLLM): weights and key-value cache only, so no gradients, no optimizer and no data-parallel traffic.

`seq_len` is the tokens of one sequence in one engine step (1 when decoding, the prompt when prefilling) and
`micro_batch` the sequences of the batch; a step is one engine step. Source: vLLM 0.11
`model_executor/layers/linear.py`, `vocab_parallel_embedding.py`, `logits_processor.py`,
`distributed/device_communicators/all2all.py`, `v1/worker/gpu_model_runner.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.results import Overlap
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Payload, Term
from tracelens.results import Phase

SOURCE = "vLLM model_executor/layers"
ACTIVATION = y.s * y.b * y.h


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """The terms of one pipeline rank in one engine step."""
    activation = Payload(ACTIVATION, layout.param_dtype)
    if layout.tp > 1:
        pairs = y.L_s + (y.L_s if layout.ep == 1 else y.L_d)
        yield _term("tp.blocks", GroupKind.tp, Primitive.all_reduce, activation, pairs * y.m)
        if stage.has_embedding:
            yield _term("tp.embedding", GroupKind.tp, Primitive.all_reduce, activation, y.m)
        if stage.has_head:
            # only the last position of a sequence is sampled
            logits = Payload(y.b * y.V, layout.param_dtype)
            yield _term("tp.logits", GroupKind.tp, Primitive.all_gather, logits, y.m)
    if layout.ep > 1 and stage.moe_layers:
        routed = Payload(ACTIVATION / y.t * y.k, layout.param_dtype)
        term = _term("ep.tokens", GroupKind.ep, Primitive.all_to_all, routed, 2 * y.L_e * y.m)
        yield replace(term, elements_vary=True)
    if layout.pp > 1:
        # hidden states and the residual beside them
        messages = (
            (Primitive.send, y.chunks_sent_forward, stage.sends_forward),
            (Primitive.recv, y.chunks_received_forward, stage.receives_forward),
        )
        for primitive, count, present in messages:
            if present:
                calls = Number(2) * count * y.m
                yield _term("pp.hidden_and_residual", GroupKind.pp, primitive, activation, calls)


def _term(name: str, group: GroupKind, primitive: Primitive, payload: Payload, calls: Expr) -> Term:
    return Term(
        name=f"{name}.{primitive}",
        group=group,
        primitive=primitive,
        dtype=payload.dtype,
        elements=payload.elements,
        calls=calls,
        phase=Phase.forward,
        source=SOURCE,
        overlap=Overlap.no,
    )
