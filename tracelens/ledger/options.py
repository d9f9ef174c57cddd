"""Choices inside a framework that change what is sent, with the framework's own defaults."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Units(StrEnum):
    """What FSDP wraps into one unit, that is one all-gather."""

    titan = "titan"
    """Embedding, every block, and final norm with head (torchtitan `apply_fsdp`)."""
    blocks = "blocks"
    """Every block; the root unit holds the rest."""


class Dispatcher(StrEnum):
    """How tokens reach their experts."""

    alltoall = "alltoall"
    allgather = "allgather"
    deepep = "deepep"


class Choices(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the options; `kind` says whose they are."""


class NativeOptions(Choices, frozen=True, kw_only=True, tag="native"):
    """PyTorch's own parallelism; the defaults are torchtitan's, `PLAIN` is a script without a trainer."""

    units: Units = Units.titan
    root_reshards: bool = False
    """Reshard the last unit (or the root) after forward too."""
    last_block_reshards: bool = True
    """False in loops that keep the last block gathered between forward and backward."""
    mixed_precision: bool = True
    """Parameters gathered in bf16; False is training in fp32."""
    accumulate_without_sync: bool = False
    """Gradients reduced in the last micro-batch only (`no_sync`)."""
    loss_chunks: int = 8
    """Chunks that torchtitan's `ChunkedLossWrapper` cuts the sequence into; 0 is one loss over all logits."""
    loss_parallel: bool = True
    """Logits stay cut over the vocabulary."""
    trainer_scalars: bool = True
    """torchtitan's valid-token counts and loss averages of a step at which it logs."""
    clip_gradients: bool = True
    recompute_stops_early: bool = False
    """`early_stop` of activation checkpointing: what nothing needs is not computed again."""
    fused_qkv: bool = True
    """One tensor for queries, keys and values: it counts where a norm is taken per tensor."""
    repeat_kv: bool = False
    """Keys and values are repeated to the width of the queries before context-parallel attention."""
    weighted_stages: bool = True
    """torchtitan cuts the stages with the embedding and the head counted as a layer each."""
    loss_average: bool = False
    """A script averages its loss over the data-parallel ranks."""


PLAIN = NativeOptions(
    units=Units.blocks,
    root_reshards=True,
    loss_chunks=0,
    loss_parallel=False,
    trainer_scalars=False,
    clip_gradients=False,
    recompute_stops_early=True,
    fused_qkv=False,
    repeat_kv=True,
    weighted_stages=False,
)


class DDPOptions(Choices, frozen=True, kw_only=True, tag="ddp"):
    """torch.nn.parallel.DistributedDataParallel."""

    bucket_mib: float = 25
    """`bucket_cap_mb`; the number is in MiB."""
    first_bucket_mib: float | None = 1
    """Cap of the first bucket: 1 MiB as long as `bucket_cap_mb` is not given; null is that of the others."""
    accumulate_without_sync: bool = False
    loss_average: bool = False


class FSDP1Options(Choices, frozen=True, kw_only=True, tag="fsdp1"):
    """torch.distributed.fsdp.FullyShardedDataParallel, one unit a block and the root."""

    accumulate_without_sync: bool = False
    clip_gradients: bool = True
    loss_average: bool = False


class MegatronOptions(Choices, frozen=True, kw_only=True, tag="megatron"):
    """Megatron-Core; the defaults are those of `arguments.py`."""

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_elements: int | None = None
    """`ddp_bucket_size`; null is max(40e6, 1e6 times data-parallel size)."""
    fused_cross_entropy: bool = False
    create_attention_mask: bool = True
    broadcast_on_all_stages: bool = False
    """A data loader that broadcasts every field on every stage instead of what the stage needs."""
    position_ids: bool = True
    vocab_multiple: int = 128
    """`make_vocab_size_divisible_by`; the vocabulary is padded to this times tp."""
    dispatcher: Dispatcher = Dispatcher.alltoall
    router_dtype: str = "fp32"
    aux_loss: bool = False
    """`aux_loss` or `seq_aux_loss`: tokens per expert are summed over tp and cp."""
    expert_bias_update: bool = False
    clip_gradients: bool = True
    status_scalars: bool = True
    """The all-reduces of `update_successful` and the largest norm in `train_step`."""
    loss_average_per_microbatch: bool = False
    ulysses_degree: int | None = None
    """First of `hierarchical_context_parallel_sizes`: ranks of cp that exchange heads under `ulysses_ring`."""
    per_token_loss: bool = False


class DeepSpeedOptions(Choices, frozen=True, kw_only=True, tag="deepspeed"):
    """DeepSpeed ZeRO; the defaults are those of `runtime/zero/config.py`."""

    reduce_bucket_elements: int = 500_000_000
    overlap_comm: bool = False
    """Reduce from hooks during backward at level 1 too."""
    multi_rank_bucket_allreduce: bool = True
    """`use_multi_rank_bucket_allreduce`: ZeRO-1 and 2 all-reduce the whole bucket."""
    persistence_threshold: int = 100_000
    """`param_persistence_threshold`: smaller parameters are never partitioned (ZeRO-3)."""
    max_reuse_distance: int = 1_000_000_000
    overflow_check: bool = True
    clip_gradients: bool = True


Options = NativeOptions | DDPOptions | FSDP1Options | MegatronOptions | DeepSpeedOptions
