"""Timestamps of events to whole nanoseconds, and which of them are no times."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.trace.decode import AnyEvent
from tracelens.trace.schema import Event

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LIMIT_US = float(1 << 52)
"""No time lies this far from 1970, no duration is this long (142 years); the ns of two such fit 63 bits."""

_TS, _DUR = attrgetter("ts"), attrgetter("dur")


class Times(NamedTuple):
    """Of a batch of events, in its order; start and end in ns."""

    start: IntArray
    end: IntArray
    known: BoolArray
    """False: the event has no usable timestamp."""
    lasting: BoolArray
    """False: the event has no usable duration, and ends as it starts."""

    def where_known(self) -> Times:
        """The times of the events that have one."""
        return Times(self.start[self.known], self.end[self.known], self.known[self.known], self.lasting[self.known])


def read_times(events: Sequence[AnyEvent]) -> Times:
    """Start and end of events, which are all of one type.

    The fraction of a float is split off first: exact up to 2^43 µs, where half its spacing reaches half a ns.
    """
    start, known = _starts(events)
    durations = _floats(list(map(_DUR, events)))
    lasting = np.abs(durations) < LIMIT_US
    if not lasting.all():
        durations[~lasting] = 0.0
    return Times(start, start + _to_ns(durations), known, lasting)


def _starts(events: Sequence[AnyEvent]) -> tuple[IntArray, BoolArray]:
    if events and not isinstance(events[0], Event):
        return _from_text([bytes(raw).decode(errors="replace") for raw in map(_TS, events)])
    us = _floats(list(map(_TS, events)))
    known = np.abs(us) < LIMIT_US
    if not known.all():
        us[~known] = 0.0
    return _to_ns(us), known


def _floats(values: list[Any]) -> FloatArray:
    """Numbers as an array; NaN where there is none."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except TypeError:
        return np.array([np.nan if value is None else value for value in values], np.float64)


def _to_ns(us: FloatArray) -> IntArray:
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _from_text(us: list[str]) -> tuple[IntArray, BoolArray]:
    """Microseconds as written, without a float in between; the fourth decimal rounds."""
    parts = pl.Series("us", us).str.extract_groups(r"^(-?)(\d{1,16})(?:\.(\d*))?$").struct.unnest()
    sign, whole, decimals = (parts[name] for name in parts.columns)
    decimals = decimals.fill_null("").str.pad_end(4, "0")
    whole_us, thousandths, tenth = (
        text.cast(pl.Int64).fill_null(0).to_numpy()
        for text in (whole, decimals.str.slice(0, 3), decimals.str.slice(3, 1))
    )
    known = whole.is_not_null().to_numpy() & (whole_us < LIMIT_US)
    whole_us = np.where(known, whole_us, 0)
    ns = whole_us * 1000 + thousandths + (tenth >= 5)
    ns = np.where((sign == "-").fill_null(value=False).to_numpy(), -ns, ns)
    for place in np.flatnonzero(~known):  # exponents, and what is no number; never many
        value = _as_float(us[place])
        known[place] = abs(value) < LIMIT_US
        ns[place] = _to_ns(np.array([value if known[place] else 0.0]))[0]
    return ns, known


def _as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
