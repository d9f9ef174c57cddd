"""A model for a trace that tells none: its sizes are read off matrix products, and the traffic chooses among readings.

Every reading costs free parameters, which are told: a comparison with a solved model checks that the parts fit
together (counts, ratios, equal sizes in places that must agree), not that the model is the one intended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from tracelens.comparison.alternatives import Alternative, list_alternatives
from tracelens.comparison.compare import Expectation, JoinedUnit, join_units, residual_bytes, unexplained_bytes
from tracelens.comparison.items import Unit, measured_units
from tracelens.comparison.products import Block, Products, fit_blocks, read_products
from tracelens.comparison.reasons import MOST_UNITS, best_alternative
from tracelens.errors import TraceLensError, UsageError
from tracelens.inferred import Inference
from tracelens.ledger.layout import Framework, Layout, Schedule
from tracelens.ledger.model import ModelSpec, Norm
from tracelens.ledger.options import PLAIN, DDPOptions, NativeOptions
from tracelens.ledger.predict import predict
from tracelens.results import Measurement
from tracelens.summary import RankSummary

_HEAD_DIMS = (128, 64, 96, 80, 256, 32, 16, 8)
_MOST_CHANGES = 8
"""How many choices of the framework may be read off the traffic."""
_BATCH = ("micro_batch", "num_microbatches")
_TOLD = ("accumulate_without_sync", "mixed_precision")
"""Options that are never taken from the traffic in silence."""
_MOST_LEFT = 8
"""How many values that the inference left open are tried."""
_HINT = "give --model: a preset such as llama3-8b, a config.json, or a TOML file"


def solve_model(
    summaries: Sequence[RankSummary],
    measurement: Measurement,
    layout: Layout,
    inference: Inference | None,
    *,
    given: frozenset[str] = frozenset(),
) -> Expectation:
    """The model and the framework whose ledger leaves the least traffic unexplained.

    Args:
        summaries: ranks whose matrix products are read.
        measurement: of the same ranks.
        layout: as far as it is known.
        inference: tells the hidden size, and the values that it could not settle.
        given: fields of the layout that the user gave: they stay as they are.

    Raises:
        UsageError: the trace has no shapes of matrix products (`record_shapes`), or they fit no transformer.
    """
    hidden = None if inference is None else inference.config.hidden
    if inference is None or hidden is None or not summaries:
        raise UsageError("nothing tells the sizes of the model: no option, no metadata, no shapes", hint=_HINT)
    candidates = [
        (model, chosen)
        for settled in _settle(layout, inference, given)
        for model in _models(_read(summaries, settled, hidden), hidden, settled)
        for chosen in _layouts(settled, given)
    ]
    if not candidates:
        raise UsageError("the trace's matrix products fit no transformer that is known", hint=_HINT)
    best = _best(measurement, candidates)
    if best is None:
        raise UsageError("the model that the matrix products show explains none of the traffic", hint=_HINT)
    model, chosen, words = _refine(measurement, *best, given)
    told = (
        f"solved from matrix products: hidden {model.hidden}, {model.layers} layers, kv width "
        f"{model.key_value_heads * model.dim_per_head}, ffn {model.ffn}, vocab {model.vocab}, "
        f"{model.seq_len} tokens a micro-batch"
    )
    framework = () if "framework" in given else (f"the framework that explains most: {chosen.framework}",)
    return Expectation(model=model, layout=chosen, sizes_from="inferred", assumptions=(told, *framework, *words))


def _settle(layout: Layout, inference: Inference, given: frozenset[str]) -> Iterator[Layout]:
    """The layout with each of the values that the inference leaves open."""
    batches = inference.undetermined.get("num_microbatches", (layout.num_microbatches,))
    if "num_microbatches" in given:
        batches = (layout.num_microbatches,)
    chunks = (layout.vp,) if layout.pp == 1 or inference.config.vp is not None or "vp" in given else (1, 2, 4)
    for count in batches[:_MOST_LEFT]:
        for vp in chunks:
            schedule = Schedule.interleaved if vp > 1 and layout.schedule is None else layout.schedule
            yield msgspec.structs.replace(layout, num_microbatches=int(count), vp=vp, schedule=schedule)


def _read(summaries: Sequence[RankSummary], layout: Layout, hidden: int) -> list[tuple[RankSummary, Products]]:
    """The matrices of the first rank read of every pipeline rank."""
    per_stage = max(1, layout.world_size // layout.pp)
    first: dict[int, RankSummary] = {}
    for summary in summaries:
        first.setdefault((summary.rank or 0) // per_stage, summary)
    return [
        (summary, products)
        for _, summary in sorted(first.items())
        if (products := read_products(summary, hidden, layout.num_microbatches)) is not None
    ]


def _models(readings: Sequence[tuple[RankSummary, Products]], hidden: int, layout: Layout) -> Iterator[ModelSpec]:
    """Every model that fits the matrices of all stages."""
    per_stage = [fit_blocks(products.matrices, hidden, layout.tp) for _, products in readings]
    if not per_stage or not all(per_stage):
        return
    tokens = readings[0][1].tokens * layout.cp // layout.micro_batch
    for block in per_stage[0]:
        alike = [_read_alike(block, blocks) for blocks in per_stage]
        same = [other for other in alike if other is not None]
        if len(same) < len(alike):
            continue
        total = round(sum(other.layers for other in same) / len(same) * layout.pp)
        width = next((other.vocab_width for other in same if other.vocab_width), None)
        for vocab in dict.fromkeys((width * layout.tp, width) if width else (1,)):
            yield from _variants(block, hidden, total, vocab, tokens, layout.tp)


def _read_alike(block: Block, blocks: Sequence[Block]) -> Block | None:
    """Another stage read in the same way."""
    wanted = (block.kv_width, block.ffn, block.gated)
    return next((other for other in blocks if (other.kv_width, other.ffn, other.gated) == wanted), None)


def _variants(block: Block, hidden: int, layers: int, vocab: int, tokens: int, tp: int) -> Iterator[ModelSpec]:
    """With and without biases, tied and not: what products don't tell."""
    dim = next((d for d in _HEAD_DIMS if hidden % (d * tp) == 0 and block.kv_width % d == 0), 1)
    for biased in (False, True):
        for tied in (False, True):
            try:
                yield ModelSpec(
                    name="solved from the trace",
                    layers=layers,
                    hidden=hidden,
                    heads=hidden // dim,
                    kv_heads=block.kv_width // dim,
                    ffn=block.ffn,
                    gated=block.gated,
                    vocab=vocab,
                    seq_len=tokens,
                    tied_embeddings=tied,
                    norm=Norm.layernorm if biased else Norm.rmsnorm,
                    qkv_bias=biased,
                    output_bias=biased,
                    mlp_bias=biased,
                )
            except TraceLensError:
                continue


