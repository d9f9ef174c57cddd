"""What each process group of a rank is used for, told from what it carries: primitives, sizes, counts, places.

A *use* is one role of one group. A group may have several: the same ranks may average gradients and dispatch tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.results import Phase

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741


UNDECIDED = "ulysses or experts"


class Role(StrEnum):
    """What a group is for."""

    weights = "weights"  # parameters gathered for use, gradients scattered: ZeRO-3, FSDP
    updates = "updates"  # gradients reduced, parameters gathered after the update: ZeRO-1 and 2
    grads = "grads"  # gradients all-reduced
    shard_grads = "shard_grads"  # shards of gradients all-reduced across replicas: HSDP
    tensor = "tensor"
    context = "context"
    experts = "experts"
    pipeline = "pipeline"
    tables = "tables"  # embedding tables of recommendation models
    tied = "tied"  # gradient of an embedding that first and last stage share
    batch = "batch"  # tokens and labels handed out


@dataclass(frozen=True, slots=True)
class Use:
    """One role of one group of a rank, with the calls that show it."""

    role: Role
    group: int
    calls: tuple[Call, ...]
    confidence: float
    why: str
    detail: str | None = None
    """How context is exchanged, how experts are reached, whether TP is sequence parallel (`sp`)."""


def find_uses(view: RankView) -> list[Use]:
    """All uses of the groups of a rank."""
    uses: list[Use] = []
    many = [g for g in view.by_group if view.groups[g].size != 1]
    if _looks_up_tables(view):
        return [use for group in many for use in _table_uses(view, group)]
    for group in many:
        uses += _point_to_point(view, group)
        uses += _all_to_alls(view, group)
        uses += _gathers_and_scatters(view, group)
    for group in many:
        uses += _all_reduces(view, group, uses)
        uses += _broadcasts(view, group)
    return uses


def sizeable(calls: Sequence[Call]) -> list[Call]:
    """Calls with tensors of floating point: no bookkeeping, no counts, no indices."""
    return [c for c in calls if not c.is_scalar and not c.is_integer]


def _sizes(calls: Sequence[Call]) -> set[int | None]:
    return {c.elements for c in calls}


def _m(number: int | None) -> str:
    """A count of elements for people."""
    if number is None:
        return "unknown size"
    return f"{number:,}"


# --- point to point -------------------------------------------------------------------------------------------------


def _point_to_point(view: RankView, group: int) -> list[Use]:
    calls = [c for c in view.by_group[group] if c.primitive in (P.send, P.recv)]
    if not calls:
        return []
    inside_autograd = [c for c in calls if c.phase is B]
    if inside_autograd and _is_ring(view, calls):
        why = (
            f"{len(calls)} messages to one neighbour and from the other inside forward and backward of a layer "
            f"({len(inside_autograd)} issued by autograd)"
        )
        return [Use(Role.context, group, tuple(calls), 0.95, why, "ring_p2p")]
    peers = sorted({c.peer for c in calls if c.peer is not None})
    shown = f"with {'rank' if len(peers) == 1 else 'ranks'} {', '.join(map(str, peers))}" if peers else ""
    why = f"{len(calls)} sends and receives {shown} outside of autograd, {_m(_modal(calls))} elements each"
    return [Use(Role.pipeline, group, tuple(calls), 0.95, why)]


def _is_ring(view: RankView, calls: Sequence[Call]) -> bool:
    """Sends and receives in equal number in every phase, one right after the other: a ring passes on what it gets.

    A stage of a pipeline computes between what it receives and what it sends.
    """
    if view.gaps:
        pairs = [(a, b) for a, b in pairwise(calls) if a.primitive is not b.primitive]
        apart = sum(_matmul_between(view, a, b) > 0 for a, b in pairs)
        if apart > 0.6 * len(pairs):
            return False
    for phase in (F, B):
        sent = sum(c.primitive is P.send for c in calls if c.phase is phase)
        received = sum(c.primitive is P.recv for c in calls if c.phase is phase)
        if abs(sent - received) > 0.1 * max(sent, received, 1):
            return False
    return True


def _modal(calls: Sequence[Call]) -> int | None:
    counted = Counter(c.elements for c in calls if c.elements is not None)
    return counted.most_common(1)[0][0] if counted else None


# --- all-to-all -----------------------------------------------------------------------------------------------------


def _all_to_alls(view: RankView, group: int) -> list[Use]:
    calls = [c for c in view.by_group[group] if c.primitive is P.all_to_all]
    tensors, counts = [c for c in calls if not c.is_integer], [c for c in calls if c.is_integer]
    if not tensors:
        return []
    one_hot = [c for c in tensors if c.splits is not None and len(c.splits) > 1 and sum(map(bool, c.splits)) <= 1]
    gathered = [c for c in view.by_group[group] if c.primitive is P.all_gather and c.is_integer]
    if len(one_hot) > 0.8 * len(tensors) and not counts and not gathered:
        return [_torch_ring(view, group, one_hot)]
    if _are_gradients(view, group, tensors):
        why = f"gathers of parameters and {len(tensors)} all-to-alls of the same {_m(tensors[0].elements)} elements"
        return [Use(Role.weights, group, (*_gathered(view, group), *tensors), 0.85, why, "all_to_all")]
    uneven = [c for c in tensors if c.splits is not None and len(set(c.splits)) > 1]
    if uneven or counts or gathered:
        first = f"{len(uneven)} of {len(tensors)} all-to-alls have unequal splits" if uneven else "equal splits"
        why = f"{first}, {len(counts) + len(gathered)} exchanges of counts before them"
        return [Use(Role.experts, group, tuple(calls), 0.97 if uneven and counts else 0.9, why, "all_to_all")]
    return [_equal_all_to_alls(view, group, tensors)]


def _torch_ring(view: RankView, group: int, calls: Sequence[Call]) -> Use:
    gathers = [c for c in sizeable(view.by_group[group]) if c.primitive is P.all_gather]
    kind = "allgather" if gathers and not any(c.phase is F for c in calls) else "ring_alltoall"
    why = f"{len(calls)} all-to-alls send everything to one peer: K and V, or their gradients, go round a ring"
    if kind == "allgather":
        why = f"{len(gathers)} all-gathers of K and V of {_m(gathers[0].elements)} elements; backward rotates gradients"
    return Use(Role.context, group, (*gathers, *calls), 0.98, why, kind)


def _looks_up_tables(view: RankView) -> bool:
    """Whether indices of embedding tables travel: integers of several dtypes, many more than a router's counts."""
    indices = [c for c in view.calls if c.primitive is P.all_to_all and c.is_integer]
    return len({c.dtype for c in indices}) >= 2 and any((c.elements or 0) > 64 for c in indices)


