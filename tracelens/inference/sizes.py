"""Sizes of the model that the traffic and the matrix products show: hidden size, layers, parameters."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from tracelens.collectives import Primitive
from tracelens.inference.axes import DataParallel
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job, Sighting
from tracelens.inference.observations import Call, RankView
from tracelens.inference.schedule import count_rounds
from tracelens.inference.uses import Role
from tracelens.results import Phase
from tracelens.units import noun, plural

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741


def find_sizes(job: Job, case: Case, data: DataParallel) -> None:
    """Decide what the trace shows of the model."""
    _decide_hidden(job, case, data)
    _decide_single_micro_batch(case, data)
    _decide_parameters(case, data)
    _decide_layers(job, case, data)


def _decide_single_micro_batch(case: Case, data: DataParallel) -> None:
    """Where only the last micro-batch communicates, the matrix products tell whether there was only one.

    Forward, gradient of the input and gradient of the weight each touch a weight once, so that one micro-batch makes
    products with three times the linear weights, which are at most all parameters and at least half of them (an
    embedding that is not multiplied is no larger than the head that is).
    """
    if case.is_decided("num_microbatches") or case.verdict("num_microbatches").left or not data.shard:
        return
    if case.value("pp") != 1 or case.value("ep") != 1:
        return
    for s in data.shard:
        found = _width_of_products(s.view)
        reduced = sum(c.elements or 0 for c in s.use.calls if c.primitive is not P.all_gather)
        if found is None or found[1] is None or not reduced:
            continue
        if count_rounds(s.view) != 1 or _is_periodic(
            [c.elements for c in s.use.calls if c.primitive is not P.all_gather]
        ):
            continue
        tokens = found[1]
        touched = sum(m * k * n // tokens * count for m, k, n, count in s.view.products if tokens in (m, k, n))
        share = touched / max(1, s.view.steps) / 3 / reduced
        if 0.3 < share < 0.95:
            told = f"matrix products touch {share:.0%} of the reduced parameters three times: one micro-batch"
            case.decide("num_microbatches", 1, 0.9, told)
            return


def _is_periodic(sizes: Sequence[int | None]) -> bool:
    """Whether a sequence repeats itself, as the gradients of several micro-batches do."""
    n = len(sizes)
    return any(list(sizes[:p]) * (n // p) == list(sizes) for p in range(1, n // 2 + 1) if n % p == 0)


def _decide_hidden(job: Job, case: Case, data: DataParallel) -> None:
    """The width that every linear layer shares, beside the number of tokens; or solved from message sizes."""
    for view in job.views:
        found = _width_of_products(view)
        if found is None:
            continue
        hidden, tokens, share = found
        messages = _activation_sizes(job)
        fits = [size for size in messages if size % hidden == 0]
        case.check(holds=bool(messages) and len(fits) == len(messages), count=len(set(fits)))
        certainty = 0.97 if messages and len(fits) == len(messages) else 0.92 if share > 0.97 else 0.8
        told = f"{share:.0%} of the matrix products have a side of {hidden} (tokens {tokens or 'differ'})"
        if fits:
            told += f"; messages of {fits[0]:,} elements are a multiple of it"
        case.decide("hidden", hidden, certainty, told)
        case.solve("hidden")
        return
    _solve_hidden(job, case, data)


def _width_of_products(view: RankView) -> tuple[int, int | None, float] | None:
    """The side that (almost) all products share and that is not the number of tokens.

    A linear layer makes x·W, dy·Wᵀ and dyᵀ·x: every dimension is contracted once, but tokens are the first side of
    two products of three, and a width of weights is not.
    """
    total = sum(count for *_, count in view.products)
    if total < 8 or len(view.products) < 3:
        return None
    shared: Counter[int] = Counter()
    first: Counter[int] = Counter()
    for m, k, n, count in view.products:
        for side in {m, k, n}:
            shared[side] += count
        first[m] += count
    common = [side for side, count in shared.items() if count >= 0.85 * total]
    if not common or len(common) > 2:
        return None
    if len(common) == 1:
        side = common[0]
        square = sum(count for m, k, n, count in view.products if (m, k, n).count(side) >= 2)
        if first[side] >= 0.5 * total and square < 0.6 * total:
            return None  # the tokens: no width is shared by all layers
        return side, None if first[side] < 0.5 * total else side, shared[side] / total
    tokens = max(common, key=lambda side: first[side])
    hidden = next(side for side in common if side != tokens)
    if first[tokens] < 1.25 * first[hidden]:
        return None
    return hidden, tokens, shared[hidden] / total


def _activation_sizes(job: Job) -> list[int]:
    """Elements of the activations that tensor and pipeline parallelism send."""
    sizes: Counter[int] = Counter()
    for s in job.sightings(Role.tensor, Role.pipeline):
        for c in s.use.calls:
            if c.elements is not None and not c.is_scalar and not c.is_integer:
                sizes[c.elements] += 1
    return [size for size, _ in sizes.most_common(2)]


def _solve_hidden(job: Job, case: Case, data: DataParallel) -> None:
    """Without products: from two units that differ by one norm, from norm gradients, from tokens and activations."""
    candidates: dict[int, list[str]] = {}
    tokens = _tokens(job, case)
    activations = _activations_of_tensor(job)
    if tokens and activations and activations % tokens == 0:
        told = f"activations of {activations:,} elements over {tokens:,} tokens"
        candidates.setdefault(activations // tokens, []).append(told)
    norms = _norm_gradients(job)
    if norms is not None:
        candidates.setdefault(norms, []).append(f"gradients of norms of {norms} elements each are all-reduced")
    difference = _head_minus_embedding(data)
    if difference is not None:
        candidates.setdefault(difference, []).append(
            f"embedding and head units differ by {difference} elements: one norm"
        )
    if not candidates:
        return
    case.solve("hidden")
    hidden, reasons = max(candidates.items(), key=lambda item: len(item[1]))
    case.check(holds=len(reasons) > 1, count=len(reasons) - 1)
    if len(candidates) == 1:
        case.decide("hidden", hidden, 0.92 if len(reasons) > 1 else 0.85, "; ".join(reasons))
    else:
        case.leave("hidden", tuple(candidates), "sizes of messages give different widths")


def _tokens(job: Job, case: Case) -> int | None:
    """Tokens of a micro-batch on a context rank: its part of the batch handed out, or the loss over a split vocabulary.

    Megatron hands out the whole sequence and cuts it then.
    """
    cp = case.value("cp")
    batch = Counter(c.elements for s in job.sightings(Role.batch) for c in s.use.calls if c.dtype == "int64")
    if batch:
        size = batch.most_common(1)[0][0]
        return None if size is None or cp is None else size // cp
    found = {tokens for s in job.sightings(Role.tensor) for tokens in _losses(s, case.value("num_microbatches"))}
    return found.pop() if len(found) == 1 else None


def _losses(s: Sighting, microbatches: int | None) -> Iterator[int]:
    """Tokens that the losses of a micro-batch are reduced for, which torchtitan computes in chunks of the sequence."""
    size = max((c.elements or 0 for c in s.use.calls), default=0)
    reduced = [
        c.elements or 0
        for c in s.view.in_phase(s.use.group, P.all_reduce, F)
        if c.dtype == "fp32" and not c.is_scalar and (c.elements or 0) * 8 <= size
    ]
    for tokens, count in Counter(reduced).items():
        chunks, rest = divmod(count, _REDUCED_PER_LOSS * (microbatches or 1))
        if chunks and not rest and (microbatches is not None or chunks == 1):
            yield tokens * chunks


_REDUCED_PER_LOSS = 3
"""Maximum, sum and the label's logit of each token (Megatron-Core tensor_parallel/cross_entropy.py, torch loss.py)."""


