"""What a GPU holds: parameters, gradients and optimizer states by their own divisors, and activations.

Sources: ZeRO (arXiv 1910.02054, section 3) for 2 + 2 + 12 bytes per parameter; Megatron-Core
`training/theoretical_memory_usage.py` for 18 and 6 + 12/n; Korthikanti et al. 2022 (arXiv 2205.05198,
equations 1 to 6) for activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.ledger.held import dense_formula, expert_formula
from tracelens.ledger.layout import Framework, Layout, Optimizer, Precision, Recompute
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, count_parameters
from tracelens.ledger.results import Activations, Memory, StageMemory, State
from tracelens.ledger.schedules import microbatches_in_flight
from tracelens.ledger.stages import StagePlan

_NATIVE = (Framework.torchtitan, Framework.pytorch, Framework.fsdp1)
_MOMENTS = {Optimizer.adam: 8, Optimizer.sgd: 0, Optimizer.momentum: 4, Optimizer.adam_8bit: 2}
_NOT_COUNTED = ("communication buffers", "workspaces", "CUDA and NCCL", "fragmentation")


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """Bytes of the three resident states for one parameter, nothing sharded."""

    params: int
    grads: int
    optim: int

    @property
    def total(self) -> int:
        """All three."""
        return self.params + self.grads + self.optim


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters that one rank computes with, dense and expert apart."""

    dense: int
    expert: int


