"""Traces that tell the sizes of some calls only: what is known of a part is not taken for the whole."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from benchmarks.inference_megatron import Megatron
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.summary import RankSummary

EVERYONE = {"default": tuple(range(8))}
SIZES = ("in_elements", "out_elements", "payload_bytes", "wire_bytes")


def without_sizes(summary: RankSummary, primitive: str, *, every: int) -> RankSummary:
    """The same with every n-th call of a primitive unsized."""
    number = pl.col("primitive").eq(primitive).cum_sum()
    hidden = pl.col("primitive").eq(primitive) & (number % every == 0)
    calls = summary.calls.with_columns(pl.when(~hidden).then(pl.col(c)).alias(c) for c in SIZES)
    return dataclasses.replace(summary, calls=calls)


def data_parallel() -> RankSummary:
    tape = Tape(0, 8, EVERYONE)
    tape.compute(1_000_000)
    for bucket in (5_000_000, 6_000_000, 7_000_000, 8_000_000):
        tape.compute(1_000_000, backward=True)
        tape.call("all_reduce", "default", bucket, dtype="fp32", phase="backward")
    return tape.summary()


def test_parameters_are_those_of_all_gradients_or_unknown() -> None:
    assert infer([data_parallel()]).config.params_per_rank == 26_000_000
    found = infer([without_sizes(data_parallel(), "all_reduce", every=2)])
    assert found.config.params_per_rank is None
    (evidence,) = [one for one in found.evidence if one.field == "params_per_rank"]
    assert evidence.against == ("2 calls have no size: at least 12,000,000 elements",)
    (dtype,) = [one for one in found.evidence if one.field == "grad_dtype"]
    assert "12,000,000 of 12,000,000 known elements" in dtype.supports[0]


def test_without_any_size_nothing_is_said_of_sizes() -> None:
    found = infer([without_sizes(data_parallel(), "all_reduce", every=1)])
    assert (found.config.params_per_rank, found.config.grad_dtype) == (None, None)


@pytest.mark.parametrize("primitive", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_sizes_that_are_missing_turn_no_optimizer_into_sharded_parameters(primitive: str, every: int) -> None:
    job = Megatron(tp=2, dp=4)
    whole = [job.step(rank).summary() for rank in (0, 5)]
    expected = infer(whole).config.sharding
    found = infer([without_sizes(one, primitive, every=every) for one in whole])
    assert found.config.sharding in (None, expected)
    if found.config.sharding is None and "sharding" in found.undetermined:
        assert expected in found.undetermined["sharding"]