def _activations_of_tensor(job: Job) -> int | None:
    sizes = [size for s in job.sightings(Role.tensor) for size in (c.elements for c in s.use.calls) if size]
    return Counter(sizes).most_common(1)[0][0] if sizes else None


def _norm_gradients(job: Job) -> int | None:
    """DTensor reduces the gradient of each norm on its own: small equal all-reduces in backward on the TP group."""
    small: Counter[int] = Counter()
    for s in job.sightings(Role.tensor):
        if s.use.detail != "sp":
            continue
        for c in s.view.in_phase(s.use.group, P.all_reduce, B):
            if not c.is_scalar and not c.is_integer:
                small[c.elements or 0] += 1
    if len(small) != 1:
        return None
    size, count = small.most_common(1)[0]
    return size if count >= 2 else None


_FEW_SHARDS = 64


def _head_minus_embedding(data: DataParallel) -> int | None:
    """FSDP units of the embedding (V·h) and of norm and head (V·h + h) differ by h."""
    if (data.shard_size or 0) > _FEW_SHARDS:
        return None  # units are padded to a multiple of the shards, which hides the difference
    units = {
        c.elements for s in data.shard if s.use.role is Role.weights for c in s.use.calls if c.primitive is P.all_gather
    }
    sizes = sorted(size for size in units if size)
    pairs = [(b - a, a) for a, b in itertools.pairwise(sizes) if 32 <= b - a <= 65536 and b - a < a / 100]
    fitting = [d for d, a in pairs if a % d == 0 and d % 32 == 0]
    return fitting[0] if len(fitting) == 1 else None


