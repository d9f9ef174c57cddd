"""Tokens to experts and back: how evenly they are spread, and what of the waiting that explains.

A dispatch sends each rank's tokens to the experts of others, the combine sends the results back: the second is the
mirror image of the first, rank by rank. That tells experts from any other all-to-all, without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.collectives import Primitive
from tracelens.many_ranks import ExpertCall, Routing
from tracelens.measurement.alignment import Alignment
from tracelens.summary import RankSummary

Loads = npt.NDArray[np.int64]

# In more than this share of the dispatches one rank receives most: then it has a name.
_OFTEN = 0.5


class _Exchange(NamedTuple):
    """One all-to-all over all ranks that were read; arrays by rank, ascending."""

    lane: int
    key: int
    group: str | None
    step: int | None
    phase: str | None
    size: int | None
    ranks: tuple[int, ...]
    sent: Loads
    received: Loads
    unit: str
    compute_at_start: Loads
    compute_at_end: Loads


class _Pair(NamedTuple):
    dispatch: _Exchange
    combine: _Exchange


def measure_routing(ranks: Sequence[RankSummary], alignment: Alignment, timed: pl.DataFrame) -> Routing | None:
    """Loads of the experts' ranks; None where no all-to-all is answered by its mirror image.

    Args:
        ranks: the summaries.
        alignment: their calls.
        timed: as `skew.time_calls` gives them.
    """
    exchanges = _find_exchanges(ranks, alignment)
    pairs, unpaired = _pair_exchanges(exchanges)
    if not pairs:
        return None
    waiting, explained = _explain_waits(pairs, timed)
    return _routing_of(_describe(pairs), unpaired, waiting, explained)


def _routing_of(calls: Sequence[ExpertCall], unpaired: int, waiting: int | None, explained: float | None) -> Routing:
    known = [call.imbalance for call in calls if call.imbalance is not None]
    busiest, times = Counter(call.busiest for call in calls).most_common(1)[0]
    return Routing(
        dispatches=len(calls),
        combines=len(calls),
        unpaired=unpaired,
        imbalance_median=median(known) if known else None,
        imbalance_max=max(known, default=None),
        busiest=busiest if times > _OFTEN * len(calls) and max(known, default=1.0) > 1.0 else None,
        combine_wait_ns=waiting,
        explained_wait_fraction=explained,
        calls=tuple(calls),
    )


def keep_groups(routing: Routing | None, wanted: Callable[[str | None], bool]) -> Routing | None:
    """The routing of some groups only, for whoever knows what groups are for; None where nothing is left.

    Waiting is known of all groups together, so it is not known of a part of them.

    Args:
        routing: of all groups whose all-to-alls come in pairs.
        wanted: whether a group, by its id, may be one of experts.
    """
    if routing is None:
        return None
    calls = [call for call in routing.calls if wanted(call.group)]
    if len(calls) == len(routing.calls):
        return routing
    return _routing_of(calls, routing.unpaired, None, None) if calls else None


def _find_exchanges(ranks: Sequence[RankSummary], alignment: Alignment) -> list[_Exchange]:
    """All-to-alls that are uneven or tell their splits, with the rows (else elements) of each rank."""
    paired = alignment.calls.filter(
        (pl.col("primitive") == Primitive.all_to_all.value) & pl.col("key").is_not_null() & pl.col("agrees")
    )
    if paired.is_empty():
        return []
    loads = [_loads(ranks[n], n) for n in paired["rank_index"].unique().sort()]
    rows = paired.join(pl.concat(loads), on=["rank_index", "call"]).join(alignment.groups, on="pg")
    by_rows = (pl.col("rows_in").is_not_null() & pl.col("rows_out").is_not_null()).all()
    gathered = (
        rows.sort("lane", "key", "rank")
        .group_by("lane", "key", maintain_order=True)
        .agg(
            pl.col("group", "step", "phase").first(),
            size=pl.col("group_size").first(),
            ranks="rank",
            by_rows=by_rows,
            # rows of one element are elements: a token is wider
            wide=(pl.col("in_elements").sum() > pl.col("rows_in").sum()),
            sent=pl.when(by_rows).then("rows_in").otherwise("in_elements"),
            received=pl.when(by_rows).then("rows_out").otherwise("out_elements"),
            compute_at_start=pl.col("compute_at_start_ns").fill_null(0),
            compute_at_end=pl.col("compute_at_end_ns").fill_null(0),
            uneven=(pl.col("in_elements") != pl.col("out_elements")).any() | pl.col("rows_in").is_not_null().any(),
        )
        .filter(pl.col("uneven").fill_null(value=False))
    )
    return [_exchange(row) for row in gathered.iter_rows(named=True) if None not in (*row["sent"], *row["received"])]


def _loads(summary: RankSummary, rank_index: int) -> pl.DataFrame:
    return summary.calls.filter(pl.col("primitive") == Primitive.all_to_all.value).select(
        pl.lit(rank_index, pl.Int32).alias("rank_index"),
        "call",
        "phase",
        "in_elements",
        "out_elements",
        rows_in=pl.col("in_split_list").list.sum(),
        rows_out=pl.col("out_split_list").list.sum(),
    )


def _exchange(row: dict[str, Any]) -> _Exchange:
    return _Exchange(
        lane=row["lane"],
        key=row["key"],
        group=row["group"],
        step=row["step"],
        phase=row["phase"],
        size=row["size"],
        ranks=tuple(row["ranks"]),
        sent=np.array(row["sent"], np.int64),
        received=np.array(row["received"], np.int64),
        unit="tokens" if row["by_rows"] and row["wide"] else "elements",
        compute_at_start=np.array(row["compute_at_start"], np.int64),
        compute_at_end=np.array(row["compute_at_end"], np.int64),
    )


def _pair_exchanges(exchanges: Sequence[_Exchange]) -> tuple[list[_Pair], int]:
    """Each exchange with the next of its lane if that is its mirror image; how many stay alone.

    One more exchange like the last (weights beside tokens) is part of the same dispatch or combine.
    """
    pairs: list[_Pair] = []
    waiting: _Exchange | None = None
    alone = 0
    for exchange in exchanges:
        if waiting is not None and _is_mirror(waiting, exchange):
            pairs.append(_Pair(waiting, exchange))
            waiting = None
            continue
        if waiting is None and pairs and _is_like(pairs[-1].combine, exchange):
            continue
        if waiting is not None and not _is_like(waiting, exchange):
            alone += 1
        waiting = exchange
    return pairs, alone + (waiting is not None)


def _is_mirror(one: _Exchange, other: _Exchange) -> bool:
    same = one.lane == other.lane and one.ranks == other.ranks and one.step == other.step
    return same and bool((one.sent == other.received).all() and (one.received == other.sent).all())


def _is_like(one: _Exchange, other: _Exchange) -> bool:
    same = one.lane == other.lane and one.ranks == other.ranks and one.step == other.step
    differ = bool((one.sent != one.received).any())
    return same and differ and bool((one.sent == other.sent).all() and (one.received == other.received).all())


def _describe(pairs: Sequence[_Pair]) -> tuple[ExpertCall, ...]:
    layers: Counter[tuple[int, int | None, str | None]] = Counter()
    calls = []
    for exchange, _ in pairs:
        place = (exchange.lane, exchange.step, exchange.phase)
        received = exchange.received
        whole = exchange.size == len(exchange.ranks) and received.sum() > 0
        calls.append(
            ExpertCall(
                group=exchange.group,
                step=exchange.step,
                phase=exchange.phase,
                layer=layers[place],
                ranks=exchange.ranks,
                sent=tuple(exchange.sent.tolist()),
                received=tuple(received.tolist()),
                unit=exchange.unit,
                imbalance=float(received.max() / received.mean()) if whole else None,
                busiest=exchange.ranks[int(received.argmax())],
            )
        )
        layers[place] += 1
    return tuple(calls)


def _explain_waits(pairs: Sequence[_Pair], timed: pl.DataFrame) -> tuple[int | None, float | None]:
    """Waiting in the combines, and the share of it that unequal loads explain.

    What a token costs is read off the compute between dispatch and combine, not off the waiting: the slope of compute
    over tokens, ranks against the mean of their call. A rank is explained to wait for the tokens that the busiest one
    has more than it.
    """
    waits = {
        (lane, key): dict(zip(ranks, wait, strict=True))
        for lane, key, ranks, wait in timed.filter(pl.col("what") == Primitive.all_to_all.value)
        .filter(~pl.col("is_late_profiler"))
        .group_by("lane", "key")
        .agg("rank", "wait_ns")
        .iter_rows()
    }
    known = [
        pair for pair in pairs if set(waits.get((pair.combine.lane, pair.combine.key), ())) == set(pair.combine.ranks)
    ]
    if not known:
        return None, None
    loads = np.concatenate([pair.dispatch.received - pair.dispatch.received.mean() for pair in known])
    between = [pair.combine.compute_at_start - pair.dispatch.compute_at_end for pair in known]
    work = np.concatenate([compute - compute.mean() for compute in between])
    spread = float((loads**2).sum())
    slope = float((loads * work).sum()) / spread if spread else 0.0
    waited = np.concatenate([[waits[p.combine[:2]][r] for r in p.combine.ranks] for p in known])
    missing = np.concatenate([p.dispatch.received.max() - p.dispatch.received for p in known])
    total = int(waited.sum())
    if not total or slope <= 0:
        return total, 0.0 if total and spread and slope <= 0 else None
    return total, float(np.minimum(waited, slope * missing).sum() / total)
