"""Uses told by all-gathers and reduce-scatters: sharded parameters, sequence parallelism, gathered keys, experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, Use, in_words, matmul_between, sizeable, sizes_of
from tracelens.results import Phase

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741


def find_gathers_and_scatters(view: RankView, group: int) -> list[Use]:
    """Sequence parallelism, sharded parameters or updates, gathered keys, experts by gathers."""
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
    common = sizes_of([c for c in forward if c.primitive is P.all_gather]) & sizes_of(
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
        f"{forward} gathers and scatters of {in_words(size)} elements in turn in forward, "
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
        f"{len(forward)} gathers of parameters in forward ({times} of {in_words(common)} elements), "
        f"{backward} in backward, {len(scatters)} scatters of gradients"
    )
    return Use(Role.weights, group, (*gathers, *scatters), 0.95 if len(units) > 1 else 0.8, why)


def _context_use(group: int, calls: Sequence[Call]) -> Use:
    forward = [c for c in calls if c.phase in (F, None)]
    why = f"{len(forward)} gathers of {in_words(forward[0].elements)} elements inside the layers of forward, in pairs"
    return Use(Role.context, group, tuple(calls), 0.88, why, "allgather")


def _keys_and_values(view: RankView, gathers: Sequence[Call], scatters: Sequence[Call]) -> list[Call]:
    """The gathers and scatters of the one size that behaves like keys and values; [] when none does."""
    for size in sizes_of(gathers) & sizes_of(scatters):
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
        return before > 0 and not any(matmul_between(view, a, b) for a, b in pairs)
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
