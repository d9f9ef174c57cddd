"""Megatron-Core, tensor parallel: layers, embedding, head, loss, and the batch that one rank reads for all.

Sources: Megatron-LM core 0.18, `tensor_parallel/layers.py` (`LinearWithGradAccumulationAndAsyncCommunication`),
`tensor_parallel/mappings.py`, `tensor_parallel/cross_entropy.py`, `transformer/multi_latent_attention.py` (down
projections whole on every rank, as `get_gpt_layer_with_transformer_engine_submodules` builds them), `training/utils.py`
(`get_batch_on_this_tp_rank`), `distributed/finalize_model_grads.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number, add, to_expr
from tracelens.ledger.layout import GroupKind, Layout, Recompute
from tracelens.ledger.model import LatentAttention, ModelSpec
from tracelens.ledger.parameters import Part, Split, Tensor, block_tensors, head_tensors
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import ACTIVATION, TOKENS
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Payload, Term
from tracelens.results import Phase

SOURCE = "Megatron-Core tensor_parallel/layers.py LinearWithGradAccumulationAndAsyncCommunication"
LATENT_SOURCE = "Megatron-Core transformer/multi_latent_attention.py MLASelfAttention.get_query_key_value_tensors"
LOSS_SOURCE = "Megatron-Core tensor_parallel/cross_entropy.py"
BATCH_SOURCE = "Megatron-LM training/utils.py get_batch_on_this_tp_rank"
NORM_SOURCE = "Megatron-Core distributed/finalize_model_grads.py _allreduce_non_tensor_model_parallel_grads"
AG, RS, AR = Primitive.all_gather, Primitive.reduce_scatter, Primitive.all_reduce
FORWARD, BACKWARD = Phase.forward, Phase.backward


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """Tensor-parallel traffic of one pipeline rank."""
    if layout.tp > 1 and stage.layers:
        yield from _blocks(model, layout)
    if layout.tp > 1:
        yield from _ends(layout, stage)
    if layout.has_sequence_parallel:
        yield _norm_gradients(model, layout, stage)
    if stage.has_head:
        yield from _loss(layout)
    yield from _batch(layout, stage)


def _term(
    name: str,
    primitive: Primitive,
    payload: Payload,
    calls: Expr | int,
    phase: Phase,
    source: str = SOURCE,
) -> Term:
    return Term(
        name=f"tp.{name}.{primitive}",
        group=GroupKind.tp,
        primitive=primitive,
        dtype=payload.dtype,
        elements=payload.elements,
        calls=to_expr(calls),
        phase=phase,
        source=source,
    )


def _behind_gemm(term: Term) -> Term:
    """A call that runs beside the matrix product that does not need it."""
    return replace(term, overlap=Overlap.yes)


def _feed_forwards(model: ModelSpec) -> Expr:
    """Feed-forward layers on a pipeline rank that tp cuts."""
    if model.moe is None:
        return y.L_s
    return y.L_d + (y.L_e if model.moe.shared_ffn else Number(0))


def _blocks(model: ModelSpec, layout: Layout) -> Iterator[Term]:
    """Column-row pairs: a feed-forward layer is one, and so is attention, but for the inputs of latent attention."""
    outputs = (y.L_s + _feed_forwards(model)) * y.m
    from_latents = model.latent is not None and model.latent.q_rank is not None
    inputs = _feed_forwards(model) * y.m if from_latents else outputs
    activation = Payload(ACTIVATION, layout.param_dtype)
    yield from _outputs_and_inputs("blocks", activation, outputs, inputs, layout)
    if model.latent is not None:
        yield from _latent_attention(model.latent, layout)


def _outputs_and_inputs(name: str, activation: Payload, outputs: Expr, inputs: Expr, layout: Layout) -> Iterator[Term]:
    """What row-parallel layers sum up and column-parallel layers are given, in calls of one size."""
    again = 1 if layout.recompute is Recompute.full else 0
    if not layout.has_sequence_parallel:
        yield _term(f"{name}.forward", AR, activation, outputs, FORWARD)
        yield _term(f"{name}.recompute", AR, activation, again * outputs, BACKWARD)
        yield _behind_gemm(_term(f"{name}.input_gradient", AR, activation, inputs, BACKWARD))
        return
    for primitive, calls in ((AG, inputs), (RS, outputs)):
        yield _term(f"{name}.forward", primitive, activation, calls, FORWARD)
        yield _term(f"{name}.recompute", primitive, activation, again * calls, BACKWARD)
    yield _term(f"{name}.output_gradient", AG, activation, outputs, BACKWARD)
    # the input was saved cut along the sequence, so the weight gradient needs it gathered once more
    yield _behind_gemm(_term(f"{name}.saved_input", AG, activation, inputs, BACKWARD))
    yield _behind_gemm(_term(f"{name}.input_gradient", RS, activation, inputs, BACKWARD))


def _latent_attention(latent: LatentAttention, layout: Layout) -> Iterator[Term]:
    """Every rank projects its slice of the sequence down; the latents are what column-parallel up-projections get.

    Keys' rotary part has no up-projection and is gathered as it is. Without sequence parallelism every rank projects
    the whole sequence, so only the gradients of the latents travel.
    """
    calls = y.L_s * y.m
    widths = [("q_latent", y.q_rank)] if latent.q_rank is not None else []
    for name, width in [*widths, ("kv_latent", y.kv_rank)]:
        payload = Payload(TOKENS * width, layout.param_dtype)
        for term in _outputs_and_inputs(name, payload, Number(0), calls, layout):
            yield replace(term, source=LATENT_SOURCE)
    if layout.has_sequence_parallel:
        rotary = Payload(TOKENS * y.d_rope, layout.param_dtype)
        again = 1 if layout.recompute is Recompute.full else 0
        yield _term("k_rotary.forward", AG, rotary, calls, FORWARD, LATENT_SOURCE)
        yield _term("k_rotary.recompute", AG, rotary, again * calls, BACKWARD, LATENT_SOURCE)
        yield _term("k_rotary.gradient", RS, rotary, calls, BACKWARD, LATENT_SOURCE)


def _ends(layout: Layout, stage: StagePlan) -> Iterator[Term]:
    activation = Payload(ACTIVATION, layout.param_dtype)
    sequence_parallel = layout.has_sequence_parallel
    reduction = RS if sequence_parallel else AR
    if stage.has_embedding:
        yield _term("embedding.forward", reduction, activation, y.m, FORWARD)
        if sequence_parallel:
            yield _term("embedding.backward", AG, activation, y.m, BACKWARD)
    if stage.has_head:
        if sequence_parallel:
            yield _term("head.forward", AG, activation, y.m, FORWARD)
            yield _behind_gemm(_term("head.saved_input", AG, activation, y.m, BACKWARD))
        yield _behind_gemm(_term("head.input_gradient", reduction, activation, y.m, BACKWARD))


def _norm_gradients(model: ModelSpec, layout: Layout, stage: StagePlan) -> Term:
    """Parameters that every rank holds whole but sees with its slice of the sequence, in one coalesced call."""
    total: Expr = Number(0)
    for moe, layers, present in (
        (False, y.L_d, stage.layers > stage.moe_layers),
        (True, y.L_e, stage.moe_layers > 0),
    ):
        if present:
            total = total + layers * _whole_size(block_tensors(model, moe=moe))
    if stage.has_head:
        total = total + _whole_size(head_tensors(model))
    payload = Payload(total, layout.gradient_dtype)
    return _term("norm_gradients", AR, payload, 1, Phase.optimizer, NORM_SOURCE)


def _whole_size(tensors: Iterable[Tensor]) -> Expr:
    whole = (tensor for tensor in tensors if tensor.split is Split.none and tensor.part is not Part.experts)
    return add(*(tensor.size for tensor in whole))


def _loss(layout: Layout) -> Iterator[Term]:
    """Maximum, predicted logit and sum of exponentials per token; the fused loss joins the last two."""
    one, two = Payload(TOKENS, "fp32"), Payload(2 * TOKENS, "fp32")
    yield _term("loss.maximum", AR, one, y.m, FORWARD, LOSS_SOURCE)
    fused = layout.megatron().fused_cross_entropy
    yield _term("loss.sums", AR, two if fused else one, y.m if fused else 2 * y.m, FORWARD, LOSS_SOURCE)


def _batch(layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """What the first tensor-parallel rank reads and hands to the others, before cp cuts the sequence."""
    options = layout.megatron()
    everything = layout.pp == 1 or options.broadcast_on_all_stages
    first, last = everything or stage.has_embedding, everything or stage.has_head
    row = y.s * y.b
    fields = [
        ("tokens", first, "int64", row),
        ("labels", last, "int64", row),
        ("loss_mask", last, "fp32", row),
        ("attention_mask", options.create_attention_mask and (first or last), "bool", row * y.s),
        ("position_ids", options.position_ids and first, "int64", row),
    ]
    for name, needed, dtype, elements in fields:
        if needed:
            payload = Payload(elements, dtype)
            yield _term(f"batch.{name}", Primitive.broadcast, payload, y.m, FORWARD, BATCH_SOURCE)
