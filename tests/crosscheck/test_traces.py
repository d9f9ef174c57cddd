"""Our figures beside HTA's on real traces and on the project's own: equal, or explained to the last digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.crosscheck import compare_with_hta
from tracelens.crosscheck.compare import FileComparison, Verdict
from tracelens.crosscheck.faults import Fault
from tracelens.errors import InputError
from tracelens.trace.summarize import summarize

CHECKOUT = Path(__file__).resolve().parents[2]
TRACES = CHECKOUT.parent / "shared" / "traces"
HANDWRITTEN = CHECKOUT / "fixtures" / "handwritten"
EVERY = [*sorted(HANDWRITTEN.glob("*/*.json")), *sorted(TRACES.rglob("*.json.gz"))]

pytestmark = [pytest.mark.hta, pytest.mark.usefixtures("hta")]


def compare(path: Path) -> FileComparison:
    comparison = compare_with_hta([summarize(path)])
    assert [row for row in comparison.files[0].rows if row.verdict is Verdict.unexplained] == []
    return comparison.files[0]


def overlap(path: Path) -> tuple[float | None, float | None, list[Fault]]:
    row = next(row for row in compare(path).rows if row.figure == "communication overlapped %")
    return row.ours, row.hta, [step.fault for step in row.steps]


# Ours and HTA's overlap in percent, and what lies between them.
KNOWN = {
    "dlrm_8/worker0_step_12.1694128201545.pt.trace.json.gz": (4.5, 4.5, []),
    "dlrm_8/worker7_step_12.1694128201553.pt.trace.json.gz": (9.51, 9.51, []),
    "resnet_ddp2_a100/nccl_data.json.gz": (15.61, 14.31, [Fault.last_step, Fault.rounding]),
    "resnet_ddp8_mi300x/resnet_act_checkpoint.json.gz": (22.22, 22.45, [Fault.unseen_launch, Fault.rounding]),
    "megatron_tp2/9c44bd29b3f0_1375.1724066820235157909.pt.trace.json.gz": (38.9, 37.15, [Fault.rounding]),
    "moe_ep2_b200/ref_ep_moe_fwd.json.gz": (9.1, 8.01, [Fault.rounding]),
    "deepseek_v3_train/train.json.gz": (96.32, None, [Fault.names_only]),
    "nanogpt_sharded_dp8/rank0-chrome-trace.json.gz": (
        *(15.9, 21.37),
        [Fault.foreign_events, Fault.unseen_launch, Fault.last_step, Fault.rounding],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_overlap_on_real_traces(shared_traces: Path, name: str) -> None:
    assert overlap(shared_traces / name) == KNOWN[name]


@pytest.mark.parametrize(
    "name",
    [
        "all_reduce_half_hidden/rank0.json",
        "broken_absurd_times/rank0.json",
        "fault_05_kernels_shorter_than_a_microsecond/rank0.json",
        "fault_06_sync_events_are_no_compute/rank0.json",
        "fault_18_overlap_on_one_stream/rank0.json",
        "fault_19_kernels_at_time_zero/rank0.json",
        "gpu_lags_behind_cpu/rank0.json",
        "kernels_before_the_window/rank0.json",
        "memcpy_partly_exposed/rank0.json",
        "two_comm_streams/rank0.json",
    ],
)
def test_nothing_is_unexplained_on_our_own_traces(name: str) -> None:
    compare(HANDWRITTEN / name)


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_is_unexplained_on_any_trace(path: Path) -> None:
    try:
        summarize(path)
    except InputError:
        pytest.skip("refused by ourselves")
    compare(path)