def bytes_per_parameter(
    framework: Framework, precision: Precision = Precision.bf16, optimizer: Optimizer = Optimizer.adam
) -> BytesPerParameter:
    """Bytes per parameter before sharding: 2 + 2 + 12 for bf16 and Adam, 2 + 4 + 12 in Megatron.

    FSDP keeps the fp32 master as its (sharded) parameter, so the same 16 bytes split as 4 + 4 + 8.
    """
    moments = _MOMENTS[optimizer]
    if precision is Precision.fp32 or framework is Framework.ddp or framework in _NATIVE:
        return BytesPerParameter(4, 4, moments)
    if precision is Precision.pure_bf16:
        return BytesPerParameter(2, 2, moments // 2 if optimizer is not Optimizer.adam_8bit else moments)
    gradient = 4 if framework is Framework.megatron and precision is Precision.bf16 else 2
    return BytesPerParameter(2, gradient, 4 + moments)


def textbook_state(model: ModelSpec, layout: Layout) -> State:
    """The article's `per_gpu_state`: every byte over tp·pp, experts over ep, then by level."""
    count = count_parameters(model)
    expert = count.parts.get(Part.experts, 0) / count.total
    each = bytes_per_parameter(layout.framework, layout.precision, layout.optimizer)
    shard = layout.dp_shard * layout.cp if layout.zero_level else 1
    cut = layout.tp * layout.pp

    def share(size: int, level: int) -> int:
        divisor = shard if layout.zero_level >= level else 1
        total = count.total * size
        dense = total * (1.0 - expert) / cut / divisor
        routed = total * expert / (cut * layout.ep) / max(divisor / layout.ep, 1.0)
        return int(dense + routed)

    return State(params_bytes=share(each.params, 3), grads_bytes=share(each.grads, 2), optim_bytes=share(each.optim, 1))


def held_parameters(model: ModelSpec, stage: StagePlan, bindings: dict[str, int]) -> Held:
    """Parameters that one rank of a stage computes with, after tp, pp and ep, before any sharding."""
    return Held(
        dense=int(dense_formula(model, stage).evaluate(bindings)),
        expert=int(expert_formula(model, stage).evaluate(bindings)),
    )


def resident_state(layout: Layout, held: Held) -> State:
    """Bytes of parameters, gradients and optimizer states that one rank holds between steps."""
    if layout.framework is Framework.serving:
        weights = (held.dense + held.expert) * 2
        return State(params_bytes=weights, grads_bytes=0, optim_bytes=0)
    each = bytes_per_parameter(layout.framework, layout.precision, layout.optimizer)
    level = layout.zero_level
    native = layout.framework in _NATIVE and level > 0

    def share(size: int, needed: int) -> int:
        # FSDP shards all three states whatever it does with gathered parameters
        sharded = level >= needed or native
        dense = held.dense * size / (layout.shard_ranks if sharded else 1)
        expert = held.expert * size / (layout.expert_shard_ranks if sharded else 1)
        return int(dense + expert)

    gathered = 2 * (held.dense + held.expert) if native and _keeps_gathered(layout) else 0
    return State(
        params_bytes=share(each.params, 3) + gathered,
        grads_bytes=share(each.grads, 2),
        optim_bytes=share(each.optim, 1),
    )


def _keeps_gathered(layout: Layout) -> bool:
    return layout.zero_level == 2 or layout.reshard_after_forward is False


def activation_bytes_per_layer(model: ModelSpec, layout: Layout) -> float:
    """Bytes that one layer and micro-batch keep for backward.

    34·s·b·h + 5·a·s²·b for a GPT block in bf16, of which tensor parallelism cuts all but 10·s·b·h, sequence
    parallelism that too, and context parallelism the tokens. 34 is 18 + 4·f/h (Megatron's
    `theoretical_memory_usage.py`), which follows the width of other feed-forward layers. Full recompute keeps
    the input, 2·s·b·h; flash attention and selective recompute do not keep the scores, 5·a·s²·b.
    """
    tokens = (layout.seq_len or model.seq_len) * layout.micro_batch / layout.cp
    boundary = tokens * model.hidden
    inside = layout.tp if layout.has_sequence_parallel or layout.framework is Framework.textbook else 1
    if layout.recompute is Recompute.full:
        return 2 * boundary / inside
    total = 34.0 if layout.framework is Framework.textbook else 18 + 4 * _mean_width(model) / model.hidden
    outer = 10.0
    kept = boundary * (outer / inside + (total - outer) / layout.tp)
    if not layout.flash_attention and layout.recompute is Recompute.none:
        kept += 5.0 * model.heads * tokens * (layout.seq_len or model.seq_len) / layout.tp
    return kept


def _mean_width(model: ModelSpec) -> float:
    """Feed-forward width that a token passes, averaged over the layers."""
    dense, moe = model.layers - model.moe_layers, model.moe_layers
    routed = 0 if model.moe is None else model.moe.top_k * model.moe.ffn + model.moe.shared_ffn
    return (dense * (model.ffn or 0) + moe * routed) / model.layers


def stage_activations(model: ModelSpec, layout: Layout, stage: StagePlan) -> Activations:
    """What a pipeline rank keeps for backward at its worst moment; in serving, its key-value cache."""
    if layout.framework is Framework.serving:
        return _key_value_cache(model, layout, stage)
    per_layer = activation_bytes_per_layer(model, layout)
    flying = microbatches_in_flight(layout, stage.rank)
    ends = _end_bytes(model, layout, stage, flying)
    name = "2·s·b·h" if layout.recompute is Recompute.full else "s·b·h·(10 + 24/t), the 10 over t too with SP"
    return Activations(
        per_layer_bytes=int(per_layer),
        layers=stage.layers,
        microbatches_in_flight=flying,
        ends_bytes=int(ends),
        total_bytes=int(per_layer * stage.layers * flying + ends),
        formula=f"layers · micro-batches in flight · {name} (Korthikanti et al. 2022)",
    )


def _key_value_cache(model: ModelSpec, layout: Layout, stage: StagePlan) -> Activations:
    """Keys and values of every token of the batch, in bf16; a rank holds at least one head."""
    tokens = (layout.seq_len or model.seq_len) * layout.micro_batch
    width = max(model.key_value_heads // layout.tp, 1) * model.dim_per_head
    per_layer = 2 * 2 * tokens * width
    if model.latent is not None:
        per_layer = 2 * tokens * (model.latent.kv_rank + model.latent.rope_dim)
    return Activations(
        per_layer_bytes=per_layer,
        layers=stage.layers,
        microbatches_in_flight=layout.num_microbatches,
        ends_bytes=0,
        total_bytes=per_layer * stage.layers * layout.num_microbatches,
        formula="layers · batches · 2·s·b·h_kv/t in bf16 (key-value cache)",
    )


def _end_bytes(model: ModelSpec, layout: Layout, stage: StagePlan, flying: float) -> float:
    """Embedding dropout (s·b·h), final norm and head input (4·s·b·h), fp32 logits (4·s·b·V/t)."""
    tokens = (layout.seq_len or model.seq_len) * layout.micro_batch / layout.cp
    ends = 0.0
    if stage.has_embedding:
        ends += tokens * model.hidden / layout.tp * flying
    if stage.has_head:
        ends += tokens * (4 * model.hidden + 4 * model.vocab) / layout.tp
    return ends


def stage_memory(model: ModelSpec, layout: Layout, stage: StagePlan, bindings: dict[str, int]) -> StageMemory:
    """Memory of one pipeline rank."""
    held = held_parameters(model, stage, bindings)
    state, activations = resident_state(layout, held), stage_activations(model, layout, stage)
    return StageMemory(
        stage=stage.rank,
        layers=stage.layers,
        parameters=held.dense + held.expert,
        state=state,
        activations=activations,
        total_bytes=state.total_bytes + activations.total_bytes,
    )


def fit_memory(fullest: StageMemory, layout: Layout, available: int | None) -> Memory:
    """What the fullest pipeline rank needs, against the memory of a GPU."""
    gathers = layout.framework in _NATIVE or (layout.framework is Framework.deepspeed and layout.zero_level == 3)
    gathered = ("gathered parameters",) if gathers and layout.shard_ranks > 1 and not _keeps_gathered(layout) else ()
    return Memory(
        stage=fullest.stage,
        needed_bytes=fullest.total_bytes,
        available_bytes=available,
        fits=None if available is None else fullest.total_bytes <= available,
        not_counted=(*gathered, *_NOT_COUNTED),
    )