def _layouts(layout: Layout, given: frozenset[str]) -> Iterator[Layout]:
    yield layout
    if "framework" in given:
        return
    for framework in Framework:
        if framework not in (layout.framework, Framework.textbook, Framework.serving):
            yield msgspec.structs.replace(layout, framework=framework, options=None)
    clipped = msgspec.structs.replace(PLAIN, clip_gradients=True)
    yield msgspec.structs.replace(layout, framework=Framework.pytorch, options=clipped)
    whole = NativeOptions(loss_chunks=0)
    yield msgspec.structs.replace(layout, framework=Framework.torchtitan, options=whole)
    # a `bucket_cap_mb` that is given, be it the default, holds for the first bucket too
    yield msgspec.structs.replace(layout, framework=Framework.ddp, options=DDPOptions(first_bucket_mib=None))


def _refine(
    measurement: Measurement, model: ModelSpec, layout: Layout, given: frozenset[str]
) -> tuple[ModelSpec, Layout, list[str]]:
    """Take on the alternatives that leave less unexplained, the best first: all of it is inferred anyway."""
    return _improve(
        measurement,
        Alternative("", model, layout),
        lambda state, one: all(getattr(one.layout, name) == getattr(layout, name) for name in given),
    )


def settle_layout(measurement: Measurement, expected: Expectation, *, given: frozenset[str]) -> Expectation:
    """Read off the traffic what was left open of a layout for a model that is known.

    A framework that nobody gave is the one that explains most. Of a layout that was given, only what a step holds
    and choices inside the framework are open, such as the size of buckets, and not even those that a user would want
    to hear of: whether micro-batches reduce their gradients, and in which type parameters are gathered.

    Args:
        measurement: of the job.
        expected: the model, and the layout as far as it is known.
        given: fields of the layout that the user gave.
    """
    layout, told = expected.layout, []
    if "framework" not in given:
        found = _best(measurement, [(expected.model, one) for one in _layouts(layout, given)])
        if found is None:
            possible = (one for one in _layouts(layout, given) if _can_be(expected.model, one))
            told.append("no framework explains any of the traffic")
            return replace(expected, layout=next(possible, layout), assumptions=(*expected.assumptions, *told))
        layout = found[1]
        told.append(f"the framework that explains most: {layout.framework}")
    start = Alternative("", expected.model, layout)

    def is_open(state: Alternative, one: Alternative) -> bool:
        if one.model != state.model or any(getattr(one.layout, name) != getattr(layout, name) for name in given):
            return False
        if expected.layout_from == "inferred":
            return True
        before, after = state.layout.own_options(), one.layout.own_options()
        unsaid = {name: getattr(state.layout, name) for name in _BATCH if name not in given}
        same = msgspec.structs.replace(one.layout, options=state.layout.options, **unsaid) == state.layout
        return same and all(getattr(before, name, None) == getattr(after, name, None) for name in _TOLD)

    _, layout, words = _improve(measurement, start, is_open)
    told += [f"left open, read off the traffic: {text}" for text in words]
    return replace(expected, layout=layout, assumptions=(*expected.assumptions, *told))


