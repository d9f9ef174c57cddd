"""Bytes, times and rates to text: the only place that knows what a GiB is."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))
_RATES = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
_ROUNDS_TO_THOUSAND = 999.5

UNKNOWN = "?"


def format_bytes(count: float | None) -> str:
    """Bytes in binary units with three significant digits: `470 MiB`; `?` when unknown."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in _BINARY:
        if abs(value) < _ROUNDS_TO_THOUSAND or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{_three_digits(value)} {unit}"


def at_least(text: str, *, partial: bool) -> str:
    """A number that is only known to be no less: `≥ 470 MiB`; what is unknown stays `?`."""
    return f"≥ {text}" if partial and text != UNKNOWN else text


def format_bytes_two_decimals(count: float) -> str:
    """Bytes in binary units with two decimals, changing unit at 1024: `110.25 GiB`, `0.00 B`.

    For tables whose numbers are held against published ones digit by digit.
    """
    value = float(count)
    for unit in _BINARY:
        if abs(value) < 1024 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{value:.2f} {unit}"


def format_time(ns: float | None) -> str:
    """Nanoseconds in the largest unit that gives a number of at least one: `1.25 ms`; `?` when unknown."""
    if ns is None:
        return UNKNOWN
    return _in_largest(_TIMES, ns) or f"{ns:.0f} ns"


def format_rate(bytes_per_s: float | None) -> str:
    """A rate in decimal units, those of nccl-tests and of link data sheets: `361 GB/s`; `?` when unknown."""
    if bytes_per_s is None:
        return UNKNOWN
    return _in_largest(_RATES, bytes_per_s) or f"{bytes_per_s:.0f} B/s"


def refuse_fraction(value: float) -> str | None:
    """Why a number is no fraction of a whole; None where it is one, from 0 to 1.

    >>> refuse_fraction(5)
    '5 is 500 %; for 5 % write 0.05'
    """
    if 0 <= value <= 1:
        return None
    if 1 < value <= 100:
        return f"{value:.15g} is {100 * value:.6g} %; for {value:.15g} % write {value / 100:.6g}"
    return f"{value:.15g} is no fraction; give one from 0 to 1"


def format_percent(fraction: float | None) -> str:
    """A fraction of one as percent: `15.6 %`; `?` when unknown."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its words: `1 file`, `1,234 files`, `1 event is broken`.

    Args:
        count: of what.
        one: the words for a single one.
        many: those for any other number; an `s` more unless given.
    """
    return f"{count:,} {noun(count, one, many)}"


def noun(count: float, one: str, many: str | None = None) -> str:
    """The words for that many, without the number; 1.00001, which is written as 1, is one."""
    return one if f"{count:.4g}" == "1" else many or f"{one}s"


def _in_largest(units: tuple[tuple[str, float], ...], value: float) -> str | None:
    """The value in the largest unit in which it is at least one once rounded; None when it is below all."""
    below = 1.0
    for unit, size in units:
        if abs(value) >= size * below:
            return f"{_three_digits(value / size)} {unit}"
        below = _ROUNDS_TO_THOUSAND / 1000
    return None


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
