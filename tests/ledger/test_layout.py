"""Layouts that can't be are refused with every factor named; groups and links follow from the ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import ModelError, UsageError
from tracelens.ledger.groups import group_mesh, group_ranks, stays_in_node
from tracelens.ledger.layout import Framework, GroupKind, Layout
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.predict import predict
from tracelens.ledger.results import Link
from tracelens.ledger.validation import check_layout
from tracelens.topology import mesh_of


@pytest.mark.parametrize(
    ("preset", "degrees", "words"),
    [
        ("llama3-70b", {"tp": 3}, ["heads 64", "kv_heads 8", "tp 3"]),
        ("llama3-70b", {"tp": 16, "framework": "torchtitan"}, ["kv_heads 8 is no multiple of tp 16"]),
        (
            "llama3-8b",
            {"tp": 2, "cp": 16, "cp_kind": "ulysses", "framework": "megatron"},
            ["kv_heads 8 is no multiple of tp 2 · cp 16 = 32"],
        ),
        ("llama3-70b", {"pp": 7}, ["layers 80", "pp 7", "vp 1"]),
        ("llama3-70b", {"pp": 8, "vp": 3, "num_microbatches": 8}, ["layers 80", "pp 8", "vp 3", "24"]),
        ("llama3-70b", {"cp": 3}, ["seq_len 8192", "cp 3"]),
        ("llama3-70b", {"cp": 4, "cp_kind": "ulysses", "tp": 32}, ["heads 64", "tp 32", "cp 4", "128"]),
        ("mixtral-8x7b", {"ep": 3, "dp": 3}, ["experts 8", "ep 3"]),
        ("mixtral-8x7b", {"ep": 8, "dp": 4, "etp": 1}, ["dp 4", "cp 1", "tp 1", "ep 8", "etp 1"]),
        ("llama3-8b", {"ep": 2, "dp": 2}, ["ep 2", "mixture of experts", "llama3-8b"]),
        ("llama3-8b", {"dp": 12, "hsdp_shard": 8, "framework": "torchtitan"}, ["dp 12", "hsdp_shard 8"]),
        ("llama3-8b", {"vp": 2}, ["vp 2", "pp is 1"]),
        ("llama3-8b", {"pp": 4, "vp": 2, "num_microbatches": 6}, ["num_microbatches 6", "pp 4"]),
        ("llama3-8b", {"framework": "ddp", "tp": 2}, ["ddp has no tp"]),
        ("llama3-8b", {"framework": "ddp", "zero": 3}, ["ddp has no zero 3"]),
        ("llama3-8b", {"framework": "megatron", "zero": 3}, ["megatron has no zero 3"]),
        ("llama3-8b", {"pp": 4, "layers_per_stage": (8, 8, 8, 9)}, ["[8, 8, 8, 9]", "layers 32"]),
        ("llama3-8b", {"tp": 0}, ["tp must be at least 1"]),
    ],
)
def test_a_layout_that_cannot_be_is_refused_by_name(preset: str, degrees: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as error:
        predict(load_preset(preset), Layout(**degrees))

    assert [word for word in words if word not in error.value.message] == []


def test_a_word_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError) as error:
        Layout(framework="horovod")  # type: ignore[arg-type]

    assert "megatron" in (error.value.hint or "")


def test_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="no stage 4"):
        predict(load_preset("llama3-8b"), Layout(pp=4), stage=4)


degrees = st.sampled_from([1, 2, 3, 4])


@given(degrees, degrees, degrees, degrees)
def test_the_groups_of_every_kind_part_the_world(tp: int, cp: int, dp: int, pp: int) -> None:
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp, zero=1)
    for kind in (GroupKind.tp, GroupKind.cp, GroupKind.dp_cp, GroupKind.pp, GroupKind.tp_cp, GroupKind.model):
        groups = {tuple(group_ranks(layout, kind, rank)) for rank in range(layout.world_size)}

        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        for group in groups:
            assert mesh_of(group) == group_mesh(layout, kind)


def test_expert_groups_lie_inside_the_ranks_of_a_stage() -> None:
    # 2 stages of tp 2 · dp 4 = 8 ranks; experts see them as etp 1, ep 4, expert_dp 2
    layout = Layout(tp=2, dp=4, pp=2, ep=4, etp=1)

    assert group_ranks(layout, GroupKind.ep, 5) == [4, 5, 6, 7]
    assert group_ranks(layout, GroupKind.expert_dp, 5) == [1, 5]
    assert group_ranks(layout, GroupKind.expert_dp, 13) == [9, 13]


@pytest.mark.parametrize(
    ("mesh", "world", "inside"),
    [
        (((8, 1),), 64, True),
        (((16, 1),), 64, False),
        (((4, 2),), 64, True),
        (((2, 8),), 64, False),
        (((3, 1),), 12, False),  # 6, 7, 8 lie on two nodes
        (((4, 2),), 8, True),
        ((), 64, True),
    ],
)
def test_a_group_stays_in_a_node_when_all_its_ranks_do(
    mesh: tuple[tuple[int, int], ...], world: int, *, inside: bool
) -> None:
    assert stays_in_node(mesh, 8, world) is inside


def test_links_follow_from_ranks_and_not_from_the_axis() -> None:
    model = load_preset("llama3-8b")
    small = predict(model, Layout(framework=Framework.torchtitan, dp=8))
    wide = predict(model, Layout(framework=Framework.torchtitan, dp=16))
    hybrid = predict(model, Layout(framework=Framework.torchtitan, dp=16, hsdp_shard=8))

    assert {row.link for row in small.rows} == {Link.nvlink}
    assert {row.link for row in wide.rows} == {Link.ib}
    assert {row.link for row in hybrid.rows if row.axis == "dp_shard"} == {Link.nvlink}
    assert {row.link for row in hybrid.rows if row.axis == "dp_replicate"} == {Link.ib}


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (
            {"framework": "ddp", "dp": 8, "zero": 3},
            "choose a framework that has zero 3: textbook, torchtitan, pytorch,",
        ),
        (
            {"framework": "ddp", "tp": 2},
            "choose a framework that has it: textbook, megatron, torchtitan, pytorch, serving",
        ),
        ({"ep": 2, "dp": 2}, "choose a model with experts, such as mixtral-8x7b"),
        ({"tp": 3}, "choose degrees that divide"),
        ({"vp": 2}, "leave vp out, or give pp"),
        ({"cp": 2, "cp_kind": "flex"}, "leave cp_kind out, or choose one of: ring_p2p, allgather"),
        ({"pp": 4, "schedule": "zbv"}, "choose a framework that has it: torchtitan, pytorch, textbook"),
        ({"pp": 2, "vp": 2, "schedule": "1f1b", "num_microbatches": 4}, "such as interleaved_1f1b"),
        ({"zero": 0, "dp": 4, "hsdp_shard": 2}, "leave hsdp_shard out, or choose a zero that shards"),
        ({"dp": 0}, "leave dp out, or give a number from 1"),
        ({"zero": 4}, "0 shards nothing, 1 the optimizer"),
        ({"cp": 4, "cp_kind": "ulysses_ring"}, "give --option ulysses_degree=N"),
    ],
)
def test_the_hint_is_for_what_is_broken_and_for_nothing_else(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_layout(load_preset("llama3-8b"), Layout(**fields))

    assert hint in (caught.value.hint or "")
    assert ("choose degrees that divide" in (caught.value.hint or "")) == (hint == "choose degrees that divide")


def test_hints_of_several_broken_rules_are_all_given_once() -> None:
    with pytest.raises(ModelError) as caught:
        check_layout(load_preset("llama3-8b"), Layout(tp=3, ep=2))

    assert (caught.value.hint or "").count("choose degrees that divide") == 1
    assert "mixtral-8x7b" in (caught.value.hint or "")


HUGE = 99_999_999_999_999_999_999


@pytest.mark.parametrize(
    "field", ["tp", "pp", "dp", "cp", "ep", "etp", "vp", "hsdp_shard", "micro_batch", "num_microbatches", "seq_len"]
)
@pytest.mark.parametrize("framework", [Framework.megatron, Framework.textbook])
def test_a_degree_beyond_any_job_is_refused(field: str, framework: Framework) -> None:
    with pytest.raises(ModelError, match=f"{field} must be at most"):
        check_layout(load_preset("mixtral-8x7b"), Layout(framework=framework, **{field: HUGE}))  # type: ignore[arg-type]


def test_so_is_a_world_whose_degrees_are_small_each() -> None:
    with pytest.raises(ModelError, match="= 16,777,216 GPUs, more than 10,000,000"):
        check_layout(load_preset("llama3-8b"), Layout(tp=8, pp=16, dp=131_072))


def test_the_largest_world_is_taken() -> None:
    check_layout(load_preset("llama3-8b"), Layout(dp=10_000_000))
