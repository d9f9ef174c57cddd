"""Arithmetic of one pipeline rank: floating-point operations and bytes through memory.

Sources: Narayanan et al. 2021 (arXiv 2104.04473, appendix) for operations, with attention over the whole square as
that paper and PaLM count it; Korthikanti et al. 2022 (arXiv 2205.05198) for the bytes of what layers keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Bindings, Expr, Number, add
from tracelens.ledger.layout import Layout, Recompute
from tracelens.ledger.memory import activation_bytes_per_layer
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, Tensor, block_tensors
from tracelens.ledger.stages import StagePlan


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one rank for one micro-batch."""

    matrix_flop: float
    """Forward operations of matrix products with weights."""
    attention_flop: float
    """Forward operations of attention's two products, over the whole square of the sequence."""
    memory_bytes: float
    """Bytes that forward moves in what is no matrix product."""


def stage_work(model: ModelSpec, layout: Layout, stage: StagePlan, sizes: Bindings) -> Work:
    """Forward work of a pipeline rank for one micro-batch."""
    tokens = sizes["s"] * sizes["b"] / sizes["c"]
    weights = 0.0
    for moe, count in ((False, stage.layers - stage.moe_layers), (True, stage.moe_layers)):
        if count:
            weights += count * float(_active(block_tensors(model, moe=moe)).evaluate(sizes))
    weights /= layout.tp
    if stage.has_head:
        weights += sizes["V"] * sizes["h"] / layout.tp
    attention = stage.layers * 4 * tokens * sizes["s"] * sizes["h_q"] / layout.tp
    kept = activation_bytes_per_layer(model, _keeping(layout))
    return Work(
        matrix_flop=2 * tokens * weights,
        attention_flop=attention,
        # what is kept for backward was written once and is read once by what follows
        memory_bytes=2 * kept * stage.layers,
    )


def _active(tensors: Iterable[Tensor]) -> Expr:
    """Weights of a block that a token meets in a matrix product."""
    used: list[Expr] = []
    for tensor in tensors:
        if tensor.is_vector:
            continue
        share = y.k / y.E if tensor.part is Part.experts else Number(1)
        used.append(share * tensor.size)
    return add(*used)


def _keeping(layout: Layout) -> Layout:
    """The layout as it computes in forward, whatever is dropped afterwards."""
    return msgspec.structs.replace(layout, recompute=Recompute.none)


@dataclass(frozen=True, slots=True)
class Passes:
    """How often a micro-batch's forward work is done, backward counting in units of forward."""

    matrix: float
    attention: float
    memory: float


def count_passes(layout: Layout) -> Passes:
    """Passes by what is computed again.

    Backward is two forwards; fused attention's is two and a half, for it computes the scores again (arXiv
    2307.08691, section 3.1). torchtitan's selective policy computes every second matrix product again and keeps
    attention's output (`distributed/activation_checkpoint.py`).
    """
    attention = 3.5 if layout.flash_attention else 3.0
    if layout.recompute is Recompute.full:
        return Passes(4.0, attention + 1.0, 4.0)
    if layout.recompute is Recompute.op_selective:
        return Passes(3.5, attention, 4.0)
    again = 1.0 if layout.recompute is Recompute.selective and not layout.flash_attention else 0.0
    return Passes(3.0, attention + again, 3.0)


def model_flop_per_token(model: ModelSpec, sizes: Bindings) -> float:
    """Operations of forward and backward per token, nothing computed twice, embedding look-up not counted."""
    weights = sizes["V"] * sizes["h"]
    moe = model.moe_layers
    for is_moe, count in ((False, model.layers - moe), (True, moe)):
        if count:
            weights += count * _active(block_tensors(model, moe=is_moe)).evaluate(sizes)
    return 6 * float(weights) + 12 * model.layers * sizes["s"] * sizes["h_q"]