def _improve(
    measurement: Measurement, start: Alternative, allowed: Callable[[Alternative, Alternative], bool]
) -> tuple[ModelSpec, Layout, list[str]]:
    """Follow the best of the allowed alternatives as long as one helps."""
    words: list[str] = []
    state = start
    units = measured_units(measurement, start.layout)

    def try_out(model: ModelSpec, layout: Layout, some: Sequence[Unit]) -> list[JoinedUnit]:
        return join_units(measurement, some, predict(model, layout), 0.01)

    for _ in range(_MOST_CHANGES):
        joined = try_out(state.model, state.layout, units)
        worst = sorted(joined, key=lambda one: -residual_bytes([one]))[:MOST_UNITS]
        options = (one for one in list_alternatives(state.model, state.layout) if allowed(state, one))
        better = best_alternative(options, worst, try_out)
        if better is None:
            break
        if _sizes(better.model) == _sizes(state.model):
            words.append(better.words)  # sizes are told as they are in the end
        state = better
    return state.model, state.layout, words


def _sizes(model: ModelSpec) -> tuple[int, int]:
    return model.vocab, model.layers


def _can_be(model: ModelSpec, layout: Layout) -> bool:
    try:
        predict(model, layout)
    except TraceLensError:
        return False
    return True


def _best(measurement: Measurement, candidates: Sequence[tuple[ModelSpec, Layout]]) -> tuple[ModelSpec, Layout] | None:
    """The model and layout that explain most and, of those, predict least that is absent; None if none explains any."""
    best: tuple[tuple[float, float], ModelSpec, Layout] | None = None
    units: dict[tuple[int, int], tuple[Unit, ...]] = {}
    for model, layout in candidates:
        shape = (layout.pp, layout.world_size)
        if shape not in units:
            units[shape] = measured_units(measurement, layout)
        try:
            ledger = predict(model, layout)
        except TraceLensError:
            continue  # the framework can't have it
        joined = join_units(measurement, units[shape], ledger, 0.01)
        left = (unexplained_bytes(joined), residual_bytes(joined))
        sent = sum(one.weight * (item.wire_bytes or 0) for one in units[shape] for item in one.measured)
        if left[0] < sent and (best is None or left < best[0]):
            best = (left, model, layout)
    return None if best is None else best[1:]
