"""Uses told by messages and all-to-alls: pipelines, rings, attention heads, experts, embedding tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import UNDECIDED, Role, Use, in_words, matmul_between, sizeable
from tracelens.results import Phase

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741


def find_messages(view: RankView, group: int) -> list[Use]:
    """Stages of a pipeline, or a ring of context parallelism."""
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
    why = f"{len(calls)} sends and receives {shown} outside of autograd, {in_words(_modal(calls))} elements each"
    return [Use(Role.pipeline, group, tuple(calls), 0.95, why)]


def _is_ring(view: RankView, calls: Sequence[Call]) -> bool:
    """Sends and receives in equal number in every phase, one right after the other: a ring passes on what it gets.

    A stage of a pipeline computes between what it receives and what it sends.
    """
    if view.gaps:
        pairs = [(a, b) for a, b in pairwise(calls) if a.primitive is not b.primitive]
        apart = sum(matmul_between(view, a, b) > 0 for a, b in pairs)
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


def find_all_to_alls(view: RankView, group: int) -> list[Use]:
    """Rings by all-to-all, experts, attention heads, or gradients."""
    calls = [c for c in view.by_group[group] if c.primitive is P.all_to_all]
    tensors, counts = [c for c in calls if not c.is_integer], [c for c in calls if c.is_integer]
    if not tensors:
        return []
    one_hot = [c for c in tensors if c.splits is not None and len(c.splits) > 1 and sum(map(bool, c.splits)) <= 1]
    gathered = [c for c in view.by_group[group] if c.primitive is P.all_gather and c.is_integer]
    if len(one_hot) > 0.8 * len(tensors) and not counts and not gathered:
        return [_torch_ring(view, group, one_hot)]
    if _are_gradients(view, group, tensors):
        why = (
            f"gathers of parameters and {len(tensors)} all-to-alls of the same {in_words(tensors[0].elements)} elements"
        )
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
        size = in_words(gathers[0].elements)
        why = f"{len(gathers)} all-gathers of K and V of {size} elements; backward rotates gradients"
    return Use(Role.context, group, (*gathers, *calls), 0.98, why, kind)


def looks_up_tables(view: RankView) -> bool:
    """Whether indices of embedding tables travel: integers of several dtypes, or nearly as many as there are floats.

    A router sends counts, or at most an index a token, which has as many floats as the model is wide.
    """
    exchanged = [c for c in view.calls if c.primitive is P.all_to_all]
    indices = [c for c in exchanged if c.is_integer]
    if not any((c.elements or 0) > 64 for c in indices):
        return False
    wide = sum(c.elements or 0 for c in indices if c.dtype in ("int32", "int64"))
    floats = sum(c.elements or 0 for c in exchanged if not c.is_integer)
    return len({c.dtype for c in indices}) >= 2 or wide > floats / 32 > 0


def find_tables(view: RankView, group: int) -> list[Use]:
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
        why = f"4 all-to-alls a layer of {in_words(sizes[0])} and {in_words(sizes[1])} elements: q, k, v and the output"
        return Use(Role.context, group, tuple(calls), 0.95, why, "ulysses")
    if len(set(sizes)) == 2 and _repeats(sizes, 2):
        both = f"{in_words(sizes[0])} and {in_words(sizes[1])}"
        why = f"pairs of equal all-to-alls of {both} elements: packed q, k, v and the output"
        return Use(Role.context, group, tuple(calls), 0.85, why, "ulysses")
    pauses = [matmul_between(view, a, b) for a, b in pairwise(forward)]
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
