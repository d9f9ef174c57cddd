"""Which span lies around a moment: the innermost of those on a thread that nest in one another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

IntArray = npt.NDArray[np.int64]


def find_innermost(points: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """The innermost span (the last to begin) around each point on its thread.

    Cost and memory follow points and spans, not pairs of them: a trace has thousands of calls inside thousands of
    annotations.

    Args:
        points: `thread`, `at_ns`.
        spans: `thread`, `start_ns`, `end_ns` (exclusive); they need not nest.

    Returns:
        Per point the row of the span in `spans`; null where there is none.
    """
    ordered = spans.with_row_index("row").sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    begun = (
        points.with_row_index("point")
        .sort("at_ns")
        .join_asof(
            ordered.select("thread", "start_ns", place=pl.int_range(pl.len(), dtype=pl.Int64)).sort(
                "start_ns", "place"
            ),
            left_on="at_ns",
            right_on="start_ns",
            by="thread",
            check_sortedness=False,
        )
        .sort("point")
    )
    ends = np.append(ordered["end_ns"].to_numpy(), np.iinfo(np.int64).max)  # place -1, no span, never ends
    outer = _enclosing(ordered["thread"].to_numpy(), ends)
    place = begun["place"].fill_null(-1).to_numpy().copy()
    over = np.flatnonzero(ends[place] <= points["at_ns"].to_numpy())
    while over.size:
        place[over] = outer[place[over]]
        over = over[ends[place[over]] <= points["at_ns"].to_numpy()[over]]
    rows = pl.Series("row", place, dtype=pl.Int64)
    return ordered["row"].gather(rows.set(rows < 0, None))


def _enclosing(threads: npt.NDArray[np.int32], ends: IntArray) -> IntArray:
    """For each span, sorted by thread and start, the last one before it on its thread that ends later; -1: none.

    What lies between a span and the one found so far ends no later than it, so the search may jump along what
    others have found: the distance doubles with each round.
    """
    outer = np.arange(-1, len(threads) - 1)
    outer[1:][threads[1:] != threads[:-1]] = -1
    over = np.flatnonzero(ends[outer] <= ends[:-1])
    while over.size:
        outer[over] = outer[outer[over]]
        over = over[ends[outer[over]] <= ends[over]]
    return outer
