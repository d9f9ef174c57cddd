"""Bubbles, stages and micro-batches in flight."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.errors import ModelError
from tracelens.ledger.layout import Layout, Schedule
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.schedules import bubble_fraction, bubble_over_ideal, microbatches_in_flight
from tracelens.ledger.stages import plan_stages
from tracelens.ledger.validation import check_layout

ONE_F_ONE_B, INTERLEAVED = Schedule.one_f_one_b, Schedule.interleaved


@pytest.mark.parametrize(
    ("p", "m", "v", "percent"),
    [(16, 16, 1, 48.4), (16, 32, 1, 31.9), (8, 32, 1, 17.9), (4, 16, 2, 8.6), (16, 16, 8, 10.5)],
)
def test_the_bubbles_that_the_article_works_out(p: int, m: int, v: int, percent: float) -> None:
    schedule = INTERLEAVED if v > 1 else ONE_F_ONE_B

    assert round(100 * bubble_fraction(schedule, p, m, v), 1) == percent


def test_the_bubbles_over_useful_time_of_its_self_test() -> None:
    assert round(100 * bubble_over_ideal(ONE_F_ONE_B, 8, 16)) == 44
    assert round(100 * bubble_over_ideal(INTERLEAVED, 8, 16, 4)) == 11


def test_zero_bubble_takes_a_third_of_it() -> None:
    # Qi et al. 2023: ZB-H1 has (p-1)(F+B-W) of (p-1)(F+B+W), a third when the three take equally long
    assert bubble_over_ideal(Schedule.zero_bubble, 4, 8) == pytest.approx(bubble_over_ideal(ONE_F_ONE_B, 4, 8) / 3)


@pytest.mark.parametrize(
    ("schedule", "v", "passes"),
    [
        (Schedule.gpipe, 1, 4 * 3),
        (ONE_F_ONE_B, 1, 4 * 3),
        (INTERLEAVED, 2, 8 * 3),
        (Schedule.looped_bfs, 2, 8 * 3),
        # the last rank's weight gradient is not waited for: F and B there and back, and one W
        (Schedule.zero_bubble, 1, 4 * 2 + 1),
        (Schedule.zero_bubble, 2, 8 * 2 + 1),
        # torch computes the two weight gradients of the first rank last
        (Schedule.zbv, 2, 8 * 2 + 2),
    ],
)
def test_a_single_micro_batch_goes_through_four_stages_one_by_one(schedule: Schedule, v: int, passes: int) -> None:
    work = 3 * v

    assert bubble_fraction(schedule, 4, 1, v) == pytest.approx((passes - work) / passes)


def test_dualpipes_bubble_is_that_of_its_paper() -> None:
    # (PP/2-1)(F&B + B - 3W) = 3 · (3 + 2 - 3) passes, of 20 micro-batches of 3; DualPipeV folds 16 stages into 8 ranks
    assert bubble_over_ideal(Schedule.dualpipe, 8, 20) == pytest.approx(6 / 60)
    assert bubble_over_ideal(Schedule.dualpipev, 8, 20) == pytest.approx(7 * 2 / 120)


def test_without_a_pipeline_there_is_no_bubble() -> None:
    assert bubble_fraction(None, 1, 8) == 0


def in_flight(rank: int, **fields: object) -> float:
    return microbatches_in_flight(Layout(pp=4, num_microbatches=16, **fields), rank)  # type: ignore[arg-type]


def test_gpipe_keeps_every_micro_batch_and_1f1b_as_many_as_stages_follow() -> None:
    assert [in_flight(rank, schedule="gpipe") for rank in range(4)] == [16, 16, 16, 16]
    assert [in_flight(rank) for rank in range(4)] == [4, 3, 2, 1]


def test_interleaving_costs_the_first_stage_p_minus_one_chunks() -> None:
    # Korthikanti et al. 2022, equation 5: L(1 + (p-1)/(p·v)) layers instead of L
    assert in_flight(0, vp=2) == pytest.approx(4 * (1 + 3 / 8))


def test_few_micro_batches_are_all_there_are() -> None:
    assert microbatches_in_flight(Layout(pp=8, num_microbatches=2), 0) == 2


def stages(preset: str, **fields: object) -> list[int]:
    return [plan.layers for plan in plan_stages(load_preset(preset), Layout(**fields))]  # type: ignore[arg-type]


def test_llama3_405b_has_one_layer_less_on_either_end() -> None:
    # arXiv 2407.21783, section 3.3.2: 126 layers, one dropped from the first and the last stage
    assert stages("llama3-405b", pp=16) == [7, *[8] * 14, 7]


def test_torchtitan_counts_the_embedding_and_the_head_as_layers() -> None:
    # generate_llm_fqn_per_model_part(4 stages, 16 layers): 18 = 5 + 5 + 4 + 4
    assert stages("llama3.2-1b", framework="torchtitan", pp=4) == [4, 5, 4, 3]


def test_stages_given_by_hand_are_taken() -> None:
    assert stages("llama3-8b", pp=4, layers_per_stage=(7, 9, 9, 7)) == [7, 9, 9, 7]


def test_ends_of_a_pipeline_send_half_and_interleaving_wraps_around() -> None:
    model = load_preset("llama3-8b")
    plain = plan_stages(model, Layout(pp=4))
    looped = plan_stages(model, Layout(pp=4, vp=2, num_microbatches=8))

    def sends(plans: object) -> list[int]:
        return [plan.sends_forward + plan.sends_backward for plan in plans]  # type: ignore[attr-defined]

    assert sends(plain) == [1, 2, 2, 1]
    # m(2v-1) on the ends, 2mv between
    assert sends(looped) == [3, 4, 4, 3]


def test_a_v_shape_turns_around_without_a_message() -> None:
    model = load_preset("llama3-8b")
    plans = plan_stages(model, Layout(pp=4, schedule="zbv", framework="pytorch"))  # type: ignore[arg-type]

    assert [tuple(chunk.stage for chunk in plan.chunks) for plan in plans] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [plan.sends_forward for plan in plans] == [1, 2, 2, 1]
    assert (plans[0].has_embedding, plans[0].has_head) == (True, True)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        # Megatron-Core, get_forward_backward_func: with and without interleaving, nothing else
        ({"framework": "megatron", "schedule": "zbv"}, r"megatron has no schedule zbv \(it has 1f1b, interleaved_1f1b"),
        ({"framework": "megatron", "schedule": "gpipe"}, "megatron has no schedule gpipe"),
        ({"framework": "torchtitan", "schedule": "dualpipe"}, "torchtitan has no schedule dualpipe"),
        ({"framework": "pytorch", "schedule": "zbv", "vp": 4}, "two chunks a rank, and vp is 4"),
        ({"framework": "pytorch", "schedule": "dualpipev", "num_microbatches": 7}, "at least 2 · pp 4 = 8"),
        ({"framework": "pytorch", "schedule": "dualpipe", "num_microbatches": 9}, "an even num_microbatches"),
        ({"framework": "torchtitan", "vp": 2, "num_microbatches": 9}, "no multiple of rounds 2"),
    ],
)
def test_schedules_that_a_framework_lacks_or_can_not_fill_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        check_layout(load_preset("llama3-8b"), Layout(pp=4, **fields))
