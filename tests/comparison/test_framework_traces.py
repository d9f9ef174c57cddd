"""Every byte that real framework code sent is explained: by the model and layout that it was given, and by nothing.

The witness is the code itself: `../shared/traces/framework` holds what it issued; the ledger predicts it from sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from tests.comparison.cases import CASES, case_folder, read_case, stated, stated_model
from tests.ledger.test_framework_traces import LAYOUTS
from tracelens.cli.diff import compare_with_ledger
from tracelens.compared import Comparison, Verdict
from tracelens.comparison.compare import Expectation, compare
from tracelens.comparison.items import measured_units
from tracelens.comparison.solve import settle_layout
from tracelens.errors import UsageError
from tracelens.ledger.layout import Framework, Layout, Recompute
from tracelens.ledger.options import NativeOptions
from tracelens.ledger.predict import predict
from tracelens.measurement.measure import measure
from tracelens.results import CallsPerStep, Measurement, SizeRow

EXPERTS = {"ep8_dropless"}
"""Mixtures of experts can't be solved from matrix products: their products have as many rows as tokens came."""


def differences(comparison: Comparison) -> list[tuple[Any, ...]]:
    return [
        (row.stage, row.primitive.value, row.predicted_calls, row.measured_calls, row.why)
        for row in comparison.rows
        if row.verdict is not Verdict.match
    ]


@pytest.mark.parametrize("case", CASES)
def test_given_model_and_layout_every_byte_is_explained(shared_traces: Path, case: str) -> None:
    side = read_case(case_folder(shared_traces, case))
    comparison = compare(side.measurement, stated(shared_traces, case))

    assert differences(comparison) == []
    assert comparison.explained_bytes_fraction is not None
    assert comparison.explained_bytes_fraction >= 0.999
    assert comparison.absent_bytes_fraction == 0
    assert comparison.sizes_from == "given"
    assert comparison.inside_tolerance


@pytest.mark.parametrize("case", [case for case in CASES if case not in EXPERTS])
def test_with_nothing_given_every_byte_is_explained_by_what_is_solved(shared_traces: Path, case: str) -> None:
    side = read_case(case_folder(shared_traces, case))
    comparison = compare_with_ledger(side, None, {}, 0.01)

    assert differences(comparison) == []
    assert comparison.sizes_from == comparison.layout_from == "inferred"
    # and what it rests on is told, with the sizes found in the end and not the way to them
    assert any("solved from matrix products" in text for text in comparison.assumptions)
    assert not any("padded" in text or "layers, not" in text for text in comparison.assumptions)


@pytest.mark.parametrize("case", CASES)
def test_not_only_the_bytes_of_a_row_are_as_predicted_but_every_size_of_its_calls(
    shared_traces: Path, case: str
) -> None:
    """Counted here from the sizes themselves, with no tolerance: as many calls of each payload on both sides."""
    layout = LAYOUTS[case]
    units = measured_units(read_case(case_folder(shared_traces, case)).measurement, layout)
    ledger = predict(stated_model(shared_traces, case), layout)
    for unit in units:
        predicted: Counter[tuple[Any, ...]] = Counter()
        for row in ledger.rows_of_stage(unit.stage if layout.pp > 1 else 0):
            size = round(row.payload_bytes / row.calls)
            predicted[row.mesh, row.primitive, row.dtype, size] += round(row.calls)
        measured: Counter[tuple[Any, ...]] = Counter()
        for item in unit.measured:
            measured[item.mesh, item.primitive, item.dtype, item.payload_bytes] += round(item.calls)
        assert predicted == measured


@pytest.mark.parametrize("case", ["fsdp2_8", "fsdp1_full8"])
def test_a_root_unit_that_is_three_percent_off_is_a_difference(shared_traces: Path, case: str) -> None:
    """The vocabulary is what only the root unit holds; the blocks beside it stay as they are."""
    model = stated_model(shared_traces, case)
    wider = msgspec.structs.replace(model, vocab=round(model.vocab * 1.03 / 8) * 8)
    comparison = compare(
        read_case(case_folder(shared_traces, case)).measurement, Expectation(model=wider, layout=LAYOUTS[case])
    )
    off = [row for row in comparison.rows if row.verdict is not Verdict.match]
    assert {row.verdict for row in off} == {Verdict.less}
    assert {row.primitive.value for row in off} == {"all_gather", "reduce_scatter"}
    assert all(row.measured_calls == 1 for row in off)
    assert all(0.965 < (row.ratio or 0) < 0.985 for row in off)
    # the reason ends in what is left: how many calls, what they send and what they should
    assert all(
        re.search(r"the call sends [\d.]+ [KM]iB, not [\d.]+ [KM]iB \(-\d\.\d+ %\)$", row.why or "") for row in off
    )
    assert comparison.explained_bytes_fraction is not None
    assert 0.5 < comparison.explained_bytes_fraction < 0.99


