"""What kind of job it is, told from calls written down from real jobs of each kind."""

from __future__ import annotations

import dataclasses

import msgspec
import polars as pl
import pytest

from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.summary import KERNELS, RankSummary

WORLD = 8
EVERYONE = {"default": tuple(range(WORLD))}


def ranking_model(*, indices: int, pooled: int) -> RankSummary:
    """Sharded embedding tables beside data parallelism (torchrec): all indices are int32, lengths too."""
    tape = Tape(3, WORLD, EVERYONE)
    for name in ("lengths", "indices"):
        tape.call("all_to_all", "default", 1024 if name == "lengths" else indices, dtype="int32", splits=None)
    tape.call("all_to_all", "default", indices, dtype="fp32")  # the weights of the indices
    tape.call("all_to_all", "default", pooled, dtype="fp32")
    tape.compute(1_000_000)
    tape.compute(1_000_000, backward=True)
    tape.call("all_to_all", "default", pooled, dtype="fp32", phase="backward")
    for bucket in (4_000_000, 3_000_000, 1_000_000):
        tape.call("all_reduce", "default", bucket, dtype="fp32", phase="backward")
    return tape.summary()


def mixture_of_experts(*, tokens: int, hidden: int) -> RankSummary:
    """Data parallelism with experts whose tokens carry their int64 expert numbers and weights beside them."""
    tape = Tape(0, WORLD, EVERYONE)
    splits = [tokens // WORLD + (1 if peer % 2 else -1) for peer in range(WORLD)]
    for phase in ("forward", "backward"):
        for _ in range(4):
            if phase == "forward":
                tape.call("all_to_all", "default", 64, dtype="int64", phase=phase)
                tape.call("all_to_all", "default", tokens, dtype="int64", phase=phase, splits=splits)
            rows = [count * hidden for count in splits]
            tape.call("all_to_all", "default", tokens * hidden, phase=phase, splits=rows)
            tape.compute(1_000_000, backward=phase == "backward")
            tape.call("all_to_all", "default", tokens * hidden, phase=phase, splits=rows)
    tape.call("all_reduce", "default", 5_000_000, dtype="fp32", phase="backward")
    return tape.summary()


@pytest.mark.parametrize("blind", [False, True])
def test_indices_nearly_as_many_as_floats_are_those_of_embedding_tables(blind: bool) -> None:
    # a trace of a ranking model on 8 A100 has 61.6 MiB of int32 beside 553 MiB of fp32 in a step
    found = infer([ranking_model(indices=8_000_000, pooled=60_000_000)], blind=blind)
    assert found.workload == "recommendation"
    assert found.config.ep in (None, 1)
    assert (found.config.tp, found.config.pp, found.config.dp) == (1, 1, 8)


@pytest.mark.parametrize("hidden", [64, 4096])
@pytest.mark.parametrize("tokens", [512, 16384])
def test_tokens_with_the_numbers_of_their_experts_are_no_embedding_tables(tokens: int, hidden: int) -> None:
    found = infer([mixture_of_experts(tokens=tokens, hidden=hidden)])
    assert found.workload == "training"
    assert found.config.ep == WORLD


def test_one_call_beside_many_kernels_without_calls_is_no_benchmark() -> None:
    # a trace of vLLM on 8 B200 has 73 all-reduces through symmetric memory and one all-gather of logits
    tape = Tape(0, WORLD, EVERYONE)
    tape.call("all_gather", "default", 201_216, phase=None)
    summary = tape.summary()
    kernels = pl.DataFrame({"name": ["multimem_all_reduce_kernel"] * 73}, schema_overrides=KERNELS)
    kernels = pl.concat([summary.kernels, kernels], how="diagonal")
    assert infer([dataclasses.replace(summary, kernels=kernels)]).workload == "inference"
    assert infer([summary]).workload == "benchmark"


@pytest.mark.parametrize("world", [None, 8])
def test_without_a_call_nothing_is_said_of_any_axis(world: int | None) -> None:
    summary = Tape(0, WORLD, EVERYONE).summary()
    head = msgspec.structs.replace(summary.head, world_size=world)
    found = infer([dataclasses.replace(summary, head=head)])
    assert (found.status, found.workload) == ("undetermined", "unknown")
    assert [getattr(found.config, axis) for axis in ("tp", "pp", "dp", "cp", "ep")] == [None] * 5


def test_a_job_of_one_rank_shards_nothing_and_shows_no_framework() -> None:
    # a trace of torchrec on one MTIA: 96 gathers and an all-reduce whose group the trace does not tell
    tape = Tape(0, 1, {"default": (0, 1)})
    tape.call("all_reduce", "default", 4_000_000, dtype="fp32", phase="backward")
    for _ in range(8):
        tape.call("all_gather", "default", 500_000, dtype="fp32", phase="optimizer")
    found = infer([tape.summary()])
    assert (found.config.dp, found.config.sharding, found.config.framework) == (1, None, None)
    assert "sharding" not in found.undetermined
