"""Uses told by all-reduces and broadcasts: tensor parallelism, replicas, tied embeddings, batches."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, Use, in_words, matmul_between, sizeable
from tracelens.results import Phase

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741


def find_all_reduces(view: RankView, group: int, uses: Sequence[Use]) -> list[Use]:
    """Activations of tensor parallelism, gradients, their shards, tied embeddings, given the uses found before."""
    calls = [c for c in sizeable(view.by_group[group]) if c.primitive is P.all_reduce]
    taken = {id(c) for use in uses if use.group == group for c in use.calls}
    calls = [c for c in calls if id(c) not in taken]
    if not calls or any(use.group == group and use.role is Role.tensor for use in uses):
        return []
    if _follow_scatters(view, group, calls):
        why = f"{len(calls)} all-reduces, each of the shard that the reduce-scatter before it left"
        return [Use(Role.shard_grads, group, tuple(calls), 0.97, why)]
    activations = _reduced_activations(view, calls)
    if activations:
        return [_activations_use(group, activations)]
    late = [c for c in calls if c.phase in (B, O) and (c.phase is B or (c.elements or 0) >= _LEAST_GRADIENT)]
    if not late or any(use.group == group and use.role in (Role.weights, Role.updates) for use in uses):
        return []
    shards = _matching_scatters(view, group, late)
    if shards:
        why = f"{len(late)} all-reduces follow reduce-scatters of another group and carry exactly their {shards} shards"
        return [Use(Role.shard_grads, group, tuple(late), 0.97, why)]
    if len(late) == 1 and late[0].phase is O and _joins_stages(view, group, uses):
        why = (
            f"one all-reduce of {in_words(late[0].elements)} elements after backward joins two stages: a tied embedding"
        )
        return [Use(Role.tied, group, tuple(late), 0.85, why)]
    handed = [c for c in sizeable(view.by_group[group]) if c.primitive is P.broadcast and c.phase is O]
    known = [c.elements for c in late if c.elements is not None]
    if handed and sum(c.elements or 0 for c in handed) >= 0.5 * sum(known):
        why = f"{len(late)} all-reduces of gradients, {len(handed)} broadcasts of updated parameters by their owners"
        return [Use(Role.updates, group, (*late, *handed), 0.93, why, "broadcast")]
    total = f", {in_words(sum(known))} elements in all" if known else ""
    why = f"{len(late)} all-reduces during and after backward{total}, none of activations in forward"
    return [Use(Role.grads, group, tuple(late), 0.93 if any(c.phase is B for c in late) else 0.8, why)]


_LEAST_GRADIENT = 2048
"""Fewer elements after backward are norms, statistics or counts."""


def _activations_use(group: int, calls: Sequence[Call]) -> Use:
    """Tensor parallelism that all-reduces activations."""
    forward = sum(c.phase in (F, None) for c in calls)
    why = (
        f"{forward} all-reduces of {in_words(calls[0].elements)} elements in forward and "
        f"{len(calls) - forward} in backward: one size, activations"
    )
    return Use(Role.tensor, group, tuple(calls), _certainty_of_activations(calls), why, "no_sp")


def _certainty_of_activations(calls: Sequence[Call]) -> float:
    if len(calls) <= 2 or all(c.phase is None for c in calls):
        return 0.75
    return 0.95


def _reduced_activations(view: RankView, calls: Sequence[Call]) -> list[Call]:
    """All-reduces of the one size that forward repeats, or that backward repeats after forward."""
    forward = [c for c in calls if c.phase in (F, None) and c.elements is not None]
    if all(c.phase is None for c in view.calls):
        return _served_activations(view, calls)
    backward = Counter(c.elements for c in calls if c.phase is B)
    best: tuple[int, int] | None = None
    for size, count in Counter(c.elements for c in forward).items():
        together = _most_in_one_forward(view, [c for c in forward if c.elements == size])
        if together >= 2 or backward.get(size) or len(calls) == 1:
            weight = count * (size or 0)
            best = max(best, (weight, size or 0)) if best else (weight, size or 0)
    return [c for c in calls if best is not None and c.elements == best[1]]


def _served_activations(view: RankView, calls: Sequence[Call]) -> list[Call]:
    """Without any backward: equal all-reduces with matrix products between them, all issued by one known thread.

    Gradients of equal layers would look the same, but come from autograd's thread, or from a trace without threads.
    """
    threads = {g.thread for g in view.gaps} | {c.thread for c in calls}
    size, count = Counter(c.elements for c in calls).most_common(1)[0]
    equal = [c for c in calls if c.elements == size]
    if len(threads) != 1 or None in threads or count < _LEAST_SERVED:
        return []
    apart = sum(matmul_between(view, a, b) > 0 for a, b in pairwise(equal))
    return equal if apart >= 0.8 * (len(equal) - 1) else []


_LEAST_SERVED = 8
"""So many all-reduces make two layers of two decoded tokens."""


def _most_in_one_forward(view: RankView, calls: Sequence[Call]) -> int:
    """The most of these calls between two backwards."""
    backward = [c.index for c in view.calls if c.phase is B]
    counted = Counter(sum(b < c.index for b in backward) for c in calls)
    return max(counted.values(), default=0)


def _follow_scatters(view: RankView, group: int, calls: Sequence[Call]) -> bool:
    """Whether every all-reduce carries the output of the reduce-scatter before it, wherever in the step it was issued.

    A pipeline reduces gradients from its own thread, between the passes, so that the phase does not tell.
    """
    scattered = [c for c in _scatters_elsewhere(view, group) if c.dtype == calls[0].dtype]
    places = [c.index for c in scattered]
    befores = [bisect_left(places, c.index) - 1 for c in calls]
    return all(b >= 0 and scattered[b].shard == c.elements for b, c in zip(befores, calls, strict=True))


def _scatters_elsewhere(view: RankView, group: int) -> list[Call]:
    return [
        c
        for c in sizeable(view.calls)
        if c.primitive is P.reduce_scatter and c.group != group and view.groups[c.group].size != 1
    ]


def _matching_scatters(view: RankView, group: int, late: Sequence[Call]) -> int | None:
    """How many all-reduces carry the output of the reduce-scatter before them; None unless all do."""
    scatters = _scatters_elsewhere(view, group)
    if not scatters:
        return None
    shards = Counter(c.shard for c in scatters)
    fit = sum(c.elements in shards for c in late)
    return fit if fit >= 0.9 * len(late) else None


def _joins_stages(view: RankView, group: int, uses: Sequence[Use]) -> bool:
    """Whether a group of two holds stages of one pipeline."""
    own = set(view.groups[group].ranks or ())
    lanes = [set(view.groups[use.group].ranks or ()) for use in uses if use.role is Role.pipeline]
    return len(own) == 2 and any(own < lane for lane in lanes)


def find_broadcasts(view: RankView, group: int) -> list[Use]:
    """Tokens and labels handed out to tensor-parallel ranks."""
    calls = [c for c in view.by_group[group] if c.primitive is P.broadcast]
    tokens = [c for c in calls if c.dtype == "int64" and not c.is_scalar and c.phase in (F, None)]
    labels = [c for c in tokens if len(tokens) > 1 and c.elements == tokens[0].elements]
    if len(labels) < 2:
        return []
    why = f"{len(labels)} broadcasts of {in_words(labels[0].elements)} int64 in forward: tokens and labels of a batch"
    return [Use(Role.batch, group, tuple(calls), 0.8, why)]
