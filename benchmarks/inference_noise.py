"""Summaries with the noise of real recordings: steps lost, calls added and dropped, ranks missing, order jittered."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import polars as pl

from tracelens.summary import CALLS, COMPUTE, RankSummary, StepSpan

Noise = Callable[[Sequence[RankSummary], random.Random], list[RankSummary]]
_STEP_NS = 10**12


def _with_calls(summary: RankSummary, calls: pl.DataFrame) -> RankSummary:
    frame = calls.with_columns(pl.int_range(pl.len(), dtype=pl.UInt32).alias("call"))
    return RankSummary(
        head=summary.head,
        calls=frame.select([pl.col(name).cast(dtype) for name, dtype in CALLS.items()]),
        kernels=summary.kernels,
        links=summary.links,
        segments=summary.segments,
        compute=summary.compute,
        budget=summary.budget,
        shapes=summary.shapes,
        matmuls=summary.matmuls,
    )


def half_the_ranks(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """Every second rank at random, at least one."""
    kept = [s for s in summaries if chance.random() < 0.5]
    return kept or [chance.choice(list(summaries))]


def drop_last_backward(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """The last collective of backward is absent: the input needs no gradient."""
    found = []
    for s in summaries:
        late = s.calls.filter((pl.col("phase") == "backward") & ~pl.col("primitive").is_in(["send", "recv"]))
        last = late["call"].max()
        calls, compute = s.calls, s.compute
        found.append(_drop(s, calls, compute, [last]) if last is not None and len(late) > 4 else s)
    return found


def _drop(s: RankSummary, calls: pl.DataFrame, compute: pl.DataFrame, gone: Sequence[object]) -> RankSummary:
    """Calls without some of them; compute keeps its place in the new numbers."""
    kept = calls.filter(~pl.col("call").is_in(list(gone)))
    order = kept["call"]
    moved = compute.with_columns(
        pl.col("after_call")
        .map_batches(lambda c: (order.search_sorted(c.fill_null(0), side="right").cast(pl.Int64) - 1).clip(0))
        .cast(pl.UInt32)
        .alias("moved")
    ).with_columns(after_call=pl.when(pl.col("after_call").is_not_null()).then("moved"))
    summary = _with_calls(s, kept)
    return RankSummary(
        head=s.head,
        calls=summary.calls,
        kernels=s.kernels,
        links=s.links,
        segments=s.segments,
        compute=moved.select([pl.col(n).cast(t) for n, t in COMPUTE.items()]),
        budget=s.budget,
        shapes=s.shapes,
        matmuls=s.matmuls,
    )


def add_evaluation(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """A step of evaluation and logging beside the training step: forward only, scalars, one broadcast."""
    found = []
    for s in summaries:
        forward = s.calls.filter(pl.col("phase") == "forward")
        if forward.is_empty():
            found.append(s)
            continue
        later = pl.col("issue_ns") + _STEP_NS
        extra = forward.with_columns(step=pl.lit(1, pl.Int32), issue_ns=later, issue_end_ns=later + 1)
        steps = (*s.head.steps, StepSpan(number=99, cpu_start_ns=_STEP_NS, cpu_end_ns=2 * _STEP_NS))
        joined = _with_calls(s, pl.concat([s.calls, extra]))
        found.append(replace(joined, head=msgspec.structs.replace(s.head, steps=steps)))
    return found


def add_logging(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """Metrics reduced over the world after the step: a few scalars and a vector of 300."""
    found = []
    for s in summaries:
        world = next((i for i, g in enumerate(s.head.groups) if g.size == s.head.world_size), None)
        if world is None or s.calls.is_empty():
            found.append(s)
            continue
        last = s.calls.tail(1)
        rows = [
            last.with_columns(
                primitive=pl.lit("all_reduce"),
                collective=pl.lit("allreduce"),
                dtype=pl.lit("fp32"),
                group=pl.lit(world, pl.Int32),
                group_size=pl.lit(s.head.world_size, pl.Int64),
                phase=pl.lit("optimizer"),
                in_elements=pl.lit(n, pl.Int64),
                out_elements=pl.lit(n, pl.Int64),
                peer=pl.lit(None, pl.Int64),
                in_split_list=pl.lit(None, pl.List(pl.Int64)),
                out_split_list=pl.lit(None, pl.List(pl.Int64)),
            )
            for n in (1, 2, 300)
        ]
        found.append(
            _with_calls(s, pl.concat([s.calls, *(r.select(pl.col(n).cast(t) for n, t in CALLS.items()) for r in rows)]))
        )
    return found


def no_shapes(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """Recorded without shapes, as most frameworks do by default."""
    return [_frames(s, shapes=s.shapes.clear()) for s in summaries]


def no_compute(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """No kernel but communication is known, as on a CPU-only recording."""
    return [_frames(s, compute=s.compute.clear(), shapes=s.shapes.clear()) for s in summaries]


def no_ranks(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """Groups tell their sizes only, as where rank lists are cut or were not recorded."""
    found = []
    for s in summaries:
        groups = tuple(msgspec.structs.replace(g, ranks=None, ranks_source=None) for g in s.head.groups)
        found.append(replace(_frames(s), head=msgspec.structs.replace(s.head, groups=groups)))
    return found


def describe(summary: RankSummary, descriptions: Sequence[str]) -> RankSummary:
    """The summary with other descriptions of its groups, in turn."""
    pairs = zip(summary.head.groups, itertools.cycle(descriptions), strict=False)
    groups = tuple(msgspec.structs.replace(group, description=description) for group, description in pairs)
    return replace(_frames(summary), head=msgspec.structs.replace(summary.head, groups=groups))


def deal_names(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """Groups described as those of any axis, the same groups alike on all ranks."""
    dealt = chance.choices([*(f"mesh_{axis}" for axis in _AXES), "EMBEDDING_GROUP", ""], k=32)
    return [describe(s, dealt) for s in summaries]


def name_all_alike(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """All groups described as those of one axis."""
    description = f"mesh_{chance.choice(_AXES)}"
    return [describe(s, [description]) for s in summaries]


_AXES = ("tp", "pp", "cp", "ep", "etp", "dp_shard", "dp_replicate")


def one_step_of_three(summaries: Sequence[RankSummary], chance: random.Random) -> list[RankSummary]:
    """A first step cut in half by the window before the whole one."""
    found = []
    for s in summaries:
        half = s.calls.tail(len(s.calls) // 2).with_columns(step=pl.lit(1, pl.Int32))
        whole = s.calls.with_columns(step=pl.lit(0, pl.Int32))
        again = s.calls.with_columns(step=pl.lit(2, pl.Int32))
        steps = tuple(StepSpan(number=n, cpu_start_ns=n * _STEP_NS, cpu_end_ns=(n + 1) * _STEP_NS) for n in range(3))
        joined = _with_calls(s, pl.concat([whole, half, again]))
        shapes = s.shapes.with_columns((pl.col("count") * 5 // 2).cast(pl.UInt32).alias("count"))
        found.append(replace(_frames(joined, shapes=shapes), head=msgspec.structs.replace(s.head, steps=steps)))
    return found


def _frames(s: RankSummary, **changed: pl.DataFrame) -> RankSummary:
    names = ("calls", "kernels", "links", "segments", "compute", "budget", "shapes", "matmuls")
    return RankSummary(head=s.head, **{name: changed.get(name, getattr(s, name)) for name in names})


KINDS: dict[str, Noise] = {
    "half the ranks": half_the_ranks,
    "last backward collective absent": drop_last_backward,
    "an evaluation step": add_evaluation,
    "logging": add_logging,
    "no shapes": no_shapes,
    "no compute": no_compute,
    "no rank lists": no_ranks,
    "a step cut in half": one_step_of_three,
}

LIES: dict[str, Noise] = {"names dealt out at random": deal_names, "one name for all groups": name_all_alike}
"""Noise in names, for an inference that reads them."""
