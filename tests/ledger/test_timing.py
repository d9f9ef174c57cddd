"""Time from bytes and operations, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracelens.errors import InputError, UsageError
from tracelens.ledger.cluster import Cluster, LinkSpeed, list_clusters, load_cluster
from tracelens.ledger.layout import Layout, Recompute
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.predict import predict
from tracelens.ledger.results import Ledger, TimeEstimate
from tracelens.ledger.work import count_passes

# round numbers: 100 TFLOP/s, memory and links that take no time unless a test slows them down
FREE = LinkSpeed(bytes_per_s=1e18, efficiency=1.0, latency_s=0.0)
IDEAL = Cluster(
    name="ideal",
    peak_flop_per_s=1e14,
    gemm_efficiency=1.0,
    attention_efficiency=1.0,
    memory_bytes_per_s=1e20,
    memory_efficiency=1.0,
    memory_bytes=80_000_000_000,
    nvlink=FREE,
    ib=FREE,
)
LLAMA = load_preset("llama3-8b")
WEIGHTS = 8_030_261_248 - 128256 * 4096 - 65 * 4096  # without embedding table and norms
ATTENTION = 12 * 32 * 8192 * 4096  # per token, the whole square


def timed(layout: Layout, cluster: Cluster = IDEAL) -> TimeEstimate:
    ledger: Ledger = predict(LLAMA, layout, cluster=cluster)
    assert ledger.time is not None
    return ledger.time


def test_compute_is_operations_over_the_peak() -> None:
    # backward of fused attention is 2.5 forwards, and half the square is computed: 12/3 · 3.5 / 2 per layer
    flop = 8192 * (6 * WEIGHTS + ATTENTION * 3.5 / 3 / 2)

    assert timed(Layout()).compute_seconds == pytest.approx(flop / 1e14, rel=1e-6)


def test_mfu_counts_six_operations_per_weight_and_the_whole_square() -> None:
    time = timed(Layout())

    assert time.model_flops == 8192 * (6 * WEIGHTS + ATTENTION)
    assert time.mfu == pytest.approx(time.model_flops / time.step_seconds / 1e14)


def test_full_recompute_adds_a_forward() -> None:
    passes = count_passes(Layout(recompute=Recompute.full, flash_attention=False))

    assert (passes.matrix, passes.attention, passes.memory) == (4.0, 4.0, 4.0)


def test_a_link_takes_latency_per_call_and_bytes_over_bandwidth() -> None:
    slow = LinkSpeed(bytes_per_s=100e9, efficiency=0.5, latency_s=1e-5)
    cluster = msgspec.structs.replace(IDEAL, nvlink=slow)
    ledger = predict(LLAMA, Layout(dp=8), cluster=cluster)
    assert ledger.time is not None
    row = next(row for row in ledger.rows if row.term == "dp.bucket0.reduce_scatter")
    time = next(time for time in ledger.time.terms if time.term == row.term)

    # one call over 8 ranks: three latencies, and the wire bytes over 50 GB/s
    assert time.link_seconds == pytest.approx(3e-5 + row.wire_bytes / 50e9)


@pytest.mark.parametrize(("overlapped", "share"), [("false", 1.0), ("true", 0.0)])
def test_what_the_framework_hides_is_not_exposed(overlapped: str, share: float) -> None:
    from tracelens.ledger.options import MegatronOptions

    options = MegatronOptions(overlap_grad_reduce=overlapped == "true")
    slow = LinkSpeed(bytes_per_s=100e9, efficiency=1.0, latency_s=0.0)
    time = timed(Layout(dp=8, options=options), msgspec.structs.replace(IDEAL, nvlink=slow))
    reduction = next(term for term in time.terms if term.term == "dp.bucket0.reduce_scatter")

    assert reduction.exposed_seconds == pytest.approx(share * reduction.link_seconds)


def test_a_pipeline_waits_its_bubble() -> None:
    time = timed(Layout(pp=4, num_microbatches=8))

    # (p-1)/m of the slowest stage's own time
    assert time.bubble_seconds == pytest.approx(3 / 8 * (time.compute_seconds + time.exposed_seconds), rel=0.01)
    assert time.step_seconds == pytest.approx(
        time.compute_seconds + time.exposed_seconds + time.bubble_seconds + time.optimizer_seconds
    )


def test_every_estimate_says_what_it_assumes() -> None:
    assert len(timed(Layout()).assumptions) >= 5


def test_presets_are_complete_and_ordered_by_generation() -> None:
    peaks = [load_cluster(name).peak_flop_per_s for name in ("a100", "h100", "h200", "b200")]

    assert list_clusters() == ("a100", "b200", "h100", "h200")
    assert peaks == sorted(peaks)


def test_a_cluster_can_be_a_file(tmp_path: Path) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(IDEAL)
    file = tmp_path / "mine.toml"
    links = {name: fields.pop(name) for name in ("nvlink", "ib")}
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in fields.items()]
    for name, link in links.items():
        lines += [f"[{name}]", *(f"{key} = {value!r}" for key, value in link.items())]
    file.write_text("\n".join(lines))

    assert load_cluster(str(file)) == IDEAL


def test_a_file_that_describes_no_cluster_says_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("name = 'x'\n")

    with pytest.raises(InputError, match="peak_flop_per_s"):
        load_cluster(str(file))


def test_the_textbook_has_no_time() -> None:
    with pytest.raises(UsageError, match="no time"):
        predict(LLAMA, Layout(framework="textbook"), cluster=IDEAL)  # type: ignore[arg-type]