def _table_uses(view: RankView, group: int) -> list[Use]:
    """In a recommendation model pooled embeddings travel by all-to-all or reduce-scatter, gradients by all-reduce."""
    calls = view.by_group[group]
    exchanges = [c for c in calls if c.primitive in (P.all_to_all, P.reduce_scatter, P.all_gather)]
    reduces = [c for c in calls if c.primitive is P.all_reduce and c.phase in (B, O) and not c.is_scalar]
    uses = []
    if exchanges:
        integers = sum(c.is_integer for c in exchanges)
        why = f"{integers} exchanges of indices and lengths, {len(exchanges) - integers} of pooled embeddings"
        uses.append(Use(Role.tables, group, tuple(exchanges), 0.9, why))
    if reduces:
        why = f"{len(reduces)} all-reduces during backward beside embedding tables: gradients of the dense part"
        uses.append(Use(Role.grads, group, tuple(reduces), 0.93, why))
    return uses


def _gathered(view: RankView, group: int) -> list[Call]:
    return [c for c in sizeable(view.by_group[group]) if c.primitive is P.all_gather]


def _are_gradients(view: RankView, group: int, tensors: Sequence[Call]) -> bool:
    """All-to-alls that stand for a reduce-scatter: as large as what was gathered in the same group."""
    gathered = {c.elements for c in _gathered(view, group) if c.phase in (F, None)}
    return bool(gathered) and all(c.phase in (B, O) and c.elements in gathered for c in tensors)


