"""What inference sees of ranks: classes, the typical step, and what a blind look leaves out."""

from __future__ import annotations

import msgspec
import polars as pl

from benchmarks.inference_megatron import Megatron
from benchmarks.inference_noise import add_evaluation, one_step_of_three
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.inference.observations import observe
from tracelens.summary import RankSummary

LAYOUT = Megatron(tp=2, dp=8, pp=4, microbatches=8)


def test_ranks_that_do_the_same_are_looked_at_once() -> None:
    views = observe([LAYOUT.step(rank).summary() for rank in range(LAYOUT.world)], blind=True)
    assert len(views) == LAYOUT.pp
    assert sorted(rank for view in views for rank in view.members) == list(range(LAYOUT.world))
    assert {len(view.members) for view in views} == {LAYOUT.tp * LAYOUT.dp}


def test_all_ranks_and_one_of_each_class_tell_the_same() -> None:
    every = infer([LAYOUT.step(rank).summary() for rank in range(LAYOUT.world)], blind=True)
    few = infer(LAYOUT.summaries(), blind=True)
    assert every.config == few.config


def test_ranks_may_come_in_any_order() -> None:
    summaries = LAYOUT.summaries()
    assert infer(summaries[::-1], blind=True).config == infer(summaries, blind=True).config


def test_a_blind_look_holds_no_description_and_no_label() -> None:
    (summary, *_) = LAYOUT.summaries()
    labelled = summary.calls.with_columns(label=pl.lit("FSDP::all_gather (layers.0)"))
    named = RankSummary(head=summary.head, calls=labelled, **_other_frames(summary))
    (seen,), (blind,) = observe([named], blind=False), observe([named], blind=True)
    assert seen.labels
    assert any(group.descriptions for group in seen.groups)
    assert blind.labels == ()
    assert not any(group.descriptions for group in blind.groups)
    assert all(call.label is None for call in blind.calls)


def _other_frames(summary: RankSummary) -> dict[str, pl.DataFrame]:
    names = ("kernels", "links", "segments", "compute", "budget", "shapes", "matmuls")
    return {name: getattr(summary, name) for name in names}


def test_group_numbers_say_nothing_when_blind() -> None:
    (summary, *_) = LAYOUT.summaries()
    groups = tuple(msgspec.structs.replace(g, name=f"x{n}", description="y") for n, g in enumerate(summary.head.groups))
    renamed = RankSummary(
        head=msgspec.structs.replace(summary.head, groups=groups), calls=summary.calls, **_other_frames(summary)
    )
    assert infer([renamed], blind=True) == infer([summary], blind=True)


def test_the_typical_step_is_neither_cut_nor_an_evaluation() -> None:
    import random

    (summary, *_) = LAYOUT.summaries()
    (whole,) = observe([summary], blind=True)
    for noise in (add_evaluation, one_step_of_three):
        (view,) = observe(noise([summary], random.Random(0)), blind=True)
        assert [c.elements for c in view.calls] == [c.elements for c in whole.calls]


def test_tiny_exercises_are_not_taken_for_bookkeeping() -> None:
    tape = Tape(0, 2, {"default_pg": range(2)})
    for phase in ("forward", "backward"):
        tape.call("all_reduce", "default_pg", 4, dtype="fp32", phase=phase)
    assert infer([tape.summary()], blind=True).config.tp == 2
