"""Tensor parallelism by DTensor: what `redistribute` inserts between placements.

Sources: torch `distributed/tensor/parallel/style.py` (Colwise, Rowwise, SequenceParallel), seen in runs of PyTorch
2.13 under a fake process group; torchtitan `distributed/tensor_parallel.py`, `components/loss.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, to_expr
from tracelens.ledger.layout import GroupKind, Layout, Recompute
from tracelens.ledger.model import ModelSpec, Norm
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import ACTIVATION, TOKENS
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "torch distributed/tensor/parallel/style.py"
LOSS_SOURCE = "torch distributed/tensor/parallel/loss.py"
FORWARD, BACKWARD = Phase.forward, Phase.backward
AG, RS, AR = Primitive.all_gather, Primitive.reduce_scatter, Primitive.all_reduce


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """Tensor-parallel traffic of one pipeline rank."""
    if layout.tp == 1:
        return
    if layout.has_sequence_parallel:
        yield from _with_sequence_parallel(model, layout, stage)
    else:
        yield from _without_sequence_parallel(model, layout, stage)
    if stage.has_head:
        yield from _loss(layout)


def _term(
    name: str, primitive: Primitive, calls: Expr | int, phase: Phase, dtype: str, elements: Expr = ACTIVATION
) -> Term:
    return Term(
        name=f"tp.{name}.{primitive}",
        group=GroupKind.tp,
        primitive=primitive,
        dtype=dtype,
        elements=elements,
        calls=to_expr(calls),
        phase=phase,
        source=SOURCE,
        overlap=Overlap.no,
    )


def _with_sequence_parallel(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    dtype = layout.param_dtype
    again_gathers, again_scatters = _recomputed(layout)
    layers = y.L_s * y.m
    if stage.layers:
        yield _term("blocks.forward", AG, 2 * layers, FORWARD, dtype)
        yield _term("blocks.forward", RS, 2 * layers, FORWARD, dtype)
        yield _term("blocks.backward", AG, (2 + again_gathers) * layers, BACKWARD, dtype)
        yield _term("blocks.backward", RS, (2 + again_scatters) * layers, BACKWARD, dtype)
    if stage.has_embedding:
        yield _term("embedding.forward", RS, y.m, FORWARD, dtype)
        yield _term("embedding.backward", AG, y.m, BACKWARD, dtype)
    if stage.has_head:
        yield _term("head.forward", AG, y.m, FORWARD, dtype)
        yield _term("head.backward", RS, y.m, BACKWARD, dtype)
    if layout.zero_level and layout.shard_ranks * layout.dp_replicate > 1:
        # FSDP's hook makes partial gradients whole; without it they stay partial until someone asks
        yield from _norm_gradients(model, layout, stage)


def _recomputed(layout: Layout) -> tuple[int, int]:
    """All-gathers and reduce-scatters (or all-reduces) of a block that backward issues again."""
    if layout.recompute is Recompute.full:
        return 2, 1 if layout.native().recompute_stops_early else 2
    if layout.recompute is Recompute.op_selective:
        # outputs of reduce-scatters are in torchtitan's save list
        return 2, 0
    return 0, 0


def _norm_gradients(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """A norm that sees a slice of the sequence has a partial gradient: one small all-reduce per tensor."""
    per_norm = 2 if model.norm is Norm.layernorm else 1
    norms = 2 * per_norm * y.L_s + (per_norm if stage.has_head else 0)
    if stage.layers or stage.has_head:
        yield _term("norms", AR, norms * y.m, BACKWARD, layout.param_dtype, y.h)
    if model.qk_norm and stage.layers:
        yield _term("qk_norms", AR, 2 * y.L_s * y.m, BACKWARD, layout.param_dtype, y.d_h)


def _without_sequence_parallel(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    dtype = layout.param_dtype
    # each column-parallel linear reduces the gradient of its own copy of the input: q, k, v, w1, w3
    per_layer = 3 + (2 if model.gated else 1)
    _, again = _recomputed(layout)
    layers = y.L_s * y.m
    if stage.layers:
        yield _term("blocks.forward", AR, 2 * layers, FORWARD, dtype)
        yield _term("blocks.backward", AR, (per_layer + again) * layers, BACKWARD, dtype)
    if stage.has_embedding:
        yield _term("embedding.forward", AR, y.m, FORWARD, dtype)
    if stage.has_head:
        yield _term("head.backward", AR, y.m, BACKWARD, dtype)


def _loss(layout: Layout) -> Iterator[Term]:
    """Logits gathered, or a loss over the cut vocabulary: maximum, sum of exponentials, picked logit."""
    options = layout.native()
    if not options.loss_parallel:
        yield _term("logits", AG, y.m, FORWARD, layout.param_dtype, TOKENS * y.V)
        return
    chunks = options.loss_chunks or 1
    tokens = TOKENS / chunks
    yield Term(
        name="tp.loss.all_reduce",
        group=GroupKind.tp,
        primitive=AR,
        dtype="fp32",
        elements=tokens,
        calls=3 * chunks * y.m,
        phase=FORWARD,
        source=LOSS_SOURCE,
    )