def _equal_all_to_alls(view: RankView, group: int, calls: Sequence[Call]) -> Use:
    """Ulysses exchanges q, k, v and the output of attention; a capacity-bound router dispatches and combines."""
    forward = [c for c in calls if c.phase in (F, None)]
    sizes = [c.elements for c in forward]
    if _repeats(sizes, 4) and sizes[0] == sizes[3] and sizes[1] == sizes[2] != sizes[0]:
        why = f"4 all-to-alls a layer of {_m(sizes[0])} and {_m(sizes[1])} elements: q, k, v and the output"
        return Use(Role.context, group, tuple(calls), 0.95, why, "ulysses")
    if len(set(sizes)) == 2 and _repeats(sizes, 2):
        why = f"pairs of equal all-to-alls of {_m(sizes[0])} and {_m(sizes[1])} elements: packed q, k, v and the output"
        return Use(Role.context, group, tuple(calls), 0.85, why, "ulysses")
    pauses = [_matmul_between(view, a, b) for a, b in pairwise(forward)]
    if pauses and any(pauses) and len(forward) % 4 == 0:
        packed = sum(not pause for pause in pauses)
        if packed >= len(forward) // 2:
            why = f"{len(forward)} equal all-to-alls in forward, three of four without a matrix product between them"
            return Use(Role.context, group, tuple(calls), 0.9, why, "ulysses")
        why = f"{len(forward)} equal all-to-alls in forward, each pair around matrix products: dispatch and combine"
        return Use(Role.experts, group, tuple(calls), 0.85, why, "all_to_all")
    why = f"{len(calls)} equal all-to-alls without counts: attention heads or tokens of experts"
    if len(forward) % 4:
        return Use(Role.experts, group, tuple(calls), 0.75, why, "all_to_all")
    return Use(Role.context, group, tuple(calls), 0.5, why, UNDECIDED)


