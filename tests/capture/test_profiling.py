"""The capture on four gloo processes: DDP, FSDP2 over a mesh, and what each trace says of itself."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tracelens.capture import profile
from tracelens.capture.layout import layout_of_megatron
from tracelens.capture.processes import workers
from tracelens.errors import InputError, UsageError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

WORLD_SIZE, HIDDEN = 4, 8


def record(assignment: tuple[int, str, str], results: Any) -> None:
    """One rank: DDP, then FSDP2 over a 2 x 2 mesh, each recorded."""
    rank, store, folder = assignment
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD_SIZE), rank=rank, world_size=WORLD_SIZE)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(HIDDEN, HIDDEN, bias=False))
    with profile(f"{folder}/ddp", model={"hidden": HIDDEN}, layout={"dp": 4}) as profiler:
        _train(ddp, profiler)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "fsdp"))
    with profile(f"{folder}/hsdp", mesh=mesh) as profiler:
        _train(fully_shard(nn.Linear(HIDDEN, HIDDEN, bias=False), mesh=mesh), profiler)
    dist.barrier()
    dist.destroy_process_group()
    results.send(rank)


def _train(model: nn.Module, profiler: Any) -> None:
    for _ in range(3):
        model(torch.ones(2, HIDDEN)).sum().backward()
        profiler.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    assignments = [(rank, str(folder / "store"), str(folder)) for rank in range(WORLD_SIZE)]
    with workers(record, assignments, folder) as running:
        for worker in running:
            worker.receive(what="a rank")
    return folder


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def records(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e["args"] for e in trace["traceEvents"] if e["name"] == "tracelens::record_param_comms"]


@pytest.mark.parametrize("rank", range(WORLD_SIZE))
def test_each_rank_writes_its_own_file_with_two_steps(recorded: Path, rank: int) -> None:
    trace = read(recorded / "ddp" / f"rank{rank}.json.gz")
    assert trace["distributedInfo"]["rank"] == rank
    steps = [e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    assert sorted(set(steps)) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert not list((recorded / "ddp").glob(".*"))


def test_the_trace_says_model_and_layout(recorded: Path) -> None:
    assert read(recorded / "ddp" / "rank0.json.gz")["tracelens"] == {
        "schema": 1,
        "model": {"hidden": 8},
        "layout": {"dp": 4},
        "mesh": None,
    }


def test_calls_of_the_cxx_reducer_are_recorded_with_their_group(recorded: Path) -> None:
    gradients = [
        args for args in records(read(recorded / "ddp" / "rank1.json.gz")) if args["Collective name"] == "allreduce"
    ]
    assert [(a["In msg nelems"], a["dtype"], a["Process Group Ranks"]) for a in gradients] == [
        (64, "Float", "[0, 1, 2, 3]"),
        (64, "Float", "[0, 1, 2, 3]"),
    ]
    assert gradients[1]["Seq"] > gradients[0]["Seq"]


def test_a_mesh_gives_layout_and_group_names(recorded: Path) -> None:
    trace = read(recorded / "hsdp" / "rank3.json.gz")
    assert trace["tracelens"]["layout"] == {"dp_replicate": 2, "dp_shard": 2}
    dims = {dim["group"]: dim["dim"] for dim in trace["tracelens"]["mesh"]}
    assert {
        (dims[a["Process Group Name"]], a["Process Group Ranks"], a["Collective name"]) for a in records(trace)
    } == {
        ("fsdp", "[2, 3]", "_allgather_base"),
        ("fsdp", "[2, 3]", "_reduce_scatter_base"),
        ("replicate", "[1, 3]", "allreduce"),
    }


def test_a_loop_that_ends_too_soon_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no step was recorded"), profile(tmp_path / "traces"):
        pass
    assert not (tmp_path / "traces").exists()


def test_an_error_in_the_loop_leaves_no_trace(tmp_path: Path) -> None:
    def fail() -> None:
        with profile(tmp_path / "traces") as profiler:
            profiler.step()
            torch.ones(2).sum()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not (tmp_path / "traces").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        _record_three_steps(tmp_path / "file" / "traces")


def _record_three_steps(folder: Path) -> None:
    with profile(folder, layout={}) as profiler:
        for _ in range(3):
            torch.ones(2).sum()
            profiler.step()


def test_without_a_process_group_it_is_rank_zero_and_writes_no_records(tmp_path: Path) -> None:
    _record_three_steps(tmp_path)
    assert records(read(tmp_path / "rank0.json.gz")) == []


def test_degrees_come_from_megatrons_parallel_state(monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.ModuleType("megatron.core.parallel_state")
    degrees = {
        "get_tensor_model_parallel_world_size": 2,
        "get_pipeline_model_parallel_world_size": 4,
        "get_data_parallel_world_size": 8,
        "get_virtual_pipeline_model_parallel_world_size": None,
    }
    for getter, degree in degrees.items():
        setattr(state, getter, lambda degree=degree: degree)
    state.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    assert layout_of_megatron() == {"tp": 2, "pp": 4, "dp": 8}


def test_without_megatron_there_is_no_layout() -> None:
    assert layout_of_megatron() is None
