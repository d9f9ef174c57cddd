"""Schedules written from the frameworks' sources come out as what they are, named and blind, from one rank and all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.inference_megatron import Megatron, deepspeed, dualpipe, serving, written
from benchmarks.inference_scoring import Mark, Score
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer, reason
from tracelens.inferred import Inference

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


def _mixed(bf16: int, fp32: int) -> Inference:
    """DDP over 8 whose gradients are reduced in two dtypes."""
    tape = Tape(0, 8, {"default_pg": range(8)})
    for dtype, elements in (("bf16", bf16), ("fp32", fp32)):
        tape.compute(200, backward=True)
        tape.call("all_reduce", "default_pg", elements, dtype=dtype, phase="backward")
    return infer([tape.summary()], blind=True)


def test_gradients_in_two_dtypes_are_less_sure_the_more_they_mix() -> None:
    pure, mostly, half = _mixed(990_000, 10_000), _mixed(800_000, 200_000), _mixed(600_000, 400_000)
    assert (pure.config.grad_dtype, mostly.config.grad_dtype, half.config.grad_dtype) == ("bf16", "bf16", None)
    assert pure.confidence["grad_dtype"] > 0.9 > mostly.confidence["grad_dtype"]
    assert half.undetermined["grad_dtype"] == ("bf16", "fp32")
    (told,) = [entry for entry in half.evidence if entry.field == "grad_dtype"]
    assert any("bf16 60.0 %, fp32 40.0 %" in text for text in told.against)


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
    assert [finding.code for finding in found.findings] == ["group-name-contradicted"] * 2
    (told,) = [entry for entry in found.evidence if entry.field == "tp"]
    assert any("mesh_tp" in text for text in told.against)


def test_names_that_tell_the_truth_make_it_surer() -> None:
    named, silent = _with_names({"tp": "mesh_tp", "dp": "mesh_dp"}), _with_names({"tp": "a", "dp": "b"})
    assert (named.config.tp, silent.config.tp) == (2, 2)
    assert named.confidence["tp"] > silent.confidence["tp"]
    assert not named.findings


def test_of_two_jobs_one_is_taken_and_the_other_is_a_finding() -> None:
    first, _ = deepspeed(1, 8, 1)
    second, _ = deepspeed(1, 16, 1)
    found = infer([*first, *second])
    (finding,) = found.findings
    assert finding.code == "several-jobs"
    larger = max(first, second, key=len)
    assert msgspec.structs.replace(found, findings=()) == infer(larger)


def test_ranks_of_two_jobs_that_were_not_told_apart_are_a_finding() -> None:
    first, _ = deepspeed(1, 8, 1)
    second, _ = deepspeed(1, 16, 1)
    found = reason([*first, *second]).inference
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
    assert found.status == "undetermined"


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


@pytest.mark.parametrize(("tp", "etp"), [(4, 1), (2, 2), (4, 2), (2, 4)])
def test_parts_of_experts_are_told_by_what_is_gathered_between_dispatch_and_combine(tp: int, etp: int) -> None:
    layout = Megatron(tp=tp, dp=16 // tp, ep=4, etp=etp)
    for blind in (False, True):
        found = infer(layout.summaries(), blind=blind)
        assert (found.config.tp, found.config.ep, found.config.etp) == (tp, 4, etp)
        assert f"--ep 4 --etp {etp}" in (found.launcher_line or "")


def _dispatched(*, shared_expert: bool) -> Inference:
    """Top-1 experts of tp 2, ep 4 in one layer after the other; shared experts run between dispatch and combine."""
    tape = Tape(0, 8, {"default_pg": range(8), "tp": (0, 1), "ep": (0, 2, 4, 6)})
    for phase in ("forward", "backward"):
        for layer in range(4):
            tape.call("all_gather", "tp", 65_536, phase=phase)
            tape.compute(100, backward=phase == "backward")
            tape.call("reduce_scatter", "tp", 65_536, phase=phase)
            for exchange in range(2):
                uneven = [64 + 8 * layer, 40, 24, 0]
                tape.call("all_to_all", "ep", 30_000 + 256 * layer, phase=phase, splits=uneven)
                if shared_expert and exchange == 0:
                    tape.call("all_gather", "tp", 65_536, phase=phase)
                    tape.compute(100, backward=phase == "backward")
                    tape.call("reduce_scatter", "tp", 65_536, phase=phase)
    tape.call("all_reduce", "ep", 1_000_000, dtype="fp32", phase="optimizer")
    return infer([tape.summary()], blind=True)


@pytest.mark.parametrize("shared_expert", [False, True])
def test_parts_and_copies_of_experts_stay_open_without_such_gathers(shared_expert: bool) -> None:
    found = _dispatched(shared_expert=shared_expert)
    assert (found.config.tp, found.config.ep, found.config.etp) == (2, 4, None)
    assert found.undetermined["etp"] == (1, 2)


def test_a_group_for_parts_of_experts_says_nothing_where_no_expert_is_seen() -> None:
    layout = Megatron(tp=2, dp=4, etp=2)
    found = infer(layout.summaries())
    assert found.config.etp == 1
    assert found.confidence["etp"] < 0.9


def test_a_mask_separates_the_sequences_of_a_micro_batch() -> None:
    found = infer(Megatron(tp=2, cp=2, dp=2, tokens=512, seq=256).summaries(), blind=True)
    assert (found.config.tokens_per_microbatch, found.config.seq_len, found.config.micro_batch) == (1024, 256, 4)


def test_without_a_mask_or_attention_sequences_are_not_told_apart() -> None:
    found = infer(Megatron(tp=2, cp=2, dp=2, tokens=512).summaries(), blind=True)
    assert (found.config.tokens_per_microbatch, found.config.seq_len, found.config.micro_batch) == (1024, None, None)


def test_served_models_have_no_micro_batches_to_count() -> None:
    summaries, _ = serving(4, 2)
    assert infer(summaries).config.tokens_per_microbatch is None


def _reached_by_gathers(*, parts: bool) -> Inference:
    """Experts of ep 2 behind gathers over a group of 4, and tp 2."""
    groups = {"default_pg": range(8), "TENSOR_MODEL_PARALLEL_GROUP": (0, 1), "both": (0, 1, 2, 3)}
    tape = Tape(0, 8, groups | ({"EXPERT_TENSOR_PARALLEL_GROUP": (0, 1)} if parts else {}))
    for phase in ("forward", "backward"):
        for _ in range(4):
            tape.call("all_gather", "TENSOR_MODEL_PARALLEL_GROUP", 65_536, phase=phase)
            tape.compute(100, backward=phase == "backward")
            tape.call("reduce_scatter", "TENSOR_MODEL_PARALLEL_GROUP", 65_536, phase=phase)
            tape.call("all_gather", "both", 4_096, dtype="bool", phase=phase)
            tape.call("all_gather", "both", 131_072, phase=phase)
            tape.call("reduce_scatter", "both", 131_072, phase=phase)
    return infer([tape.summary()])


def test_behind_gathers_only_a_name_separates_parts_of_experts_from_experts() -> None:
    named, silent = _reached_by_gathers(parts=True), _reached_by_gathers(parts=False)
    assert (named.config.ep, named.config.etp) == (2, 2)
    assert (silent.config.ep, silent.config.etp) == (None, None)
    assert (silent.undetermined["ep"], silent.undetermined["etp"]) == ((2, 4), (1, 2))


def test_unequal_gathers_over_parts_of_experts_are_recorded_as_broadcasts() -> None:
    tape = Tape(0, 8, {"default_pg": range(8), "ep": (0, 2, 4, 6), "etp": (0, 1)})
    for phase in ("forward", "backward"):
        for layer in range(4):
            brought = 30_000 + 256 * layer
            for exchange in range(2):
                tape.call("all_to_all", "ep", brought, phase=phase, splits=[64 + 8 * layer, 40, 24, 0])
                if exchange == 0:
                    for size in (brought, brought + 512):
                        tape.call("broadcast", "etp", size, phase=phase, name="_broadcast_oop")
                    tape.compute(100, backward=phase == "backward")
                    for size in (brought, brought + 512):
                        tape.call("reduce", "etp", size, phase=phase, name="_reduce_oop")
    tape.call("all_reduce", "default_pg", 1_000_000, dtype="fp32", phase="optimizer")
    found = infer([tape.summary()], blind=True)
    assert (found.config.tp, found.config.dp, found.config.ep, found.config.etp) == (1, 8, 4, 2)