@pytest.mark.parametrize("case", sorted(EXPERTS))
def test_a_model_that_cannot_be_solved_is_asked_for(shared_traces: Path, case: str) -> None:
    with pytest.raises(UsageError) as raised:
        compare_with_ledger(read_case(case_folder(shared_traces, case)), None, {}, 0.01)
    assert raised.value.hint is not None
    assert "--model" in raised.value.hint


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fsdp2_8", {"grad_dtype": "bf16"}, "gradients are reduced in fp32, not bf16"),
    ("fsdp2_8", {"reshard_after_forward": False}, "gathered again in backward"),
    ("pp4_1f1b_dp2", {"num_microbatches": 4}, "8 micro-batches in a step, not 4"),
    ("mg_tp4sp_dp2", {"sequence_parallel": False}, "sequence parallelism is on"),
    ("mg_tp4sp_dp2", {"recompute": Recompute.full}, "nothing is computed again in backward"),
    ("ds_zero2_8", {"zero": 1}, "the sharding is ZeRO-2, not ZeRO-1"),
    ("pp4_1f1b_dp2", {"layers_per_stage": (1, 2, 2, 3)}, "stages are cut otherwise: each holds 2 layers"),
    ("hsdp_4x16", {"hsdp_shard": 64}, "sharding spans 16 ranks and is replicated 4 times"),
    ("cp4_allgather_dp2", {"cp_kind": "ring_alltoall"}, "context parallelism is allgather, not ring_alltoall"),
    ("ddp8", {"framework": Framework.pytorch, "options": None}, "the habits are those of ddp, not pytorch"),
    ("tt_llama_fsdp8", {"options": NativeOptions(loss_chunks=0)}, "the loss is computed over the logits in chunks"),
]


@pytest.mark.parametrize(("case", "changes", "words"), WRONG)
def test_a_wrong_layout_is_told_what_it_got_wrong(
    shared_traces: Path, case: str, changes: dict[str, Any], words: str
) -> None:
    """The largest difference names the very thing that was changed: it was found by trying, so it is the truth."""
    layout: Layout = msgspec.structs.replace(LAYOUTS[case], **changes)
    comparison = compare(read_case(case_folder(shared_traces, case)).measurement, stated(shared_traces, case, layout))

    assert not comparison.inside_tolerance
    assert words in (comparison.rows[0].why or "")


def test_untied_embeddings_are_told_where_first_and_last_stage_share_a_gradient(shared_traces: Path) -> None:
    case = "mg_pp4_1f1b_tp2"
    model = msgspec.structs.replace(stated_model(shared_traces, case), tied_embeddings=False)
    comparison = compare(
        read_case(case_folder(shared_traces, case)).measurement, Expectation(model=model, layout=LAYOUTS[case])
    )
    assert (comparison.rows[0].stage, comparison.rows[0].verdict) == (0, Verdict.unpredicted)
    assert "tied" in (comparison.rows[0].why or "")


def test_two_mistakes_at_once_get_a_reason_each(shared_traces: Path) -> None:
    layout = msgspec.structs.replace(LAYOUTS["tt_llama_fsdp8"], reshard_after_forward=False, grad_dtype="bf16")
    side = read_case(case_folder(shared_traces, "tt_llama_fsdp8"))
    comparison = compare(side.measurement, stated(shared_traces, "tt_llama_fsdp8", layout))

    reasons = {row.primitive.value: row.why or "" for row in comparison.rows if row.verdict is not Verdict.match}
    assert reasons["reduce_scatter"] == "gradients are reduced in fp32, not bf16"
    assert "gathered again" in reasons["all_gather"]


