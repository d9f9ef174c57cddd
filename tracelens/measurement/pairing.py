"""Calls of one lane across ranks: numbered by `Seq` where all ranks have it, else by their place.

Recordings begin at different steps and lose heads, so the place of a call says nothing by itself: the sequences are
shifted until primitive, dtype, size and step agree, and among equally good shifts the one is taken whose calls end
most evenly apart on the GPUs. Lanes that no shift explains are paired step by step from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.collectives import Primitive

Array = npt.NDArray[np.int64]


class Pairing(StrEnum):
    """How calls were paired: by sequence number, by place in the recording, shifted places, or place in the step."""

    seq = "seq"
    ordinal = "ordinal"
    shifted = "shifted"
    step = "step"


_PAIRING = pl.Enum([pairing.value for pairing in Pairing])


def _said(pairing: Pairing) -> pl.Expr:
    return pl.lit(pairing.value, _PAIRING)


# Calls that share a Seq (a coalesced range) are told apart by their order; no range holds as many.
_SEQ_STRIDE = 1 << 20
_NO_STEP = -1
_AGREEMENT = 0.9
_OVERLAP = 0.3


def pair_lanes(calls: pl.DataFrame) -> pl.DataFrame:
    """Number the calls of each lane.

    Args:
        calls: `lane`, `rank`, `primitive`, `kind`, `seq`, `step`, `end_ns`, in the order of issue within each lane
            and rank.

    Returns:
        The calls with `key`, `pairing`, `participants` and `agrees`.
    """
    calls = _number(calls)
    by_seq = calls.filter("has_seq").with_columns(
        key=pl.col("seq") * _SEQ_STRIDE + pl.int_range(pl.len()).over("lane", "rank", "seq"),
        pairing=_said(Pairing.seq),
    )
    rest = calls.filter(~pl.col("has_seq"))
    even = _agree_in_place(rest)
    by_place = rest.join(even, on="lane", how="semi").with_columns(key=pl.col("place"), pairing=_said(Pairing.ordinal))
    shifted = _shift_lanes(rest.join(even, on="lane", how="anti"))
    paired = pl.concat([by_seq, by_place, shifted]).sort("lane", "rank", "place")
    one = pl.col("key").is_not_null()
    return paired.with_columns(
        participants=pl.when(one).then(pl.col("rank").n_unique().over("lane", "key")).otherwise(1),
        agrees=pl.col("kind").n_unique().over("lane", "key") == 1,
    ).drop("place", "kind", "has_seq", "seq")


def kind_of(p2p: pl.Expr) -> pl.Expr:
    """`kind`: what must be equal on all ranks, as one number. What an all-to-all carries differs from rank to rank.

    Args:
        p2p: whether a call is a message, whose two ends have different primitives.
    """
    uneven = pl.col("primitive") == Primitive.all_to_all.value
    primitive = pl.when(p2p).then(pl.lit("p2p")).otherwise("primitive")
    return pl.struct(primitive, "dtype", pl.when(~uneven).then("payload_bytes").alias("size")).hash().alias("kind")


def _number(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the place of each call, and whether Seq can be used.

    Messages of one pair of ranks have counters of their own on either side, so their Seq does not pair them.
    """
    p2p = pl.col("primitive").is_in([Primitive.send.value, Primitive.recv.value])
    return calls.with_columns(
        place=pl.int_range(pl.len(), dtype=pl.Int64).over("lane", "rank"),
        has_seq=(pl.col("seq").is_not_null() & ~p2p).all().over("lane"),
    )


def _agree_in_place(calls: pl.DataFrame) -> pl.DataFrame:
    """The lanes whose ranks recorded the same calls in the same steps, place by place."""
    places = calls.group_by("lane", "place").agg(
        ranks=pl.col("rank").n_unique(), kinds=pl.col("kind").n_unique(), steps=pl.col("step").n_unique()
    )
    least, most = pl.col("ranks").min(), pl.col("ranks").max()
    same = (least == most) & (pl.col("kinds").max() == 1) & (pl.col("steps").max() == 1)
    return places.group_by("lane").agg(same=same).filter("same").select("lane")


class _Track(NamedTuple):
    """One rank's calls of a lane."""

    kinds: npt.NDArray[np.uint64]
    steps: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.kinds)


