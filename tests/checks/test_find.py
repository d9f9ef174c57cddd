"""Findings: a job that shows each and one alike that doesn't; and no millisecond is claimed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks import jobs
from tests.checks.jobs import CASES, RANKS, SHARD, gradients, job
from tests.report.build import MIB, MS, a_row, a_run, a_step, an_unsized_row, times_of
from tracelens.checks.codes import ABOUT, Code
from tracelens.checks.find import FINDERS, find
from tracelens.collectives import Primitive
from tracelens.many_ranks import Cause, LastArrival, Skew
from tracelens.results import Evidence, Finding, Measurement, Phase
from tracelens.topology import Axis


def by_code(measurement: Measurement, code: str, inference: object = None) -> list[Finding]:
    return [one for one in find(measurement, inference) if one.code == code]  # type: ignore[arg-type]


@pytest.mark.parametrize("code", CASES)
def test_a_job_that_shows_it_gets_the_finding_with_numbers_and_a_hint(code: str) -> None:
    (measurement, inference), _ = CASES[code]
    (finding,) = by_code(measurement, code, inference)
    assert finding.name == Code(code).word
    assert finding.severity is ABOUT[Code(code)].severity
    assert finding.hint
    assert finding.measured is not None
    assert any(character.isdigit() for character in finding.message)


@pytest.mark.parametrize("code", CASES)
def test_a_job_alike_without_the_fault_does_not(code: str) -> None:
    _, (measurement, inference) = CASES[code]
    assert by_code(measurement, code, inference) == []


def test_idle_time_is_told_of_marked_steps_alone_with_its_numbers() -> None:
    steps = tuple(a_step(rank, 3, compute=10, exposed=5) for rank in RANKS)
    (finding,) = by_code(job(time=steps), "TL408")
    assert finding.message.startswith("33.3 % of the step is idle (10.0 ms of 30.0 ms)")
    window = tuple(a_step(rank, None, compute=10, exposed=5) for rank in RANKS)
    assert by_code(job(time=window), "TL408") == []


def test_every_finder_has_a_case_here() -> None:
    assert len(FINDERS) == len(CASES)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"phase": Phase.optimizer}, "after the last backward"),
        ({"exposed_ns_per_step": 20 * MS}, "next to nothing of it runs beside compute"),
        ({"busy_ns_per_step": 90 * MS}, "longer than all compute"),
        ({"calls_per_step": jobs.times(1)}, "in one bucket"),
        ({}, "nothing beside them"),
    ],
)
def test_exposed_gradients_are_told_why_they_cannot_hide(changes: dict[str, object], told: str) -> None:
    paired = (a_skew(6 * MS, 2 * MS),)
    (finding,) = by_code(job(gradients(SHARD, **changes), groups=(SHARD,), skew=paired), "TL403")
    assert told in finding.message


def a_skew(transfer_ns: int, wait_ns: int, **changes: Any) -> Skew:
    usual: dict[str, Any] = {
        "group": SHARD.id,
        "name": "1",
        "primitive": "reduce_scatter",
        "size": 8,
        "ranks": jobs.RANKS,
        "pairing": "ordinal",
        "matched_calls": 10,
        "partly_matched_calls": 0,
        "unmatched_calls": 0,
        "conflicting_calls": 0,
        "late_profiler_calls": 0,
        "transfer_ns": transfer_ns,
        "wait_ns": wait_ns,
        "behind_receive_ns": 0,
        "complete": True,
        "busbw_bytes_per_s": None,
        "last": None,
        "waits": (),
    }
    return Skew(**(usual | changes))


def test_exposed_gradients_that_mostly_wait_are_told_so_and_for_whom() -> None:
    last = LastArrival(
        rank=5, calls=9, of=10, systematic=True, late_ns=MS, cause=Cause.compute, cause_ns=MS, late_total_ns=9 * MS
    )
    measurement = job(gradients(SHARD), groups=(SHARD,), skew=(a_skew(2 * MS, 6 * MS, last=last),))
    (finding,) = by_code(measurement, "TL403")
    assert "75.0 % of the time" in finding.message
    assert "rank 5 (last in 9 of 10)" in finding.message


def test_a_rank_that_is_late_by_habit_is_named_though_another_row_waits_longer() -> None:
    # GIVEN 18 ms of waiting in all-gathers for nobody in particular, 14 in reduce-scatters, 13 of them for rank 1
    chance = LastArrival(
        rank=4, calls=7, of=18, systematic=False, late_ns=MS, cause=Cause.launch, cause_ns=None, waited_ns=5 * MS
    )
    habit = LastArrival(
        rank=1, calls=9, of=16, systematic=True, late_ns=MS, cause=Cause.launch, cause_ns=None, waited_ns=13 * MS
    )
    rows = (gradients(SHARD), jobs.gathers(SHARD))
    skew = (a_skew(6 * MS, 18 * MS, primitive="all_gather", last=chance), a_skew(7 * MS, 14 * MS, last=habit))
    (finding,) = by_code(job(*rows, groups=(SHARD,), skew=skew), "TL403")
    # 32 of 45 ms are waiting, 13 of the 32 for rank 1
    assert "71.1 % of the time of the calls" in finding.message
    assert "40.6 % of it for rank 1 (last in 9 of 16)" in finding.message
    assert "what makes rank 1 late" in (finding.hint or "")


def test_waiting_that_is_less_than_the_transfer_or_of_another_group_is_no_reason() -> None:
    for skew in (a_skew(6 * MS, 2 * MS), a_skew(2 * MS, 6 * MS, group="another")):
        (finding,) = by_code(job(gradients(SHARD), groups=(SHARD,), skew=(skew,)), "TL403")
        assert "waiting" not in finding.message


def test_what_tensor_parallelism_across_nodes_claims_is_its_exposed_time() -> None:
    # GIVEN 4 ms of exposed all-reduce on every rank
    (measurement, _), _ = CASES["TL402"]
    (finding,) = by_code(measurement, "TL402")
    assert (finding.claimed_ns, finding.measured, finding.limit, finding.unit) == (4 * MS, 16.0, 8.0, "ranks")


def test_exposed_gradients_are_told_whole_though_another_finding_claims_a_part() -> None:
    # GIVEN 8 ms of exposed gradients reduced twice in a step, and 6 of exposed gathers
    rows = (jobs.TWICE, jobs.gathers(SHARD, payload_bytes_per_step=800 * MIB, exposed_ns_per_step=6 * MS))
    told = {one.code: one for one in find(job(*rows, groups=(SHARD,)), jobs.ACCUMULATING)}
    # THEN one of two reductions is TL304's, the gathers TL403's, which speaks of all: 14 of 20 + 12 ms
    assert (told["TL304"].claimed_ns, told["TL403"].claimed_ns) == (4 * MS, 6 * MS)
    assert "14.0 ms of 32.0 ms of data-parallel" in told["TL403"].message
    assert "(8.00 ms of it are another finding's)" in told["TL403"].message
    assert told["TL403"].measured == pytest.approx(0.14)


@pytest.mark.parametrize(
    ("framework", "told", "untold"),
    [
        ("deepspeed", "stage 1", "FSDP2"),
        ("ddp", "no_sync() of DDP;", "FSDP2"),
        ("torchtitan", "set_requires_gradient_sync", "no_sync()"),
        ("megatron", "no_sync_func", "FSDP2"),
        (None, "no_sync() of DDP, ", "stage 1"),
    ],
)
def test_what_helps_accumulation_is_told_for_the_framework_that_is_seen(
    framework: str | None, told: str, untold: str
) -> None:
    (measurement, _), _ = CASES["TL304"]
    seen = jobs.inferred(num_microbatches=2, sharding="zero1", tp=1, framework=framework)
    (finding,) = by_code(measurement, "TL304", seen)
    assert told in (finding.hint or "")
    assert untold not in (finding.hint or "")


def test_parameters_that_are_gathered_in_fp32_have_gradients_of_no_other_dtype() -> None:
    # GIVEN 800 MiB of gradients in fp32, as many of parameters, and another layer in bf16
    rows = (gradients(SHARD, dtype="fp32"), gradients(SHARD), jobs.gathers(SHARD))
    kept = jobs.gathers(SHARD, dtype="fp32", payload_bytes_per_step=800 * MIB)
    assert by_code(job(*rows, kept, groups=(SHARD,)), "TL305") == []
    # half as many: the other half is a choice, and not all of the gradients
    half = jobs.gathers(SHARD, dtype="fp32", payload_bytes_per_step=400 * MIB)
    (finding,) = by_code(job(*rows, half, groups=(SHARD,)), "TL305")
    assert finding.message.startswith("a part of the gradients is reduced in fp32: 350 MiB a step")


def test_the_reductions_of_a_loss_are_no_activations() -> None:
    # GIVEN 5 all-reduces of 6,144 fp32 and 3 of 512, as in the forward of a small Megatron-LM job
    activations = a_row(
        jobs.TENSOR, Primitive.all_reduce, RANKS, dtype="fp32", calls_per_step=jobs.times(5),
        payload_bytes_per_step=5 * 24_576, wire_bytes_per_step=5 * 24_576,
    )  # fmt: skip
    losses = a_row(
        jobs.TENSOR, Primitive.all_reduce, RANKS, dtype="fp32", calls_per_step=jobs.times(3),
        payload_bytes_per_step=3 * 2_048, wire_bytes_per_step=3 * 2_048,
    )  # fmt: skip
    measurement = job(activations, losses, groups=(jobs.TENSOR,))
    (finding,) = by_code(measurement, "TL205", jobs.inferred(tp=2, sequence_parallel=False))
    assert "(5 calls, 120 KiB a step)" in finding.message
    assert finding.measured == 5 * 24_576


@pytest.mark.parametrize(
    ("kernel", "calls", "told", "untold"),
    [
        ("DeepEP", 0, "kernels of DeepEP carry no record", "PyTorch 2.4"),
        ("NCCL", 0, "PyTorch 2.4", "carry no record"),
        ("NCCL", 80, "CUDA graph", "PyTorch 2.4"),
    ],
)
def test_what_no_recording_can_size_is_not_asked_for(kernel: str, calls: int, told: str, untold: str) -> None:
    unsized = an_unsized_row(kernel, RANKS, busy_ns_per_step=5 * MS, exposed_ns_per_step=0)
    measurement = job(unsized, run=a_run(RANKS, coverage=jobs.coverage(calls=calls, unsized_kernels=9)))
    (finding,) = by_code(measurement, "TL101")
    assert told in (finding.hint or "")
    assert untold not in (finding.hint or "")


def test_records_without_sizes_are_those_of_an_older_pytorch() -> None:
    silent = a_row(
        jobs.TENSOR, Primitive.all_reduce, RANKS, dtype=None, payload_bytes_per_step=None, wire_bytes_per_step=None
    )
    (finding,) = by_code(job(silent, groups=(jobs.TENSOR,), run=a_run(RANKS, coverage=jobs.coverage())), "TL101")
    assert "PyTorch 2.4 or newer" in (finding.hint or "")
    assert "CUDA graph" not in (finding.hint or "")


def test_splits_that_pytorch_cuts_are_judged_by_time() -> None:
    cut = a_row(jobs.EXPERTS, Primitive.all_to_all, RANKS, payload_bytes_per_step=None, wire_bytes_per_step=None)
    (finding,) = by_code(job(cut, groups=(jobs.EXPERTS,), run=a_run(RANKS, coverage=jobs.coverage())), "TL101")
    assert "after 30 ranks: judge it by time" in (finding.hint or "")
    assert "PyTorch 2.4" not in (finding.hint or "")


def test_splits_that_no_record_holds_need_a_newer_pytorch_and_not_fewer_ranks() -> None:
    # a trace of PyTorch 2.1 on 8 ranks: the operator shows how much goes and comes, and no record how it is split
    unsplit = {"payload_bytes_per_step": MIB, "wire_bytes_per_step": None, "evidence": Evidence.cpu_record}
    row = a_row(jobs.EXPERTS, Primitive.all_to_all, RANKS, **unsplit)
    (finding,) = by_code(job(row, groups=(jobs.EXPERTS,), run=a_run(RANKS, coverage=jobs.coverage())), "TL101")
    assert "PyTorch 2.4 or newer" in (finding.hint or "")
    assert "30 ranks" not in (finding.hint or "")


def test_slow_calls_of_one_rank_may_be_waiting_and_more_compute_is_not_asked_for() -> None:
    # GIVEN 700 MiB in 90 ms of reductions, 8.2 GB/s where an H100 does 450, longer than all compute
    slow = gradients(SHARD, busy_ns_per_step=90 * MS)
    measurement = job(slow, groups=(SHARD,), run=a_run(RANKS, devices=("NVIDIA H100 80GB HBM3",)))
    (finding,) = by_code(measurement, "TL403")
    assert "8.16 GB/s where the link does 450 GB/s" in finding.message
    assert "record the other ranks" in (finding.hint or "")
    # of ranks that stand side by side, or on a link that is not known, nothing of the kind is said
    for other in (
        msgspec.structs.replace(measurement, skew=(a_skew(6 * MS, 2 * MS),)),
        msgspec.structs.replace(measurement, run=a_run(RANKS, devices=("NVIDIA H100 PCIe",))),
    ):
        (finding,) = by_code(other, "TL403")
        assert "longer than all compute" in finding.message
        assert ("unknown without several ranks" in finding.message) == (other.skew is None)


def test_a_slow_link_and_exposed_gradients_do_not_claim_the_same_time() -> None:
    # GIVEN 8 ms of exposed gradients on a link that does a fifth of its rate: four fifths are the link's
    (measurement, _), _ = CASES["TL407"]
    claims = {one.code: one.claimed_ns for one in find(measurement)}
    assert claims["TL407"] == pytest.approx(0.8 * 8 * MS, abs=1)
    assert "TL403" not in claims


def test_the_exchange_of_embedding_tables_is_not_charged_to_data_parallelism() -> None:
    # GIVEN one group that all-reduces gradients (8 ms exposed, of a dtype that no record tells) and exchanges tables
    both = jobs.axis_group(Axis.dp_replicate, roles=(Axis.dp_replicate, Axis.embedding_table))
    tables = Axis.embedding_table
    rows = (
        a_row(both, Primitive.all_reduce, RANKS, dtype=None, phase=Phase.backward, exposed_ns_per_step=8 * MS),
        a_row(both, Primitive.all_to_all, RANKS, axis=tables, dtype="fp32", exposed_ns_per_step=12 * MS),
        a_row(both, Primitive.all_to_all, RANKS, axis=tables, dtype="int64", exposed_ns_per_step=3 * MS),
    )
    (finding,) = by_code(job(*rows, groups=(both,)), "TL403")
    assert finding.claimed_ns == 8 * MS


def test_hidden_communication_is_no_finding() -> None:
    """Two streams of 100 ms beside each other under 100 ms of compute: busy 100, exposed 0 (U19)."""
    rows = (
        gradients(SHARD, busy_ns_per_step=100 * MS, exposed_ns_per_step=0),
        gradients(SHARD, primitive=Primitive.all_gather, busy_ns_per_step=100 * MS, exposed_ns_per_step=0),
    )
    time = tuple(a_step(rank, 3, compute=100, exposed=0) for rank in RANKS)
    assert [one for one in find(job(*rows, groups=(SHARD,), time=time)) if one.claimed_ns] == []


GROUPS = (*map(jobs.axis_group, (Axis.tp, Axis.dp_shard, Axis.pp, Axis.ep)), jobs.ACROSS, jobs.ALONE)
ROWS = st.lists(
    st.builds(
        lambda group, primitive, phase, dtype, exposed, calls, number: a_row(
            group,
            primitive,
            ((0, 1), (2, 3, 4))[number],
            rank_class=number,
            phase=phase,
            dtype=dtype,
            exposed_ns_per_step=exposed,
            busy_ns_per_step=exposed + MS,
            calls_per_step=jobs.times(calls),
        ),
        st.sampled_from(GROUPS),
        st.sampled_from([Primitive.all_reduce, Primitive.reduce_scatter, Primitive.all_to_all, Primitive.send]),
        st.sampled_from([*Phase, None]),
        st.sampled_from(["bf16", "fp32"]),
        st.integers(0, 80 * MS),
        st.integers(1, 400),
        st.integers(0, 1),
    ),
    max_size=12,
)


@given(
    rows=ROWS,
    # of two steps of six ranks, the last of which has no traffic
    exposed=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    sharing=st.booleans(),
    bubble=st.floats(0, 3),
    imbalance=st.floats(1, 4),
    fraction=st.floats(0.01, 1),
)
def test_all_findings_together_claim_no_more_than_the_exposed_time(
    rows: list[object], exposed: list[int], sharing: bool, bubble: float, imbalance: float, fraction: float
) -> None:
    traffic = tuple(rows)
    group_time = times_of(traffic)  # type: ignore[arg-type]
    if sharing:
        # groups that run side by side: less time together than their rows
        group_time = tuple(
            msgspec.structs.replace(one, exposed_ns_per_step=(one.exposed_ns_per_step or 0) // 2) for one in group_time
        )
    time = tuple(a_step(number // 2, number % 2, exposed=part) for number, part in enumerate(exposed))
    measurement = job(
        *traffic,  # type: ignore[arg-type]
        groups=GROUPS,
        group_time=group_time,
        time=time,
        pipeline=jobs.pipeline(bubble, 0.375),
        routing=jobs.routing(imbalance),
        links=(jobs.link(fraction, group=GROUPS[1].id),),
    )
    inference = jobs.inferred(tp=8, sequence_parallel=False, num_microbatches=2, sharding="zero3")

    claims = [one.claimed_ns or 0 for one in find(measurement, inference)]

    mean_exposed = sum(row.exposed_comm_ns for row in time) / len(time)
    assert all(claim <= mean_exposed for claim in claims)
    assert sum(claims) <= mean_exposed


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_page_and_a_line_in_the_list(code: Code) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    page = docs / "findings" / f"{code.value}-{code.word}.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {code.value} {code.word}\n")
    assert ABOUT[code].title in text
    assert f"findings/{page.name}" in (docs / "findings.md").read_text(encoding="utf-8")


def test_pages_are_of_codes_that_exist() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs" / "findings"
    assert {page.name for page in docs.iterdir()} == {f"{code.value}-{code.word}.md" for code in Code}