def _decide_parameters(case: Case, data: DataParallel) -> None:
    """All gradients of one micro-batch: the parameters of this rank's part of the model, with padding."""
    sharing = case.value("num_microbatches")
    totals: Counter[int] = Counter()
    for s in data.shard:
        reduces = [c for c in s.use.calls if c.primitive is not P.all_gather]
        gathers = [c for c in s.use.calls if c.primitive is P.all_gather]
        if s.use.role is Role.updates and gathers:
            totals[sum(c.elements or 0 for c in gathers)] += 1
        elif s.use.role is Role.weights:
            totals[_parameters_of_units(s.use.calls, sharing or 1)] += 1
        else:
            totals[sum(c.elements or 0 for c in reduces)] += 1
    unsized = sum(c.elements is None for s in data.shard for c in s.use.calls)
    if unsized:
        least = max(totals, default=0)
        case.object_to(
            "params_per_rank",
            f"{plural(unsized, 'call')} {noun(unsized, 'has', 'have')} no size: at least {least:,} elements",
        )
        return
    known = [total for total in totals if total]
    if not known or data.experts or (case.value("ep") or 1) > 1:
        return
    case.solve("params_per_rank")
    if len(known) == 1:
        told = f"{known[0]:,} elements of gradients are reduced for one update, padding included"
        case.decide("params_per_rank", known[0], 0.85, told)


def _parameters_of_units(calls: Sequence[Call], microbatches: int) -> int:
    """Gradients of one micro-batch: of the whole step or of one of several, whichever is nearer to the parameters."""
    reduced = sum(c.elements or 0 for c in calls if c.primitive is not P.all_gather)
    gathered = sum(size for size in {c.elements for c in calls if c.primitive is P.all_gather} if size)
    units = Counter(c.elements for c in calls if c.primitive is P.all_gather and c.phase is F)
    once = sum((size or 0) * max(1, count // microbatches) for size, count in units.items()) or gathered
    return min((reduced, reduced // microbatches), key=lambda total: abs(total - once))


def _once(case: Case) -> bool:
    """Under a pipeline FSDP reduces once a step, whatever the number of micro-batches."""
    return (case.value("pp") or 1) > 1


def _decide_layers(job: Job, case: Case, data: DataParallel) -> None:
    """The number of equal units of FSDP, which is that of the layers on the stage."""
    counts: dict[int, str] = {}
    for s in data.shard:
        if s.use.role is not Role.weights:
            continue
        units = Counter(c.elements for c in s.use.calls if c.primitive is P.reduce_scatter)
        size, count = units.most_common(1)[0] if units else (None, 0)
        gathers = sum(c.elements == size for c in s.use.calls if c.primitive is P.all_gather and c.phase is F)
        rounds = case.value("num_microbatches") or 1
        layers = count if count <= gathers // rounds or _once(case) else count // rounds
        if layers >= 2 and len(units) > 1:
            counts[layers] = f"{layers} units of {size:,} elements are scattered"
    if len(counts) == 1:
        layers, told = next(iter(counts.items()))
        case.decide("layers_per_stage", layers, 0.85, told)
