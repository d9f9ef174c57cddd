"""Why predicted and measured differ: known alternatives are tried until the difference is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracelens.compared import Verdict
from tracelens.comparison.alternatives import Alternative, list_alternatives
from tracelens.comparison.items import Unit
from tracelens.comparison.join import Pair
from tracelens.comparison.sizes import same_bytes, same_calls
from tracelens.errors import TraceLensError
from tracelens.ledger.layout import Layout
from tracelens.ledger.model import ModelSpec
from tracelens.units import noun

MOST_CHANGES = 6
"""How many alternatives may be put on top of one another."""

MOST_UNITS = 6
"""Units of ranks that alternatives are tried on: those that differ most; the others differ alike."""

_LEAST_GAIN = 1e-3
"""Share of all differences, or half of those in one place, that an alternative must remove to be believed."""

_MOST_OPENED = 0.1
"""New differences that an alternative may bring, as a share of what it removes."""


class Joined(Protocol):
    """A unit of ranks with its pairs."""

    @property
    def unit(self) -> Unit:
        """The ranks."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """What stands against what."""


TryOut = Callable[[ModelSpec, Layout, Sequence[Unit]], Sequence[Joined]]
"""Joins what was measured of some units with the prediction of another model and layout."""

Place = tuple[int, int | None, object, object, object]
"""Class, stage, mesh, primitive and dtype: where a difference stands."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Words for the differences in one place."""

    words: str
    place: Place
    pair: Pair | None = None
    """Only this pair of the place; None for all of them."""

    def covers(self, unit: Unit, pair: Pair, *, elsewhere: bool) -> bool:
        """Whether this explains that pair; with `elsewhere` the ranks may be others."""
        place = _place(unit, pair)
        if self.pair is not None:
            return self.pair is pair
        return place == self.place or (elsewhere and place[2:] == self.place[2:])


def explain_differences(
    joined: Sequence[Joined], model: ModelSpec, layout: Layout, try_out: TryOut
) -> list[Explanation]:
    """Words for every difference that something known removes.

    What the trace itself tells (a cut step) comes first. Then the alternative is taken that leaves least, and from
    there the next one, as long as differences go away. A difference that is gone in the end is explained by the
    alternatives that lessened it.

    Args:
        joined: the pairs of all units.
        model: as given.
        layout: as given.
        try_out: see `TryOut`.
    """
    cut = [
        Explanation(words, _place(one.unit, pair), pair)
        for one in joined
        for pair in one.pairs
        if pair.verdict is not Verdict.match and (words := cut_step(pair)) is not None
    ]
    by_weight = sorted(joined, key=lambda one: -sum(weigh([one]).values()))
    chosen = [one.unit for one in by_weight if weigh([one])][:MOST_UNITS]
    weights = weigh([one for one in by_weight if one.unit in chosen])
    for explained in cut:
        weights.pop(explained.place, None)
    lessened: dict[Place, list[str]] = {}
    state, found = Alternative("", model, layout), list(cut)
    for _ in range(MOST_CHANGES):
        best = _best(list_alternatives(state.model, state.layout), weights, chosen, try_out) if weights else None
        if best is None:
            break
        state, left = best
        for place, weight in weights.items():
            if left.get(place, 0.0) < weight - 1:
                lessened.setdefault(place, []).append(state.words)
        found += [Explanation("; ".join(lessened[p]), p) for p in weights if p not in left and p in lessened]
        weights = {place: weight for place, weight in left.items() if place in weights}
    partly = {place: words for place, words in lessened.items() if place in weights}
    return found + [Explanation(f"in part: {'; '.join(words)}", place) for place, words in partly.items()]


def _best(
    alternatives: Iterable[Alternative], weights: Mapping[Place, float], units: Sequence[Unit], try_out: TryOut
) -> tuple[Alternative, dict[Place, float]] | None:
    """The alternative that leaves least of the differences, without bringing new ones, and what it leaves."""
    best: tuple[float, Alternative, dict[Place, float]] | None = None
    total = sum(weights.values())
    for alternative in alternatives:
        try:
            tried = try_out(alternative.model, alternative.layout, units)
        except TraceLensError:
            continue  # the model or the framework can't have it
        left = weigh(tried)
        # what is absent either way is no better for being less: it must go, or meet something measured
        left |= {place: max(left[place], weights[place]) for place in _absent(tried) if place in weights}
        remaining = sum(left.get(place, 0.0) for place in weights)
        opened = sum(weight for place, weight in left.items() if place not in weights)
        gain = total - remaining
        tells = gain > _LEAST_GAIN * total or any(left.get(p, 0.0) < 0.5 * weight for p, weight in weights.items())
        if tells and gain > 1 and opened <= _MOST_OPENED * gain and (best is None or remaining + opened < best[0] - 1):
            best = (remaining + opened, alternative, left)
    return None if best is None else (best[1], best[2])


def best_alternative(
    alternatives: Iterable[Alternative], joined: Sequence[Joined], try_out: TryOut
) -> Alternative | None:
    """The alternative that leaves least of the differences; None where there is none, or none helps."""
    weights = weigh(joined)
    found = _best(alternatives, weights, [one.unit for one in joined], try_out) if weights else None
    return None if found is None else found[0]


def _place(unit: Unit, pair: Pair) -> Place:
    return (unit.rank_class, unit.stage, pair.lead.mesh, pair.lead.primitive, pair.lead.dtype)


def weigh(joined: Sequence[Joined]) -> dict[Place, float]:
    """What doesn't match, by place: measured bytes, or predicted ones where nothing measured is left over.

    So predicting less, which leaves fewer bytes absent, is no gain as long as what was measured has no match. A KiB
    for each call makes calls without bytes count.
    """
    seen: dict[Place, float] = {}
    absent: dict[Place, float] = {}
    for one in joined:
        for pair in one.pairs:
            if pair.verdict is Verdict.match:
                continue
            place = _place(one.unit, pair)
            if pair.measured:
                seen[place] = seen.get(place, 0.0) + one.unit.weight * (
                    (pair.measured_bytes or 0) + 1024 * max(1.0, pair.measured_calls)
                )
            else:
                absent[place] = absent.get(place, 0.0) + one.unit.weight * (
                    pair.predicted_bytes + 1024 * max(1.0, pair.predicted_calls)
                )
    return absent | seen


def _absent(joined: Sequence[Joined]) -> set[Place]:
    """Places of which nothing measured is left over."""
    differing = [(one.unit, pair) for one in joined for pair in one.pairs if pair.verdict is not Verdict.match]
    seen = {_place(unit, pair) for unit, pair in differing if pair.measured}
    return {_place(unit, pair) for unit, pair in differing} - seen


def cut_step(pair: Pair) -> str | None:
    """Words for a row whose fullest step is as predicted and whose mean is less: a step was cut off."""
    if not pair.predicted or not pair.measured:
        return None
    most = sum(item.most or 0 for item in pair.measured)
    fewest = sum(item.fewest or 0 for item in pair.measured)
    if fewest == most or not same_calls(pair.predicted_calls, most):
        return None
    seen = pair.measured_bytes
    full = None if seen is None or not pair.measured_calls else seen * most / pair.measured_calls
    if not same_bytes(pair.predicted_bytes, full, 0.01):
        return None
    return f"a step is cut: it holds {fewest:g} {noun(fewest, 'call')}, whole steps hold the {most:g} predicted"
