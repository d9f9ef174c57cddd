"""Traces that others recorded, and those of real framework code: nothing that is told may be wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.inference import _layout_truth
from benchmarks.inference_scoring import Mark, Score
from tracelens.errors import TraceLensError
from tracelens.inference.infer import infer
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = CHECKOUT.parent / "shared" / "traces"
CASES = sorted(path.parent for path in SHARED.rglob("truth.json")) if SHARED.is_dir() else []
TOYS = sorted(path.parent for path in (CHECKOUT / "fixtures" / "toys").rglob("truth.toml"))

# what the facts call undecidable, or what the trace does not hold
OPEN = {
    "nanogpt_sharded_dp8": {"sharding"},  # ZeRO-1 or 2: one micro-batch
    # DeepEP kernels tell no sizes, no call was recorded, and pipeline calls were left out
    "deepseek_v3_train": {"tp", "ep", "schedule"},
}


def _summaries(folder: Path) -> list[RankSummary]:
    paths = [path for path in sorted(folder.glob("*.json*")) if path.name != "truth.json"]
    return [summarize(path) for path in paths]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_every_field_of_the_truth_is_found_named_and_blind(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))["config"]
    summaries = _summaries(folder)
    for blind in (False, True):
        score = Score()
        score.add(folder.name, truth, infer(summaries, blind=blind))
        score.add(f"{folder.name}, first rank", truth, infer(summaries[:1], blind=blind))
        assert score.total()[Mark.wrong] == 0, score.notes
        fields = {note.split(": ")[2].split(" ")[0] for note in score.notes if "first rank" not in note}
        assert fields <= OPEN.get(folder.name, set()), score.notes


@pytest.mark.parametrize("folder", TOYS, ids=lambda folder: folder.name)
def test_the_exercises_are_never_told_wrong(folder: Path) -> None:
    truth = _layout_truth(tomllib.loads((folder / "truth.toml").read_text(encoding="utf-8")))
    summaries = _summaries(folder)
    score = Score()
    for ranks in (summaries, summaries[:1]):
        for blind in (False, True):
            score.add(folder.name, truth, infer(ranks, blind=blind))
    assert score.total()[Mark.wrong] == 0, score.notes


@pytest.mark.parametrize("path", sorted((SHARED / "edge").glob("*")), ids=lambda path: path.name)
def test_odd_traces_get_what_can_be_said_of_them(path: Path) -> None:
    try:
        summary = summarize(path)
    except TraceLensError:
        return
    for blind in (False, True):
        found = infer([summary], blind=blind)
        assert all(0.6 <= confidence <= 1 for confidence in found.confidence.values())


def test_blind_and_named_agree_where_names_only_confirm(shared_traces: Path) -> None:
    summaries = [summarize(shared_traces / "framework" / "tp8sp_fsdp64" / f"rank{rank}.json.gz") for rank in (0, 63)]
    named, blind = infer(summaries), infer(summaries, blind=True)
    assert named.config == blind.config
    assert named.confidence["tp"] >= blind.confidence["tp"]


@pytest.mark.parametrize(
    ("name", "file", "left"),
    [
        ("symptom_U4_stage_from_counts_over_micro_batches", "zero2.json", ("zero2",)),
        ("symptom_U4_stage_from_counts_over_micro_batches", "zero3.json", ("zero3",)),
        ("symptom_U4_stage_from_counts_over_micro_batches", "one_micro_batch.json", ("zero1", "zero2")),
        ("symptom_U3_parameters_kept_after_forward", "rank0.json", ("zero3",)),
        ("symptom_U11_gradients_reduced_by_all_to_all", "rank0.json", ("zero3",)),
    ],
)
def test_the_stage_of_symptoms_that_users_met(name: str, file: str, left: tuple[str, ...]) -> None:
    found = infer([summarize(CHECKOUT / "fixtures" / "handwritten" / name / file)], blind=True)
    told = (found.config.sharding,) if found.config.sharding else found.undetermined["sharding"]
    assert told == left


def test_parameters_kept_after_forward_are_not_called_resharded() -> None:
    folder = CHECKOUT / "fixtures" / "handwritten" / "symptom_U3_parameters_kept_after_forward"
    assert infer([summarize(folder / "rank0.json")]).config.reshard_after_forward is False


def test_a_replica_group_reduced_at_every_micro_batch_is_hsdp() -> None:
    folder = CHECKOUT / "fixtures" / "handwritten" / "symptom_U1_every_micro_batch_reduces_across_replicas"
    found = infer([summarize(folder / "rank0.json")], blind=True)
    assert (found.config.dp_shard, found.config.dp_replicate) == (8, 2)


def test_sequence_parallel_of_megatron_is_tensor_parallel() -> None:
    folder = CHECKOUT / "fixtures" / "handwritten" / "symptom_U14_sequence_parallel_gathers_again"
    found = infer([summarize(folder / "megatron.json")], blind=True)
    assert (found.config.tp, found.config.sequence_parallel) == (2, True)


def test_one_all_reduce_in_forward_is_tensor_parallel_by_its_place() -> None:
    folder = CHECKOUT / "fixtures" / "handwritten" / "symptom_U15_last_backward_collective_absent"
    found = infer([summarize(folder / "rank0.json")], blind=True)
    assert found.config.tp == 2
    assert found.confidence["tp"] < 0.9


def test_gradients_in_two_dtypes_are_told_as_a_mix(shared_traces: Path) -> None:
    """Counted in the raw JSON of step 11: 193,168,608 elements of bf16 and 75,497,536 of fp32 are scattered."""
    found = infer([summarize(shared_traces / "nanogpt_sharded_dp8" / "rank2-chrome-trace.json.gz")], blind=True)
    (told,) = [entry for entry in found.evidence if entry.field == "grad_dtype"]
    assert found.config.grad_dtype == "bf16"
    assert found.confidence["grad_dtype"] < 0.9
    assert any("bf16 71.9 %, fp32 28.1 %" in text for text in told.against)


def test_a_trace_of_gloo_alone_says_nothing_of_the_axes() -> None:
    trace = SHARED / "edge" / "cpu_only_gloo_world300.json.gz"
    if not trace.exists():
        pytest.skip("needs ../shared/traces")
    found = infer([summarize(trace)])
    assert (found.config.tp, found.config.pp, found.config.cp, found.config.dp) == (None,) * 4
    assert {"tp", "pp", "dp"} <= set(found.undetermined)
    assert found.workload == "unknown"