class _Fit(NamedTuple):
    """How well a shift explains a rank; compared field by field, the greater the better."""

    agreement: float
    evenness: float
    overlap: int
    shift: int


def _shift_lanes(calls: pl.DataFrame) -> pl.DataFrame:
    if calls.is_empty():
        return calls.with_columns(key=pl.lit(None, pl.Int64), pairing=pl.lit(None, _PAIRING))
    return pl.concat([_shift_lane(lane) for lane in calls.partition_by("lane", maintain_order=True)])


def _shift_lane(lane: pl.DataFrame) -> pl.DataFrame:
    """Number one lane by places shifted to those of the rank with the most calls."""
    tracks = {int(part["rank"][0]): _track(part) for part in lane.partition_by("rank", maintain_order=True)}
    reference = max(tracks, key=lambda rank: (len(tracks[rank]), -rank))
    fits = {rank: _best_fit(tracks[reference], track) for rank, track in tracks.items()}
    if min(fit.agreement for fit in fits.values()) < _AGREEMENT and lane["step"].null_count() == 0:
        return _pair_by_step(lane)
    shifts = {rank: fit.shift if fit.agreement >= _AGREEMENT else None for rank, fit in fits.items()}
    shift = pl.col("rank").replace_strict(shifts, return_dtype=pl.Int64)
    return lane.with_columns(key=pl.col("place") + shift, pairing=_said(Pairing.shifted))


def _track(part: pl.DataFrame) -> _Track:
    steps = part["step"].fill_null(_NO_STEP).to_numpy()
    return _Track(part["kind"].to_numpy(), steps, part["end_ns"].fill_null(0).to_numpy())


def _best_fit(reference: _Track, other: _Track) -> _Fit:
    fits = [_fit(reference, other, shift) for shift in _candidates(reference, other)]
    long_enough = [fit for fit in fits if fit.overlap >= _OVERLAP * len(other)]
    return max(long_enough or fits)


def _candidates(reference: _Track, other: _Track) -> Sequence[int]:
    """Shifts worth a look: equal beginnings, equal ends, and equal beginnings and ends of each step of both."""
    shifts = {0, len(reference) - len(other)}
    for step in np.intersect1d(reference.steps, other.steps):
        if step != _NO_STEP:
            there, here = np.flatnonzero(reference.steps == step), np.flatnonzero(other.steps == step)
            shifts |= {int(there[0] - here[0]), int(there[-1] - here[-1])}
    if len(shifts) < 3:  # no steps to go by: any shift by a few calls may be the true one
        shifts |= set(range(-min(8, len(other) - 1), min(8, len(reference) - 1) + 1))
    return sorted(shifts)


def _fit(reference: _Track, other: _Track, shift: int) -> _Fit:
    low, high = max(0, -shift), min(len(other), len(reference) - shift)
    if high <= low:
        return _Fit(0.0, 0.0, 0, shift)
    here, there = slice(low, high), slice(low + shift, high + shift)
    untold = (other.steps[here] == _NO_STEP) | (reference.steps[there] == _NO_STEP)
    same = (reference.kinds[there] == other.kinds[here]) & (untold | (reference.steps[there] == other.steps[here]))
    return _Fit(
        agreement=round(float(np.mean(same)), 2),
        evenness=-_unevenness(reference.ends[there], other.ends[here]),
        overlap=high - low,
        shift=shift,
    )


def _unevenness(there: Array, here: Array) -> float:
    """How far the differences of two clocks lie from their median, ns to a power of two: noise decides nothing."""
    known = (there != 0) & (here != 0)
    if known.sum() < 2:
        return 0.0
    apart = here[known] - there[known]
    return float(np.ceil(np.log2(1 + np.median(np.abs(apart - np.median(apart))) / 4096)))


def _pair_by_step(lane: pl.DataFrame) -> pl.DataFrame:
    """Number the calls by step and place in it: from the front where all ranks have equally many, else from the end."""
    place = pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "step")
    count = pl.len().over("rank", "step")
    lane = lane.with_columns(front=place, back=place - count, count=count)
    even = pl.col("count").n_unique().over("step") == 1
    within = pl.when(even).then("front").otherwise("back")
    key = pl.col("step") * _SEQ_STRIDE + within
    return lane.with_columns(key=key, pairing=_said(Pairing.step)).drop("front", "back", "count")
