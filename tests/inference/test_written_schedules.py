"""Schedules written from the frameworks' sources come out as what they are, named and blind, from one rank and all."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.inference_megatron import Megatron, deepspeed, dualpipe, serving, written
from benchmarks.inference_scoring import Mark, Score
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.results import Inference

SCHEDULES = written()


@pytest.mark.parametrize("blind", [False, True], ids=["named", "blind"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_wrong_and_nearly_all_is_found_from_all_ranks(name: str, blind: bool) -> None:
    summaries, truth = SCHEDULES[name]
    score = Score()
    score.add(name, truth, infer(summaries, blind=blind))
    assert score.total()[Mark.wrong] == 0, score.notes
    assert score.total()[Mark.right] >= 0.8 * score.total().total(), score.notes


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_wrong_from_any_single_rank(name: str) -> None:
    summaries, truth = SCHEDULES[name]
    score = Score()
    for summary in summaries:
        score.add(f"{name}, rank {summary.rank}", truth, infer([summary], blind=True))
    assert score.total()[Mark.wrong] == 0, score.notes


def test_five_axes_are_told_apart_and_their_order_is_found() -> None:
    layout = Megatron(tp=2, cp=2, pp=2, dp=4, ep=4, microbatches=8)
    found = infer(layout.summaries(), blind=True)
    assert (found.config.tp, found.config.cp, found.config.pp, found.config.dp) == (2, 2, 2, 4)
    assert found.config.ep == 4
    assert [(axis.name, axis.size, axis.stride) for axis in found.axes if axis.name != "ep"] == [
        ("tp", 2, 1),
        ("cp", 2, 2),
        ("dp_shard", 4, 4),
        ("pp", 2, 16),
    ]


def test_zero_1_and_2_of_one_micro_batch_stay_open() -> None:
    for stage in (1, 2):
        summaries, _ = deepspeed(stage, 8, 1)
        found = infer(summaries)
        assert found.config.sharding is None
        assert found.undetermined["sharding"] == ("zero1", "zero2")
        assert any("micro-batches" in wish for wish in found.would_decide)


def test_zero_2_is_told_by_gradients_that_are_reduced_at_every_micro_batch() -> None:
    summaries, _ = deepspeed(2, 8, 3)
    found = infer(summaries, blind=True)
    assert (found.config.sharding, found.config.num_microbatches) == ("zero2", 3)


def test_serving_is_not_training() -> None:
    summaries, _ = serving(4, 2)
    found = infer(summaries, blind=True)
    assert found.workload in ("inference", "benchmark")
    assert (found.config.tp, found.config.pp) == (4, 2)


def test_dualpipe_is_fed_from_both_ends() -> None:
    summaries, _ = dualpipe(4, 12)
    found = infer(summaries, blind=True)
    assert (found.config.schedule, found.config.num_microbatches, found.config.pp) == ("dualpipe", 12, 4)


def _with_names(names: dict[str, str]) -> Inference:
    """TP 2 with DDP over 4, whose groups may be called otherwise."""
    groups = {names["tp"]: (0, 1), names["dp"]: (0, 2, 4, 6)}
    tape = Tape(0, 8, {"default_pg": range(8), **groups})
    for _ in range(4):
        tape.compute(100)
        tape.call("all_reduce", names["tp"], 4096)
    for _ in range(4):
        tape.compute(200, backward=True)
        tape.call("all_reduce", names["tp"], 4096, phase="backward")
    for size in (90_000, 70_000):
        tape.call("all_reduce", names["dp"], size, dtype="fp32", phase="backward")
    return infer([tape.summary()])


def test_a_name_that_lies_is_a_finding_and_the_traffic_is_believed() -> None:
    found = _with_names({"tp": "mesh_dp_replicate", "dp": "mesh_tp"})
    assert (found.config.tp, found.config.dp) == (2, 4)
    assert [finding.code for finding in found.findings] == ["group-name-contradicted"]
    (told,) = [entry for entry in found.evidence if entry.field == "tp"]
    assert any("mesh_tp" in text for text in told.against)


def test_names_that_tell_the_truth_make_it_surer() -> None:
    named, silent = _with_names({"tp": "mesh_tp", "dp": "mesh_dp"}), _with_names({"tp": "a", "dp": "b"})
    assert (named.config.tp, silent.config.tp) == (2, 2)
    assert named.confidence["tp"] > silent.confidence["tp"]
    assert not named.findings


def test_ranks_of_two_jobs_are_a_finding() -> None:
    first, _ = deepspeed(1, 8, 1)
    second, _ = deepspeed(1, 16, 1)
    found = infer([*first, *second])
    assert "ranks-contradict" in [finding.code for finding in found.findings]
    assert found.undetermined["world_size"] == (8, 16)


def test_ranks_of_two_layouts_of_one_world_are_no_average() -> None:
    first, second = Megatron(tp=2, dp=8), Megatron(tp=4, dp=4)
    found = infer([first.step(0).summary(), second.step(5).summary()], blind=True)
    assert "ranks-contradict" in [finding.code for finding in found.findings]
    assert found.config.tp is None
    assert found.undetermined["tp"] == (2, 4)


def test_no_calls_at_all_leave_the_layout_open() -> None:
    found: Any = infer([Tape(0, 8, {"default_pg": range(8)}).summary()])
    assert found.workload == "unknown"
    assert found.config.dp is None
    assert found.status == "ambiguous"


def test_a_lone_rank_is_no_world_to_speak_of() -> None:
    found = infer([Tape(0, 1, {"default_pg": range(1)}).summary()])
    assert (found.config.tp, found.config.pp, found.config.dp) == (1, 1, 1)


def test_a_pipeline_on_the_default_group_is_told_by_what_other_axes_leave() -> None:
    layout = Megatron(tp=2, pp=4, dp=2, microbatches=8)
    tapes = []
    for stage in range(layout.pp):
        tape = layout.step(stage * 4)
        tape.groups["PIPELINE_MODEL_PARALLEL_GROUP"] = tuple(range(layout.world))
        tapes.append(tape.summary())
    found = infer(tapes, blind=True)
    assert (found.config.tp, found.config.pp, found.config.dp) == (2, 4, 2)
    assert (found.config.schedule, found.config.num_microbatches) == ("1f1b", 8)