@pytest.mark.parametrize("hidden", [1152, 1344])
def test_what_nothing_known_explains_is_said_to_be_so(shared_traces: Path, hidden: int) -> None:
    # twice the true hidden size would not do: with two layers more, some of its buckets have the measured size
    model = msgspec.structs.replace(stated_model(shared_traces, "ddp8"), hidden=hidden)
    side = read_case(case_folder(shared_traces, "ddp8"))
    comparison = compare(side.measurement, Expectation(model=model, layout=LAYOUTS["ddp8"]))

    reasons = [(row.why or "").partition("; ")[0] for row in comparison.rows if row.verdict is not Verdict.match]
    assert set(reasons) == {"no known alternative explains it"}


def test_a_wrong_degree_is_not_explained_by_a_model_that_sends_less(shared_traces: Path) -> None:
    # tp 2 · dp 4 instead of tp 4 · dp 2: every call lies on another mesh, and fewer layers only leave less absent
    layout = msgspec.structs.replace(LAYOUTS["mg_tp4sp_dp2"], tp=2, dp=4)
    model = stated_model(shared_traces, "mg_tp4sp_dp2")
    side = read_case(case_folder(shared_traces, "mg_tp4sp_dp2"))
    comparison = compare(side.measurement, Expectation(model=model, layout=layout))
    assert comparison.explained_bytes_fraction is not None
    assert comparison.explained_bytes_fraction < 0.01
    assert not any("layers, not" in (row.why or "") for row in comparison.rows)


def test_a_world_of_another_size_is_refused(shared_traces: Path) -> None:
    layout = msgspec.structs.replace(LAYOUTS["ddp8"], dp=16)
    with pytest.raises(UsageError, match="= 16, and the trace is of a job of 8 ranks"):
        compare(read_case(case_folder(shared_traces, "ddp8")).measurement, stated(shared_traces, "ddp8", layout))


def test_unexplained_rows_have_a_call_to_look_up(shared_traces: Path) -> None:
    side = read_case(case_folder(shared_traces, "fsdp2_8"))
    fields = {"dp": 8, "framework": "pytorch", "zero": 3, "no_reshard": True}
    comparison = compare_with_ledger(side, None, fields, 0.01)

    row = next(row for row in comparison.rows if row.verdict is not Verdict.match)
    assert row.example is not None
    # the largest all-gather of backward: a block of 44 M parameters in bf16, or the root's
    assert (row.example.rank, row.example.group) == (0, row.group)
    assert row.example.payload_bytes is not None
    assert row.example.payload_bytes > 80_000_000
    assert row.example.seconds is not None
    assert 0 < row.example.seconds < 10


