"""Uses told by what happens between dispatch and combine: parts of experts on several ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, Use, in_words

P = Primitive
_SPREADS = (P.all_gather, P.broadcast)
"""Unequal gathers are recorded as broadcasts, unequal scatters as reduces (torch ProcessGroupNCCL.cpp)."""
_COLLECTS = (P.reduce_scatter, P.reduce)


def find_expert_tensor(view: RankView, uses: Sequence[Use]) -> list[Use]:
    """Groups that gather dispatched tokens and scatter what the parts of an expert make of them.

    Between dispatch and combine Megatron-Core gathers what the dispatch brought over the ranks that hold parts of the
    same experts, and scatters it before combine (transformer/moe/token_dispatcher.py). Exactly what a dispatch brought
    is gathered: shared experts, which may run at the same time, gather another number.

    Args:
        view: the rank.
        uses: of its groups, as far as all-to-alls tell.
    """
    found: dict[int, list[Call]] = {}
    for use in uses:
        if use.role is Role.experts and use.detail == "all_to_all":
            for group, calls in _between_exchanges(view, use).items():
                found.setdefault(group, []).extend(calls)
    told = []
    for group, calls in found.items():
        spread = [c for c in calls if c.primitive in _SPREADS]
        why = (
            f"{len(spread)} gathers of what a dispatch brought ({in_words(spread[0].elements)} elements) and "
            f"{len(calls) - len(spread)} scatters before it goes back"
        )
        told.append(Use(Role.expert_tensor, group, tuple(dict.fromkeys(calls)), 0.93, why))
    return told


def without_calls(view: RankView, uses: Sequence[Use]) -> RankView:
    """The view without the calls of some uses, for rules that would take them for something else."""
    taken = {c.index for use in uses for c in use.calls}
    if not taken:
        return view
    by_group = {group: tuple(c for c in own if c.index not in taken) for group, own in view.by_group.items()}
    return dataclasses.replace(view, calls=tuple(c for c in view.calls if c.index not in taken), by_group=by_group)


def _between_exchanges(view: RankView, use: Use) -> dict[int, list[Call]]:
    """Calls of other groups between dispatch and combine, in groups that gather what the first one brought.

    Exchanges of tokens come in pairs, in backward too; the small ones beside them carry probabilities.
    """
    largest = max((c.elements or 0 for c in use.calls), default=0)
    exchanges = sorted((c for c in use.calls if (c.elements or 0) * 8 >= largest), key=lambda c: c.index)
    calls = [c for c in view.calls if c.group != use.group and not c.is_integer]
    found: dict[int, list[Call]] = {}
    for first, last in zip(exchanges[::2], exchanges[1::2], strict=False):
        inside = [c for c in calls if first.index < c.index < last.index]
        for group in {c.group for c in inside}:
            own = _parts_of(first.received, [c for c in inside if c.group == group])
            if any(c.primitive in _COLLECTS for c in own):
                found.setdefault(group, []).extend(own)
    return found


def _parts_of(brought: int | None, calls: Sequence[Call]) -> list[Call]:
    """The calls that gather and scatter what was brought, and its probabilities; [] where nothing gathers it."""
    if not any(c.primitive in _SPREADS and c.shard == brought for c in calls):
        return []
    uneven = (P.broadcast, P.reduce)
    return [
        c
        for c in calls
        if c.primitive in (*_SPREADS, *_COLLECTS)
        and (c.shard == brought or c.primitive in uneven or (c.elements or 0) * 8 <= (brought or 0))
    ]
