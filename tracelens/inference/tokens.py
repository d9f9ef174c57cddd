"""Tokens of a micro-batch, and its sequences where something tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tracelens.collectives import Primitive
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, sizeable
from tracelens.inference.workload import find_workload

P = Primitive
_LEAST_TOKENS = 16


def find_tokens(job: Job, case: Case) -> None:
    """Decide tokens_per_microbatch, and from it seq_len and micro_batch.

    All layers see the tokens of a context rank, s·b/cp: tensor parallelism gathers or reduces s·b/cp · hidden elements,
    with sequence parallelism too; stages send as many each other where tp is 1 (with sequence parallelism a stage may
    send a share of them); the rows of x·W are s·b/cp. Megatron hands out s·b int64, before the sequence is cut.
    """
    workload, _ = find_workload(job)
    cp = case.value("cp")
    if workload == "recommendation" or cp is None or not (job.trains or job.returns_messages):
        return
    certainty = 0.9 if case.value("ep") == 1 else 0.75
    _decide_tokens(case, "rows of the matrix products", _rows_of_products(job, case), cp, certainty)
    certainty = min(0.85, case.verdict("hidden").confidence or 0.0)
    _decide_tokens(case, "rows of hidden elements in activations", _activations_over_hidden(job, case), cp, certainty)
    handed = Counter(size for s in job.sightings(Role.batch) if (size := _handed_out(s.use.calls)) is not None)
    _decide_tokens(case, "int64 handed out to tensor-parallel ranks", handed, 1, 0.7)
    tokens = case.value("tokens_per_microbatch")
    if tokens is not None:
        case.solve("tokens_per_microbatch")
        _decide_sequences(job, case, tokens)


def _decide_tokens(case: Case, what: str, seen: Iterable[int], cp: int, certainty: float) -> None:
    """One argument for each kind of evidence; ranks that differ tell nothing."""
    sizes = set(seen)
    if len(sizes) != 1:
        return
    own = sizes.pop()
    if own < _LEAST_TOKENS:
        return
    told = f"{own:,} {what}" + (f", {cp} context ranks" if cp > 1 else "")
    agrees = case.value("tokens_per_microbatch") == own * cp
    case.decide("tokens_per_microbatch", own * cp, certainty, told)
    case.check(holds=agrees)


def _rows_of_products(job: Job, case: Case) -> set[int]:
    hidden = case.value("hidden")
    found = {rows for view in job.views if (rows := _rows(view, hidden)) is not None}
    if case.value("ep") == 1 or hidden is None:
        return found
    # products of experts have rows of their own; what is narrow, as a router or keys and values, has those of layers
    narrow = {m for view in job.views for m, k, n, _ in view.products if k == hidden and n * _NARROW <= hidden}
    return found & narrow


def _rows(view: RankView, hidden: int | None) -> int | None:
    """The rows that most matrix products of linear layers share.

    x·W and dy·Wᵀ have the tokens as their rows, dyᵀ·x sums over them, and no product has them as columns; a width of
    weights is a column of some product, unless it is as large as the number of tokens.
    """
    total = sum(count for *_, count in view.products)
    if hidden is None or total < _LEAST_PRODUCTS:
        return None
    rows: Counter[int] = Counter()
    summed: Counter[int] = Counter()
    for m, k, _, count in view.products:
        rows[m] += count
        summed[k] += count
    sides = {m for m, *_ in view.products} & {k for _, k, *_ in view.products}
    fitting = [side for side in sides if rows[side] >= 0.5 * total and rows[side] > summed[side]]
    fitting = [side for side in fitting if _touched(view, side) >= _SHARE * total]
    return fitting[0] if len(fitting) == 1 else None


_NARROW = 8
_LEAST_PRODUCTS = 8
_SHARE = 0.6
"""So many of the products must have the tokens as rows or sum over them; routers and heads in chunks have others."""


def _touched(view: RankView, side: int) -> int:
    return sum(count for m, k, _, count in view.products if side in (m, k))


def _activations_over_hidden(job: Job, case: Case) -> set[int]:
    """Activations of tensor parallelism, or of stages where tp is 1, in rows of the hidden size."""
    hidden = case.value("hidden")
    if hidden is None:
        return set()
    roles = [Role.tensor, *([Role.pipeline] if case.value("tp") == 1 else [])]
    sizes = {size for s in job.sightings(*roles) if (size := _modal(s.use.calls)) is not None}
    return {size // hidden for size in sizes} if all(size % hidden == 0 for size in sizes) else set()


def _modal(calls: Sequence[Call]) -> int | None:
    sizes = Counter(c.elements for c in sizeable(calls) if c.elements)
    return sizes.most_common(1)[0][0] if sizes else None


def _handed_out(calls: Iterable[Call]) -> int | None:
    sizes = Counter(c.elements for c in calls if c.dtype == "int64" and c.elements and not c.is_scalar)
    return next(iter(sizes)) if len(sizes) == 1 else None


def _decide_sequences(job: Job, case: Case, tokens: int) -> None:
    """Sequence length and sequences from a mask of [b, 1, s, s], or from the products of attention."""
    masked = {size // tokens for size in _masks(job) if size % tokens == 0}
    _argue_sequences(case, masked, tokens, 0.9, "a mask is handed out that has this many elements a token")
    if case.value("cp") == 1:
        attended = {length for view in job.views for length in _attended(view, case, tokens)}
        _argue_sequences(case, attended, tokens, 0.85, "attention multiplies matrices of so many positions")


def _argue_sequences(case: Case, lengths: set[int], tokens: int, certainty: float, told: str) -> None:
    if len(lengths) != 1:
        return
    length = lengths.pop()
    if length > 1 and tokens % length == 0:
        case.solve("seq_len")
        case.decide("seq_len", length, certainty, f"{length:,}: {told}")
        case.decide("micro_batch", tokens // length, certainty, f"{tokens:,} tokens in sequences of {length:,}: {told}")


def _masks(job: Job) -> set[int]:
    return {c.elements for s in job.sightings(Role.batch) for c in s.use.calls if c.dtype == "bool" and c.elements}


_LARGEST_HEAD = 256


def _attended(view: RankView, case: Case, tokens: int) -> set[int]:
    """Lengths s for which q·kᵀ, [n, s, d] x [n, d, s], and p·v, [n, s, s] x [n, s, d], were both seen.

    n is sequences times heads of the rank, so that n·s·d is the rank's share of all tokens' hidden elements: experts
    and optimizers that multiply in batches don't fit that.
    """
    hidden, tp = case.value("hidden"), case.value("tp")
    if hidden is None or tp is None:
        return set()
    seen = view.batched
    return {
        s
        for n, s, d, other in seen
        if s == other and s not in (d, hidden) and d <= _LARGEST_HEAD
        and (n, s, s, d) in seen and n * s * d * tp == tokens * hidden and tokens % s == 0
    }  # fmt: skip
