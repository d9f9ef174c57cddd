"""Descriptions of groups are hints: the traffic wins over those that lie, and a finding tells of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from benchmarks.inference_megatron import serving, written
from benchmarks.inference_noise import deal_names, describe
from benchmarks.inference_scoring import Mark, Score
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.inferred import Inference

SCHEDULES = written()
LIE = "group-name-contradicted"


def _codes(found: Inference) -> set[str]:
    return {finding.code for finding in found.findings}


@pytest.mark.parametrize("lie", ["tp", "pp", "cp", "ep"])
def test_one_description_for_every_group_makes_nothing_wrong(lie: str) -> None:
    score, silent = Score(), []
    for name, (summaries, truth) in SCHEDULES.items():
        found = infer([describe(summary, [f"mesh_{lie}"]) for summary in summaries])
        score.add(name, truth, found)
        if LIE not in _codes(found) and truth.get(lie) == 1:
            silent.append(name)
    assert score.total()[Mark.wrong] == 0, score.notes
    assert not silent


def test_true_descriptions_are_no_finding() -> None:
    assert not [name for name, (summaries, _) in SCHEDULES.items() if _codes(infer(summaries))]


def _fsdp(groups: Mapping[str, Sequence[int]]) -> Inference:
    """FSDP over all of 8 ranks, whose group is the first one given."""
    tape = Tape(0, 8, groups)
    shard = next(iter(groups))
    sizes = (40_000, 16_000, 16_000, 16_000, 48_000)
    for size in sizes:
        tape.call("all_gather", shard, size)
        tape.compute(100)
    for size in reversed(sizes):
        tape.call("all_gather", shard, size, phase="backward")
        tape.compute(200, backward=True)
        tape.call("reduce_scatter", shard, size, dtype="fp32", phase="backward")
    return infer([tape.summary()])


@pytest.mark.parametrize("lie", ["mesh_tp", "mesh_pp", "mesh_cp", "mesh_ep"])
def test_a_group_of_shards_under_the_name_of_another_axis_is_that_of_shards(lie: str) -> None:
    found = _fsdp({lie: range(8)})
    assert (found.config.tp, found.config.pp, found.config.cp, found.config.dp) == (1, 1, 1, 8)
    assert (found.config.dp_shard, found.config.sharding) == (8, "zero3")
    assert _codes(found) == {LIE}


def test_a_name_of_a_silent_group_is_refuted_where_the_product_leaves_no_room() -> None:
    found = _fsdp({"mesh_dp_shard": range(8), "mesh_tp": (0, 1)})
    assert (found.config.tp, found.config.dp) == (1, 8)
    (told,) = found.findings
    assert told.code == LIE
    assert "the product closes at 8" in told.message


def test_a_group_of_one_says_nothing_against_the_traffic_of_another() -> None:
    tape = Tape(0, 8, {"mesh_tp": (0,), "all": range(8)})
    for phase in ("forward", "backward"):
        for _ in range(6):
            tape.compute(100, backward=phase == "backward")
            tape.call("all_reduce", "all", 65_536, phase=phase)
    found = infer([tape.summary()])
    assert found.config.tp == 8
    assert _codes(found) == {LIE}


def _neutral(rows: Mapping[str, Sequence[int]], description: str) -> Inference:
    """Groups that carry what any axis might: a few all-reduces without a phase, of different sizes."""
    tape = Tape(0, 16, rows)
    for name in rows:
        for size in (70_000, 90_000):
            tape.call("all_reduce", name, size, phase=None)
    return infer([describe(tape.summary(), [description])])


@pytest.mark.parametrize("name", ["tp", "pp", "cp", "ep"])
def test_several_groups_under_one_name_are_believed_less_than_one(name: str) -> None:
    one = _neutral({"a": (0, 1, 2, 3)}, f"mesh_{name}")
    several = _neutral({"a": (0, 1, 2, 3), "b": (0, 4, 8, 12)}, f"mesh_{name}")
    assert getattr(one.config, name) == 4
    assert one.confidence[name] == pytest.approx(0.9)
    assert several.confidence.get(name, 0.0) < 0.9
    assert LIE in _codes(several)
    assert LIE not in _codes(one)


def test_a_silent_group_of_experts_leaves_them_open_where_everything_else_was_seen() -> None:
    found = _fsdp({"mesh_dp_shard": range(8), "mesh_ep": (0, 1, 2, 3)})
    assert found.config.ep is None
    assert found.undetermined["ep"] == (1, 4)


def test_a_group_of_one_does_not_outweigh_served_layers_that_are_seen() -> None:
    (summary,), _ = serving(8, 1)
    found = infer([describe(summary, ["mesh_tp" if group.size == 1 else "" for group in summary.head.groups])])
    assert (found.config.tp, found.config.dp) == (8, 1)
    assert _codes(found) == {LIE}


def test_descriptions_dealt_out_at_random_are_no_worse_than_none() -> None:
    score = Score()
    for name, (summaries, truth) in SCHEDULES.items():
        score.add(name, truth, infer(deal_names(summaries, random.Random(name))))
    assert score.total()[Mark.wrong] == 0, score.notes