def _repeats(sizes: Sequence[int | None], period: int) -> bool:
    return (
        len(sizes) >= period
        and len(sizes) % period == 0
        and list(sizes) == list(sizes[:period]) * (len(sizes) // period)
    )


def _matmul_between(view: RankView, first: Call, second: Call) -> int:
    return sum(g.matmul_ns for g in view.gaps if first.index <= g.after < second.index)


# --- all-gather and reduce-scatter ------------------------------------------------------------------------------------


def _gathers_and_scatters(view: RankView, group: int) -> list[Use]:
    own = sizeable(view.by_group[group])
    gathers = [c for c in own if c.primitive is P.all_gather]
    scatters = [c for c in own if c.primitive is P.reduce_scatter]
    if not gathers and not scatters:
        return []
    if any(c.primitive is P.all_to_all for c in own) and not scatters:
        return []  # the all-to-alls of the group have told what its gathers are for
    maps = [c for c in view.by_group[group] if c.primitive is P.all_gather and c.dtype == "bool" and not c.is_scalar]
    if maps and scatters:
        why = f"{len(maps)} gathers of routing maps beside {len(gathers)} gathers and {len(scatters)} scatters"
        return [Use(Role.experts, group, (*gathers, *scatters, *maps), 0.9, why, "allgather")]
    activations = _sequence_parallel(view, gathers, scatters)
    if activations is not None:
        return [_tensor_use(group, gathers, scatters, activations)]
    if not gathers:
        return _only_scatters(group, scatters)
    if not scatters:
        return _only_gathers(view, group, gathers)
    keys = _keys_and_values(view, gathers, scatters)
    uses = [] if not keys else [_context_use(group, keys)]
    gathers = [c for c in gathers if c not in keys]
    scatters = [c for c in scatters if c not in keys]
    if gathers and scatters:
        uses.append(_weights_or_updates(group, gathers, scatters))
    return uses


def _weights_or_updates(group: int, gathers: Sequence[Call], scatters: Sequence[Call]) -> Use:
    if all(c.phase is None for c in (*gathers, *scatters)):
        why = f"{len(gathers)} gathers and {len(scatters)} scatters of equal sizes; no phase is known"
        return Use(Role.weights, group, (*gathers, *scatters), 0.4, why)
    if not any(c.phase in (F, B, None) for c in gathers):
        why = f"{len(scatters)} reduce-scatters of gradients, {len(gathers)} all-gathers of parameters after the update"
        return Use(Role.updates, group, (*gathers, *scatters), 0.95, why)
    return _weights_use(group, gathers, scatters)


def _sequence_parallel(view: RankView, gathers: Sequence[Call], scatters: Sequence[Call]) -> int | None:
    """The size that forward both gathers and scatters, in turn: activations of sequence parallelism."""
    end = view.first_backward
    early = [c for c in (*gathers, *scatters) if c.phase in (F, None) and c.index <= end]
    forward = sorted(early, key=lambda c: c.index)
    common = _sizes([c for c in forward if c.primitive is P.all_gather]) & _sizes(
        [c for c in forward if c.primitive is P.reduce_scatter]
    )
    common.discard(None)
    if not common:
        return None
    counted = Counter(c.elements for c in forward if c.elements in common)
    size = counted.most_common(1)[0][0]
    line = [c for c in forward if c.elements == size]
    turns = sum(a.primitive is not b.primitive for a, b in pairwise(line))
    kinds = {c.dtype for c in line}
    if all(c.phase is None for c in line):
        return None  # without phases sharded parameters look the same: gathered and scattered in turn in backward
    return size if turns >= 0.6 * (len(line) - 1) and len(kinds) == 1 else None


def _tensor_use(group: int, gathers: Sequence[Call], scatters: Sequence[Call], size: int) -> Use:
    calls = tuple(c for c in (*gathers, *scatters) if c.elements == size)
    forward = sum(c.phase in (F, None) for c in calls)
    why = (
        f"{forward} gathers and scatters of {_m(size)} elements in turn in forward, "
        f"{len(calls) - forward} in backward: activations, not parameters"
    )
    return Use(Role.tensor, group, calls, 0.97 if forward > 2 else 0.85, why, "sp")


def _only_scatters(group: int, scatters: Sequence[Call]) -> list[Use]:
    if any(c.phase is F for c in scatters) and not any(c.phase in (B, O) for c in scatters):
        why = f"{len(scatters)} reduce-scatters in forward without a gather: pooled embeddings of sharded tables"
        return [Use(Role.tables, group, tuple(scatters), 0.75, why)]
    why = f"{len(scatters)} reduce-scatters of gradients; no gather was seen"
    return [Use(Role.updates, group, tuple(scatters), 0.7, why)]


def _only_gathers(view: RankView, group: int, gathers: Sequence[Call]) -> list[Use]:
    reduced = [c for c in sizeable(view.by_group[group]) if c.primitive is P.all_reduce]
    in_forward = [c for c in reduced if c.phase is F]
    if all(c.phase is O for c in gathers):
        after = [c for c in reduced if c.phase in (B, O)]
        if after:
            why = f"{len(after)} all-reduces of gradients, {len(gathers)} all-gathers of parameters after the update"
            return [Use(Role.updates, group, (*gathers, *reduced), 0.93, why, "all_reduce")]
        return []
    if len(in_forward) > 1:
        return []  # the logits of tensor parallelism, beside its all-reduces
    if any(c.phase is B for c in gathers) and len(gathers) > 2:
        why = f"{len(gathers)} all-gathers in forward and backward; no scatter was seen (frozen parameters?)"
        return [Use(Role.weights, group, tuple(gathers), 0.7, why)]
    return []


def _weights_use(group: int, gathers: Sequence[Call], scatters: Sequence[Call]) -> Use:
    forward = [c for c in gathers if c.phase in (F, None)]
    units = Counter(c.elements for c in forward)
    common, times = units.most_common(1)[0] if units else (None, 0)
    backward = len([c for c in gathers if c.phase is B])
    why = (
        f"{len(forward)} gathers of parameters in forward ({times} of {_m(common)} elements), {backward} in backward, "
        f"{len(scatters)} scatters of gradients"
    )
    return Use(Role.weights, group, (*gathers, *scatters), 0.95 if len(units) > 1 else 0.8, why)


def _context_use(group: int, calls: Sequence[Call]) -> Use:
    forward = [c for c in calls if c.phase in (F, None)]
    why = f"{len(forward)} gathers of {_m(forward[0].elements)} elements inside the layers of forward, in pairs"
    return Use(Role.context, group, tuple(calls), 0.88, why, "allgather")


def _keys_and_values(view: RankView, gathers: Sequence[Call], scatters: Sequence[Call]) -> list[Call]:
    """The gathers and scatters of the one size that behaves like keys and values; [] when none does."""
    for size in _sizes(gathers) & _sizes(scatters):
        own, back = [c for c in gathers if c.elements == size], [c for c in scatters if c.elements == size]
        forward = [c for c in own if c.phase in (F, None)]
        if len(forward) >= 2 and _exchanges_keys(view, forward, own, back):
            return [*own, *back]
    return []


def _exchanges_keys(view: RankView, forward: Sequence[Call], gathers: Sequence[Call], scatters: Sequence[Call]) -> bool:
    """Whether equal gathers are of keys and values: after a matrix product, K and V one after the other."""
    if {c.dtype for c in gathers} != {c.dtype for c in scatters} or len(forward) % 2 or len(scatters) != len(forward):
        return False
    pairs = [*_pairs(forward), *_pairs(scatters)]
    if view.gaps:
        before = sum(g.matmul_ns for g in view.gaps if g.after < forward[0].index)
        return before > 0 and not any(_matmul_between(view, a, b) for a, b in pairs)
    if len(forward) < 4:
        return False
    # without compute: in backward, dK and dV leave together, layer by layer
    line = sorted((c for c in (*gathers, *scatters) if c.phase is B), key=lambda c: c.index)
    runs = _runs([c.primitive for c in line])
    return len(runs) > 1 and all(length % 2 == 0 for _, length in runs)


def _pairs(calls: Sequence[Call]) -> list[tuple[Call, Call]]:
    return list(zip(calls[::2], calls[1::2], strict=True))


def _runs(items: Sequence[Primitive]) -> list[tuple[Primitive, int]]:
    runs: list[tuple[Primitive, int]] = []
    for item in items:
        if runs and runs[-1][0] is item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    return runs


# --- all-reduce and broadcast -----------------------------------------------------------------------------------------


def _all_reduces(view: RankView, group: int, uses: Sequence[Use]) -> list[Use]:
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
        return [activations_use(group, activations)]
    late = [c for c in calls if c.phase in (B, O) and (c.phase is B or (c.elements or 0) >= _LEAST_GRADIENT)]
    if not late or any(use.group == group and use.role in (Role.weights, Role.updates) for use in uses):
        return []
    shards = _matching_scatters(view, group, late)
    if shards:
        why = f"{len(late)} all-reduces follow reduce-scatters of another group and carry exactly their {shards} shards"
        return [Use(Role.shard_grads, group, tuple(late), 0.97, why)]
    if len(late) == 1 and late[0].phase is O and _joins_stages(view, group, uses):
        why = f"one all-reduce of {_m(late[0].elements)} elements after backward between two ranks: a tied embedding"
        return [Use(Role.tied, group, tuple(late), 0.85, why)]
    handed = [c for c in sizeable(view.by_group[group]) if c.primitive is P.broadcast and c.phase is O]
    known = [c.elements for c in late if c.elements is not None]
    if handed and sum(c.elements or 0 for c in handed) >= 0.5 * sum(known):
        why = f"{len(late)} all-reduces of gradients, {len(handed)} broadcasts of updated parameters by their owners"
        return [Use(Role.updates, group, (*late, *handed), 0.93, why, "broadcast")]
    total = f", {_m(sum(known))} elements in all" if known else ""
    why = f"{len(late)} all-reduces during and after backward{total}, none of activations in forward"
    return [Use(Role.grads, group, tuple(late), 0.93 if any(c.phase is B for c in late) else 0.8, why)]


_LEAST_GRADIENT = 2048
"""Fewer elements after backward are norms, statistics or counts."""


def activations_use(group: int, calls: Sequence[Call]) -> Use:
    """Tensor parallelism that all-reduces activations."""
    forward = sum(c.phase in (F, None) for c in calls)
    why = (
        f"{forward} all-reduces of {_m(calls[0].elements)} elements in forward and {len(calls) - forward} in backward: "
        "one size, activations"
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
    apart = sum(_matmul_between(view, a, b) > 0 for a, b in pairwise(equal))
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


def _broadcasts(view: RankView, group: int) -> list[Use]:
    calls = [c for c in view.by_group[group] if c.primitive is P.broadcast]
    tokens = [c for c in calls if c.dtype == "int64" and not c.is_scalar and c.phase in (F, None)]
    labels = [c for c in tokens if len(tokens) > 1 and c.elements == tokens[0].elements]
    if len(labels) < 2:
        return []
    why = f"{len(labels)} broadcasts of {_m(labels[0].elements)} int64 in forward: tokens and labels of a batch"
    return [Use(Role.batch, group, tuple(calls), 0.8, why)]
