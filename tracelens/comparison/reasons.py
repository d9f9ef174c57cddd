"""Why predicted and measured differ: known alternatives are tried until the difference is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracelens.comparison.alternatives import Alternative, list_alternatives
from tracelens.comparison.items import Unit
from tracelens.comparison.join import Pair, same_bytes, same_calls
from tracelens.errors import TraceLensError
from tracelens.ledger.layout import Layout
from tracelens.ledger.model import ModelSpec
from tracelens.results import Verdict

MOST_CHANGES = 3
"""How many alternatives may be put on top of one another."""

_LEAST_GAIN = 1e-3
"""Share of the difference that an alternative must remove to be believed."""

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


TryOut = Callable[[ModelSpec, Layout], Sequence[Joined]]
Cell = tuple[int, int | None, object, object]
"""Class, stage, mesh and primitive: where a difference stands."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Words for the differences in some cells."""

    words: str
    cells: frozenset[Cell]
    pair: Pair | None = None
    """Only this pair of the cells; None for all of them."""

    def covers(self, unit: Unit, pair: Pair) -> bool:
        """Whether this explains that pair."""
        return _cell(unit, pair) in self.cells and (self.pair is None or self.pair is pair)


def explain_differences(
    joined: Sequence[Joined], model: ModelSpec, layout: Layout, try_out: TryOut
) -> list[Explanation]:
    """Words for every difference that something known removes.

    What the trace itself tells (a cut step) comes first. Then the alternative is taken that leaves least, and from
    there the next one, as long as differences go away.

    Args:
        joined: the pairs of all units.
        model: as given.
        layout: as given.
        try_out: joins the measured side with the prediction of another model and layout.
    """
    found = [
        Explanation(words, frozenset({_cell(one.unit, pair)}), pair)
        for one in joined
        for pair in one.pairs
        if pair.verdict is not Verdict.match and (words := cut_step(pair)) is not None
    ]
    open_cells = _open_cells(joined) - {cell for one in found for cell in one.cells}
    state, left = Alternative("", model, layout), _weigh(joined)
    for _ in range(MOST_CHANGES):
        if not open_cells:
            break
        options = list_alternatives(state.model, state.layout)
        best = _best(options, left, open_cells, try_out, must_close=True)
        if best is None:
            break
        state, left, still_open = best
        closed = open_cells - still_open
        if closed:
            found.append(Explanation(state.words, frozenset(closed)))
        open_cells &= still_open
    return found


def _best(
    alternatives: Iterable[Alternative], left: float, open_cells: set[Cell], try_out: TryOut, *, must_close: bool
) -> tuple[Alternative, float, set[Cell]] | None:
    """The alternative that leaves least of the differences, without bringing new ones."""
    best: tuple[Alternative, float, set[Cell]] | None = None
    for alternative in alternatives:
        try:
            joined = try_out(alternative.model, alternative.layout)
        except TraceLensError:
            continue  # the model or the framework can't have it
        weight, still_open = _weigh(joined), _open_cells(joined)
        opened = _weigh(joined, within=still_open - open_cells)
        believable = weight < left * (1 - _LEAST_GAIN) and opened <= _MOST_OPENED * (left - weight)
        closes = open_cells - still_open or not must_close
        if believable and closes and (best is None or weight < best[1] - 1):
            best = (alternative, weight, still_open)
    return best


def best_alternative(model: ModelSpec, layout: Layout, try_out: TryOut, *, fixed: frozenset[str]) -> Alternative | None:
    """The alternative that leaves least of the differences; None where there is none, or none helps.

    Args:
        model: to change.
        layout: to change.
        try_out: joins the measured side with the prediction of another model and layout.
        fixed: fields of the layout that must stay as they are.
    """
    joined = try_out(model, layout)
    left, open_cells = _weigh(joined), _open_cells(joined)
    if not open_cells:
        return None
    alternatives = (
        one
        for one in list_alternatives(model, layout)
        if all(getattr(one.layout, name) == getattr(layout, name) for name in fixed)
    )
    found = _best(alternatives, left, open_cells, try_out, must_close=False)
    return None if found is None else found[0]


def _cell(unit: Unit, pair: Pair) -> Cell:
    return (unit.rank_class, unit.stage, pair.lead.mesh, pair.lead.primitive)


def _open_cells(joined: Sequence[Joined]) -> set[Cell]:
    return {_cell(one.unit, pair) for one in joined for pair in one.pairs if pair.verdict is not Verdict.match}


def _weigh(joined: Sequence[Joined], within: set[Cell] | None = None) -> float:
    """Bytes on both sides of everything that doesn't match, plus a KiB for each call that is missing or too many."""
    return sum(
        one.unit.weight
        * (
            pair.predicted_bytes
            + (pair.measured_bytes or 0)
            + 1024 * max(1.0, abs(pair.predicted_calls - pair.measured_calls))
        )
        for one in joined
        for pair in one.pairs
        if pair.verdict is not Verdict.match and (within is None or _cell(one.unit, pair) in within)
    )


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
    return f"a step is cut: it holds {fewest:g} calls, whole steps hold the {most:g} predicted"