QUICK = {"fsdp2_8", "tp8sp_fsdp64", "ds_zero2_8", "pp4_1f1b_dp2"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_given_the_model_alone_every_byte_is_explained(
    shared_traces: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.cli.diff.load_model", lambda _: stated_model(shared_traces, case))
    comparison = compare_with_ledger(read_case(case_folder(shared_traces, case)), "model.toml", {}, 0.01)
    assert differences(comparison) == []
    assert (comparison.sizes_from, comparison.layout_from) == ("given", "inferred")


@pytest.mark.parametrize("case", CASES)
def test_choices_inside_the_framework_that_are_left_open_are_read_off_the_traffic(
    shared_traces: Path, case: str
) -> None:
    bare = msgspec.structs.replace(LAYOUTS[case], options=None)
    given = frozenset(Layout.__struct_fields__) - {"options"}
    side = read_case(case_folder(shared_traces, case))
    expected = settle_layout(side.measurement, stated(shared_traces, case, bare), given=given)
    assert differences(compare(side.measurement, expected)) == []
    # nothing but the options was touched, and what was is told
    assert msgspec.structs.replace(expected.layout, options=None) == bare
    assert (expected.layout == bare) == (expected.assumptions == ())


@pytest.mark.parametrize("case", ["pp4_1f1b_dp2", "pp4_interleaved_tp2", "ds_zero2_8"])
def test_how_many_micro_batches_a_step_holds_is_read_off_the_traffic_where_it_is_left_out(
    shared_traces: Path, case: str
) -> None:
    layout = msgspec.structs.replace(LAYOUTS[case], num_microbatches=1 if case == "ds_zero2_8" else 4)
    given = frozenset(Layout.__struct_fields__) - {"micro_batch", "num_microbatches"}
    side = read_case(case_folder(shared_traces, case))
    expected = settle_layout(side.measurement, stated(shared_traces, case, layout), given=given)
    assert expected.layout == LAYOUTS[case]
    assert any("micro-batches in a step, not" in text for text in expected.assumptions)


def test_a_no_sync_that_does_nothing_is_a_difference_and_no_choice_of_the_framework(shared_traces: Path) -> None:
    """Two micro-batches reduce once each; the prediction waits for the last."""
    layout = msgspec.structs.replace(
        LAYOUTS["fsdp2_8"], num_microbatches=2, options=NativeOptions(accumulate_without_sync=True)
    )
    measured = predicted_run(shared_traces, msgspec.structs.replace(layout, options=NativeOptions()))
    expected = Expectation(model=stated_model(shared_traces, "fsdp2_8"), layout=layout)
    settled = settle_layout(measured, expected, given=frozenset({"framework"}))
    comparison = compare(measured, settled)
    assert "no_sync did nothing" in (comparison.rows[0].why or "")


def predicted_run(traces: Path, layout: Layout) -> Measurement:
    """What one of eight ranks would measure if it did as the ledger says."""
    ledger = predict(stated_model(traces, "fsdp2_8"), layout)
    side = read_case(case_folder(traces, "fsdp2_8"))
    group = side.measurement.groups[0]
    rows = [
        SizeRow(
            rank_class=0, group=group.id, primitive=row.primitive, dtype=row.dtype, phase=row.phase,
            from_bytes=round(row.payload_bytes / row.calls), to_bytes=round(row.payload_bytes / row.calls),
            steps_used=8, calls_per_step=CallsPerStep(min=0, median=row.calls, max=int(row.calls), mean=row.calls),
            payload_bytes_per_step=int(row.payload_bytes), wire_bytes_per_step=round(row.wire_bytes),
            busy_ns_per_step=1, exposed_ns_per_step=1, busy_spread_ns=None, exposed_spread_ns=None,
        )
        for row in ledger.rows_of_stage(0)
    ]  # fmt: skip
    traffic = side.measurement.traffic[:1]
    return msgspec.structs.replace(side.measurement, sizes=tuple(rows), traffic=traffic)


@pytest.mark.parametrize("case", ["fsdp2_8", "tp8sp_fsdp64", "mg_tp4sp_dp2", "pp4_1f1b_dp2"])
def test_groups_whose_ranks_are_unknown_are_placed_where_they_fit(shared_traces: Path, case: str) -> None:
    """Older traces tell a group's size and not its ranks; two groups of one size are told apart by their traffic."""
    measurement = read_case(case_folder(shared_traces, case)).measurement
    groups = tuple(
        msgspec.structs.replace(group, ranks=None, mesh=None) if (group.size or 0) > 1 else group
        for group in measurement.groups
    )
    comparison = compare(msgspec.structs.replace(measurement, groups=groups), stated(shared_traces, case))
    assert differences(comparison) == []


def test_a_step_that_was_cut_off_is_the_reason_for_fewer_calls(shared_traces: Path) -> None:
    """The last of two steps lost the calls of its backward."""
    side = read_case(case_folder(shared_traces, "ddp8"))
    kept = (pl.col("step") == 0) | (pl.col("primitive") != "all_reduce")
    cut = [replace(one, calls=one.calls.with_columns(step=pl.when(kept).then("step"))) for one in side.summaries]
    comparison = compare(measure(cut), stated(shared_traces, "ddp8"))
    reasons = {row.why for row in comparison.rows if row.verdict is Verdict.less}
    assert reasons
    assert all("a step is cut: it holds 0 calls" in (why or "") for why in reasons)


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (3, 1), (7, 3)])
def test_a_rank_that_is_unknown_takes_the_stage_that_fits(shared_traces: Path, rank: int, stage: int) -> None:
    side = read_case(case_folder(shared_traces, "mg_pp4_1f1b_tp2"))
    one = next(one for one in side.summaries if one.rank == rank)
    nameless = replace(one, head=msgspec.structs.replace(one.head, rank=None))
    comparison = compare(measure([nameless]), stated(shared_traces, "mg_pp4_1f1b_tp2"))
    assert differences(comparison) == []
    # stages 1 and 2 send the same
    assert {row.stage for row in comparison.rows} == {stage}
