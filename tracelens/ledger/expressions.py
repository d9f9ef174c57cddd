"""Formulas in named unknowns: built with operators, evaluated with numbers, written as text.

A formula is a tree of sums, products, quotients and three functions, so one object is at once the arithmetic
of a prediction, the text that explains it, and an equation that inference can solve for its unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = int | float
Bindings = Mapping[str, Value]


class Expr:
    """A formula. Operators build new formulas; nothing is computed before `evaluate`."""

    __slots__ = ()

    def evaluate(self, bindings: Bindings) -> Value:
        """The value with the unknowns bound: an int where the arithmetic stays whole.

        Raises:
            KeyError: when an unknown of the formula is not bound.
        """
        raise NotImplementedError

    def unknowns(self) -> frozenset[str]:
        """The names of the unknowns in the formula."""
        raise NotImplementedError

    def text(self, bindings: Bindings | None = None) -> str:
        """The formula as people write it; with bindings, the numbers put in the place of the names."""
        return self._text(bindings or {})[0]

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        """The text and how tightly its last operator binds (0 sum, 1 quotient, 2 product, 3 atom)."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text()

    def __add__(self, other: Expr | Value) -> Expr:
        return add(self, other)

    def __radd__(self, other: Value) -> Expr:
        return add(other, self)

    def __sub__(self, other: Expr | Value) -> Expr:
        return add(self, multiply(-1, other))

    def __rsub__(self, other: Value) -> Expr:
        return add(other, multiply(-1, self))

    def __mul__(self, other: Expr | Value) -> Expr:
        return multiply(self, other)

    def __rmul__(self, other: Value) -> Expr:
        return multiply(other, self)

    def __truediv__(self, other: Expr | Value) -> Expr:
        return divide(self, other)

    def __rtruediv__(self, other: Value) -> Expr:
        return divide(other, self)


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A number that stands in the formula itself."""

    value: Value

    def evaluate(self, bindings: Bindings) -> Value:
        """The number."""
        return self.value

    def unknowns(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value), 3


@dataclass(frozen=True, slots=True)
class Symbol(Expr):
    """An unknown with a name."""

    name: str
    meaning: str = field(default="", compare=False)

    def evaluate(self, bindings: Bindings) -> Value:
        """The value bound to the name."""
        return bindings[self.name]

    def unknowns(self) -> frozenset[str]:
        """The name itself."""
        return frozenset((self.name,))

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        value = bindings.get(self.name)
        return (self.name if value is None else Number(value)._text({})[0]), 3


@dataclass(frozen=True, slots=True)
class Sum(Expr):
    """Terms added up."""

    terms: tuple[Expr, ...]

    def evaluate(self, bindings: Bindings) -> Value:
        """The sum of the terms."""
        return sum(term.evaluate(bindings) for term in self.terms)

    def unknowns(self) -> frozenset[str]:
        """The unknowns of all terms."""
        return frozenset().union(*(term.unknowns() for term in self.terms))

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        first, *others = (term.text(bindings) for term in self.terms)
        signed = (f" - {text[1:]}" if text.startswith("-") else f" + {text}" for text in others)
        return first + "".join(signed), 0


@dataclass(frozen=True, slots=True)
class Product(Expr):
    """Factors multiplied."""

    factors: tuple[Expr, ...]

    def evaluate(self, bindings: Bindings) -> Value:
        """The product of the factors."""
        value: Value = 1
        for factor in self.factors:
            value *= factor.evaluate(bindings)
        return value

    def unknowns(self) -> frozenset[str]:
        """The unknowns of all factors."""
        return frozenset().union(*(factor.unknowns() for factor in self.factors))

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        factors = self.factors
        first = factors[0]
        if isinstance(first, Number) and first.value < 0:
            positive = multiply(-first.value, *factors[1:])
            return "-" + _enclosed(positive, bindings, 2), 2
        *leading, last = factors
        text, tightness = last._text(bindings)
        if tightness != 1:
            text, tightness = _enclosed(last, bindings, 2), 2
        return "·".join([*(_enclosed(factor, bindings, 2) for factor in leading), text]), tightness


@dataclass(frozen=True, slots=True)
class Quotient(Expr):
    """One formula divided by another; whole when both are whole and it divides without rest."""

    dividend: Expr
    divisor: Expr

    def evaluate(self, bindings: Bindings) -> Value:
        """The quotient."""
        above, below = self.dividend.evaluate(bindings), self.divisor.evaluate(bindings)
        if isinstance(above, int) and isinstance(below, int) and above % below == 0:
            return above // below
        return above / below

    def unknowns(self) -> frozenset[str]:
        """The unknowns above and below."""
        return self.dividend.unknowns() | self.divisor.unknowns()

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        return f"{_enclosed(self.dividend, bindings, 1)}/{_enclosed(self.divisor, bindings, 3)}", 1


@dataclass(frozen=True, slots=True)
class Function(Expr):
    """A named function of formulas: `max`, `ceil`, `floor` or `ceil_to`."""

    name: str
    arguments: tuple[Expr, ...]

    def evaluate(self, bindings: Bindings) -> Value:
        """The value of the function at its arguments."""
        values = [argument.evaluate(bindings) for argument in self.arguments]
        if self.name == "max":
            return max(values)
        if self.name == "ceil":
            return math.ceil(values[0])
        if self.name == "floor":
            return math.floor(values[0])
        return math.ceil(values[0] / values[1]) * values[1]

    def unknowns(self) -> frozenset[str]:
        """The unknowns of all arguments."""
        return frozenset().union(*(argument.unknowns() for argument in self.arguments))

    def _text(self, bindings: Bindings) -> tuple[str, int]:
        return f"{self.name}({', '.join(argument.text(bindings) for argument in self.arguments)})", 3


def _enclosed(expr: Expr, bindings: Bindings, needed: int) -> str:
    text, tightness = expr._text(bindings)
    return text if tightness >= needed and not text.startswith("-") else f"({text})"


def to_expr(value: Expr | Value) -> Expr:
    """A number as a formula; a formula as it is."""
    return value if isinstance(value, Expr) else Number(value)


def add(*operands: Expr | Value) -> Expr:
    """The sum, flattened, equal terms counted and numbers added."""
    counts: dict[Expr, Value] = {}
    constant: Value = 0
    for term in _flattened_terms(operands):
        if isinstance(term, Number):
            constant += term.value
            continue
        count, rest = _split_coefficient(term)
        counts[rest] = counts.get(rest, 0) + count
    terms = [rest if count == 1 else multiply(count, rest) for rest, count in counts.items() if count]
    if constant or not terms:
        terms.append(Number(constant))
    return terms[0] if len(terms) == 1 else Sum(tuple(terms))


def multiply(*operands: Expr | Value) -> Expr:
    """The product, flattened, with its numbers gathered in front."""
    coefficient: Value = 1
    factors: list[Expr] = []
    for operand in operands:
        expr = to_expr(operand)
        for factor in expr.factors if isinstance(expr, Product) else (expr,):
            if isinstance(factor, Number):
                coefficient *= factor.value
            else:
                factors.append(factor)
    if coefficient == 0 or not factors:
        return Number(coefficient)
    if coefficient != 1:
        factors.insert(0, Number(coefficient))
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def divide(dividend: Expr | Value, divisor: Expr | Value) -> Expr:
    """The quotient; division by one is left out."""
    above, below = to_expr(dividend), to_expr(divisor)
    if below == Number(1) or above == Number(0):
        return above
    return Quotient(above, below)


def maximum(*operands: Expr | Value) -> Expr:
    """The largest of the operands."""
    return Function("max", tuple(map(to_expr, operands)))


def ceiling(operand: Expr | Value) -> Expr:
    """The next whole number at or above."""
    return Function("ceil", (to_expr(operand),))


def floor(operand: Expr | Value) -> Expr:
    """The next whole number at or below."""
    return Function("floor", (to_expr(operand),))


def ceil_to(operand: Expr | Value, multiple: Expr | Value) -> Expr:
    """The next multiple of `multiple` at or above."""
    return Function("ceil_to", (to_expr(operand), to_expr(multiple)))


def _flattened_terms(operands: Iterable[Expr | Value]) -> Iterable[Expr]:
    for operand in operands:
        expr = to_expr(operand)
        if isinstance(expr, Sum):
            yield from expr.terms
        else:
            yield expr


def _split_coefficient(term: Expr) -> tuple[Value, Expr]:
    if isinstance(term, Product) and isinstance(term.factors[0], Number):
        return term.factors[0].value, multiply(*term.factors[1:])
    return 1, term
