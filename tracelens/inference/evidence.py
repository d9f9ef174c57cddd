"""What speaks for and against each field, weighed into a value, its confidence, or an honest doubt."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracelens.inferred import FieldEvidence

DECIDED = 0.6
"""Below this a field is left open: what is said must be much more likely than not."""
SETTLES_A_DOUBT = 0.97
"""Something known to be open is decided only by evidence as good as this."""


@dataclass(slots=True)
class _Argument:
    value: Hashable
    confidence: float
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is believed of one field."""

    value: Any
    confidence: float | None
    left: tuple[Any, ...] = ()
    """The values left where the evidence can't settle it."""


@dataclass(slots=True)
class Case:
    """Everything that is argued about the configuration.

    Arguments for the same value strengthen each other as independent witnesses do; those for another value weaken it.
    """

    _arguments: dict[str, list[_Argument]] = field(default_factory=dict)
    _doubts: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    _against: dict[str, list[str]] = field(default_factory=dict)
    _contradicted: set[str] = field(default_factory=set)
    would_decide: dict[str, None] = field(default_factory=dict)
    checked: int = 0
    solved: set[str] = field(default_factory=set)

    def decide(self, name: str, value: Hashable, confidence: float, why: str) -> None:
        """Argue that a field has a value."""
        self._arguments.setdefault(name, []).append(_Argument(value, confidence, why))

    def leave(self, name: str, values: Iterable[Any], why: str, *, would_decide: str | None = None) -> None:
        """Say that a field is one of several values and that nothing seen decides between them."""
        self._doubts[name] = (tuple(values), why)
        if would_decide is not None:
            self.would_decide.setdefault(would_decide)

    def contradict(self, name: str, values: Iterable[Any], why: str) -> None:
        """Say that ranks tell different values of a field: it stays open, whatever is argued."""
        self.leave(name, values, why)
        self._contradicted.add(name)

    def object_to(self, name: str, why: str) -> None:
        """Note what speaks against the value of a field."""
        self._against.setdefault(name, []).append(why)

    def check(self, *, holds: bool, count: int = 1) -> bool:
        """Count constraints that hold beyond those that were needed to solve the unknowns."""
        self.checked += count if holds else 0
        return holds

    def solve(self, *unknowns: str) -> None:
        """Count free parameters: numbers read off the trace so that the rules fit."""
        self.solved.update(unknowns)

    def is_decided(self, name: str) -> bool:
        """Whether a field would be given a value now."""
        return self.verdict(name).confidence is not None

    def value(self, name: str) -> Any:
        """The value of a field as it stands; None when open."""
        return self.verdict(name).value

    def verdict(self, name: str) -> Verdict:
        """Weigh what was argued about a field."""
        beliefs = _beliefs(self._arguments.get(name, ()))
        doubt = self._doubts.get(name)
        if name in self._contradicted:
            return Verdict(None, None, () if doubt is None else doubt[0])
        if not beliefs:
            return Verdict(None, None, () if doubt is None else doubt[0])
        (value, best), *others = sorted(beliefs.items(), key=lambda item: -item[1])
        net = best * (1 - max((other for _, other in others), default=0.0))
        if doubt is not None and (value not in doubt[0] or best < SETTLES_A_DOUBT):
            return Verdict(None, None, tuple(dict.fromkeys((*doubt[0], *beliefs))))
        if net < DECIDED:
            left = tuple(beliefs) if others else ()
            return Verdict(None, None, left)
        return Verdict(value, round(min(net, 0.999), 3))

    def evidence(self, names: Iterable[str]) -> tuple[FieldEvidence, ...]:
        """The arguments of each field in words, the strongest first."""
        told = []
        for name in names:
            arguments = sorted(self._arguments.get(name, ()), key=lambda argument: -argument.confidence)
            verdict = self.verdict(name)
            supports = [a.why for a in arguments if a.value == verdict.value or verdict.value is None]
            contradicts = [a.why for a in arguments if a.value != verdict.value and verdict.value is not None]
            if name in self._doubts:
                contradicts.append(self._doubts[name][1])
            contradicts += self._against.get(name, [])
            if supports or contradicts:
                told.append(
                    FieldEvidence(
                        field=name,
                        supports=tuple(dict.fromkeys(supports)),
                        against=tuple(dict.fromkeys(contradicts)),
                    )
                )
        return tuple(told)


def _beliefs(arguments: Iterable[_Argument]) -> Mapping[Hashable, float]:
    doubts: dict[Hashable, float] = {}
    for argument in arguments:
        doubts[argument.value] = doubts.get(argument.value, 1.0) * (1 - argument.confidence)
    return {value: 1 - doubt for value, doubt in doubts.items()}
