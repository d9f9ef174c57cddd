"""Bytes, times and rates to text: the only place that knows what a GiB is."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))

UNKNOWN = "?"


def format_bytes(count: float | None) -> str:
    """Bytes in binary units with three significant digits: `470 MiB`; `?` when unknown."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in _BINARY:
        if abs(value) < 1000 or unit == _BINARY[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_time(ns: float | None) -> str:
    """Nanoseconds in the largest unit that gives a number of at least one: `1.25 ms`; `?` when unknown."""
    if ns is None:
        return UNKNOWN
    for unit, size in _TIMES:
        if abs(ns) >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def format_rate(bytes_per_s: float | None) -> str:
    """A rate in decimal GB/s, the unit of nccl-tests and of link data sheets; `?` when unknown."""
    return UNKNOWN if bytes_per_s is None else f"{_three_digits(bytes_per_s / 1e9)} GB/s"


def format_percent(fraction: float | None) -> str:
    """A fraction of one as percent: `15.6 %`; `?` when unknown."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.1f} %"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"
