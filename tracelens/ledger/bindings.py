"""Numbers for the named unknowns: those of a model, a layout and one pipeline rank."""

from __future__ import annotations

import math

from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import count_parameters, model_sizes
from tracelens.ledger.stages import StagePlan


def bind_layout(model: ModelSpec, layout: Layout) -> dict[str, int]:
    """The unknowns that do not depend on the pipeline rank."""
    sizes = model_sizes(model)
    return sizes | {
        "V": padded_vocabulary(model, layout),
        "N": count_parameters(model).total,
        "s": layout.seq_len or model.seq_len,
        "b": layout.micro_batch,
        "m": layout.num_microbatches,
        "t": layout.tp,
        "c": layout.cp,
        "u": layout.cp_inner,
        "p": layout.pp,
        "v": layout.vp,
        "d": layout.dp,
        "e": layout.ep,
        "etp": layout.expert_tp,
        "edp": layout.expert_dp,
        "n": layout.shard_ranks,
        "r": layout.dp_replicate,
        "n_e": layout.expert_shard_ranks,
        "r_e": max(1, layout.expert_dp // layout.expert_shard_ranks),
        "W": layout.world_size,
        "h_kv": max(sizes["h_kv"], layout.tp * sizes["d_h"]) if _replicates_kv(layout) else sizes["h_kv"],
    }


def _replicates_kv(layout: Layout) -> bool:
    """Whether a rank holds at least one whole key-value head, however many ranks there are."""
    return layout.framework in (Framework.megatron, Framework.serving)


def bind_stage(stage: StagePlan) -> dict[str, int]:
    """The unknowns of one pipeline rank."""
    return {
        "L_s": stage.layers,
        "L_d": stage.layers - stage.moe_layers,
        "L_e": stage.moe_layers,
        "S_f": stage.sends_forward,
        "S_b": stage.sends_backward,
        "R_f": stage.receives_forward,
        "R_b": stage.receives_backward,
    }


def padded_vocabulary(model: ModelSpec, layout: Layout) -> int:
    """Rows of the embedding table; Megatron pads them to 128·tp (`vocab_size_with_padding`)."""
    if layout.framework is not Framework.megatron:
        return model.vocab
    multiple = layout.megatron().vocab_multiple * layout.tp
    return math.ceil(model.vocab / multiple) * multiple
