"""Training, serving and benchmarks are told apart, from every rank alone and from all, without a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from benchmarks.inference_megatron import Megatron, dualpipe, serving
from benchmarks.inference_tape import Tape
from tracelens.inference.infer import infer
from tracelens.summary import COMPUTE, RankSummary
from tracelens.trace.summarize import summarize

if TYPE_CHECKING:
    from benchmarks.inference_layouts import Layout

CHECKOUT = Path(__file__).resolve().parents[2]


def _workloads(summaries: list[RankSummary]) -> set[str]:
    """What all ranks and what each alone are taken for."""
    return {infer(ranks, blind=True).workload for ranks in (summaries, *([s] for s in summaries))}


def _layouts(*, trains: bool) -> list[Layout]:
    layouts = pytest.importorskip("benchmarks.inference_layouts")
    models = pytest.importorskip("benchmarks.inference_models")
    common = {"data": "none", "trains": trains, "sizes": models.Sizes(layers=4, kv_heads=8)}
    return [
        layouts.Layout("1f1b", pp=4, schedule="1F1B", microbatches=6, **common),
        layouts.Layout("1f1b of two", pp=2, schedule="1F1B", microbatches=4, **common),
        layouts.Layout("gpipe", pp=4, schedule="GPipe", microbatches=4, **common),
        layouts.Layout("interleaved", pp=2, vp=2, schedule="Interleaved1F1B", microbatches=4, **common),
        layouts.Layout("1f1b tp", pp=2, tp=2, sp=False, schedule="1F1B", microbatches=4, **common),
        layouts.Layout("tp", tp=8, sp=False, **common),
        layouts.Layout("tp sp", tp=2, **common),
    ]


@pytest.mark.parametrize("name", ["pp", "1f1b", "interleaved"])
def test_recorded_pipelines_without_data_parallelism_are_training_from_every_rank(name: str) -> None:
    folder = CHECKOUT / "fixtures" / "toys" / name
    assert _workloads([summarize(path) for path in sorted(folder.glob("rank*.json.gz"))]) == {"training"}


@pytest.mark.torch
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("trains", [True, False], ids=["training", "forward only"])
def test_pipelines_and_tensor_parallelism_of_torch_without_data_parallelism(number: int, trains: bool) -> None:
    run_layout = pytest.importorskip("benchmarks.inference_dryrun").run_layout
    layout = _layouts(trains=trains)[number]
    found = _workloads(run_layout(layout))
    assert found == {"training"} if trains else found <= {"inference", "benchmark"}, layout.name


@pytest.mark.torch
def test_a_v_that_splits_backward_is_training() -> None:
    layouts, dryrun = (pytest.importorskip(f"benchmarks.inference_{name}") for name in ("layouts", "dryrun"))
    sizes = pytest.importorskip("benchmarks.inference_models").Sizes(layers=4)
    layout = layouts.Layout("v", pp=2, vp=2, schedule="ZBVZeroBubble", microbatches=4, data="none", sizes=sizes)
    assert _workloads(dryrun.run_layout(layout)) == {"training"}


@pytest.mark.parametrize("layout", [Megatron(pp=4), Megatron(pp=2), Megatron(pp=4, vp=2, microbatches=8)], ids=str)
def test_pipelines_of_megatron_without_data_parallelism_are_training(layout: Megatron) -> None:
    assert _workloads(layout.summaries()) == {"training"}


def test_messages_that_come_back_beside_two_threads_of_compute_are_gradients() -> None:
    assert _workloads(dualpipe(4, 12)[0]) == {"training"}


def _stages(*, returns: bool) -> list[RankSummary]:
    """Two interleaved stages of two ranks whose calls have no phase, forward only or with gradients."""
    first, last = (Tape(rank, 2, {"default_pg": range(2)}) for rank in (0, 1))
    for _ in range(4):
        for tape, way, peer in ((first, "send", 1), (last, "recv", 0)) * 2 + ((first, "recv", 1), (last, "send", 0)):
            tape.compute(100)
            tape.call(way, "default_pg", 4096, phase=None, peer=peer)
    for _ in range(4 if returns else 0):
        for tape, way, peer in ((first, "recv", 1), (last, "send", 0)) * 2 + ((first, "send", 1), (last, "recv", 0)):
            tape.compute(200, backward=True)
            tape.call(way, "default_pg", 4096, phase=None, peer=peer)
    return [first.summary(), last.summary()]


@pytest.mark.parametrize("returns", [True, False])
def test_without_phases_a_gradient_comes_back_for_every_activation(returns: bool) -> None:
    assert _workloads(_stages(returns=returns)) == {"training" if returns else "inference"}


def test_messages_alone_leave_it_unknown() -> None:
    bare = [replace(s, compute=pl.DataFrame(schema=COMPUTE)) for s in _stages(returns=True)]
    assert _workloads(bare) == {"unknown"}


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 4), (4, 2), (8, 1)])
def test_served_layers_are_inference_even_where_the_window_is_short(tp: int, pp: int) -> None:
    assert _workloads(serving(tp, pp, layers=2)[0]) == {"inference"}


def test_a_probe_of_bandwidth_is_a_benchmark() -> None:
    tape = Tape(0, 8, {"default_pg": range(8)})
    for size in (1 << 10, 1 << 20, 1 << 24):
        tape.call("all_reduce", "default_pg", size, phase=None)
    assert _workloads([tape.summary()]) == {"benchmark"}
