"""Dry runs against what the same frameworks sent when others recorded them: `../shared/traces/framework`.

The totals per group and primitive must be equal in every call and byte.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

from tests.capture.llama import Block, Llama, cut, shard
from tracelens.capture import dry_run

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

Shape = dict[str, Any]
Totals = dict[tuple[tuple[int, ...], str], tuple[float, int, int]]
"""(ranks of the group, primitive) to (calls, payload bytes, wire bytes) per step."""


class Trained:
    """A model, its optimizer, and one step of training it."""

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.model, self.shape = model, shape
        self.optimizer = torch.optim.AdamW(model.parameters())

    def step(self) -> None:
        tokens = torch.randint(0, self.shape["vocab"], (self.shape["micro_batch"], self.shape["seq"]))
        logits = self.model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        if self.shape["grad_clip"]:
            self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _clip(self) -> None:
        if isinstance(self.model, FullyShardedDataParallel):
            self.model.clip_grad_norm_(1.0)
            return
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters()])
        if isinstance(norm, DTensor):
            norm.full_tensor()


def _ddp(shape: Shape) -> Trained:
    trained = Trained(nn.parallel.DistributedDataParallel(Llama(shape), bucket_cap_mb=25), shape)
    plain_step = trained.step

    def step_with_loss() -> None:
        plain_step()
        dist.all_reduce(torch.ones(1))

    trained.step = step_with_loss  # type: ignore[method-assign]
    return trained


def _fsdp1(shape: Shape) -> Trained:
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model = FullyShardedDataParallel(
        Llama(shape),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=half,
        device_id=torch.cuda.current_device(),
    )
    return Trained(model, shape)


def _fsdp2(shape: Shape) -> Trained:
    model = Llama(shape)
    shard(model, init_device_mesh("cuda", (8,), mesh_dim_names=("dp_shard",)))
    return Trained(model, shape)


def _hsdp(shape: Shape) -> Trained:
    model = Llama(shape)
    shard(model, init_device_mesh("cuda", (4, 16), mesh_dim_names=("dp_replicate", "dp_shard")))
    return Trained(model, shape)


def _tp(shape: Shape) -> Trained:
    model = Llama(shape).to(torch.bfloat16)
    cut(model, init_device_mesh("cuda", (8,), mesh_dim_names=("tp",)), sequence_parallel=False)
    return Trained(model, shape)


def _tp_and_fsdp(shape: Shape) -> Trained:
    mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp_shard", "tp"))
    model = Llama(shape)
    cut(model, mesh["tp"], sequence_parallel=True)
    shard(model, mesh["dp_shard"])
    return Trained(model, shape)


class ContextParallel(Trained):
    """As `Trained`, with the sequence cut over a mesh."""

    def __init__(self, model: nn.Module, shape: Shape, mesh: DeviceMesh) -> None:
        super().__init__(model, shape)
        self.mesh = mesh

    def step(self) -> None:
        tokens = torch.randint(0, self.shape["vocab"], (self.shape["micro_batch"], self.shape["seq"]))
        with context_parallel(self.mesh, buffers=[tokens], buffer_seq_dims=[1]):
            logits = self.model(tokens)
            functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _cp_and_fsdp(shape: Shape) -> ContextParallel:
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp_shard", "cp"))
    model = Llama(shape)
    shard(model, mesh["dp_shard", "cp"]._flatten("dp_shard_cp"))
    return ContextParallel(model, shape, mesh["cp"])


class Piped:
    """Some pipeline stages, and one step of training them."""

    def __init__(self, shape: Shape, stages: list[PipelineStage], schedule: Callable[..., Any]) -> None:
        self.shape, self.stages = shape, stages
        self.schedule = schedule(
            stages,
            shape["num_microbatches"],
            loss_fn=lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten()),
        )
        parameters = [p for stage in stages for p in stage.submod.parameters()]
        self.optimizer = torch.optim.AdamW(parameters)

    def step(self) -> None:
        size = (self.shape["num_microbatches"] * self.shape["micro_batch"], self.shape["seq"])
        tokens = torch.randint(0, self.shape["vocab"], size)
        inputs = (tokens,) if any(stage.is_first for stage in self.stages) else ()
        target = {"target": tokens} if any(stage.is_last for stage in self.stages) else {}
        self.schedule.step(*inputs, **target)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _pp_and_fsdp(shape: Shape) -> Piped:
    mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("pp", "dp_shard"))
    rank, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
    model = Llama(shape, range(2 * rank, 2 * rank + 2))
    shard(model, mesh["dp_shard"], reshard=False)
    stage = PipelineStage(model, rank, 4, torch.device("cpu"), group=group)
    return Piped(shape, [stage], lambda stages, m, **kw: Schedule1F1B(stages[0], m, **kw))


def _interleaved_and_tp(shape: Shape) -> Piped:
    mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("pp", "tp"))
    rank, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
    stages = []
    for layer in (rank, rank + 4):
        model = Llama(shape, range(layer, layer + 1)).to(torch.bfloat16)
        cut(model, mesh["tp"], sequence_parallel=False)
        stages.append(PipelineStage(model, layer, 8, torch.device("cpu"), group=group))
    return Piped(shape, stages, ScheduleInterleaved1F1B)


CASES: dict[str, Callable[[Shape], Any]] = {
    "ddp8": _ddp,
    "fsdp1_full8": _fsdp1,
    "fsdp2_8": _fsdp2,
    "hsdp_4x16": _hsdp,
    "cp4_allgather_dp2": _cp_and_fsdp,
    "tp8": _tp,
    "tp8sp_fsdp64": _tp_and_fsdp,
    "pp4_1f1b_dp2": _pp_and_fsdp,
    "pp4_interleaved_tp2": _interleaved_and_tp,
}


_LARGE = {"fsdp2_8", "hsdp_4x16", "tp8sp_fsdp64", "pp4_interleaved_tp2"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in _LARGE else []) for case in CASES]
)
def test_totals_equal_those_of_the_framework_trace(case: str, shared_traces: Path) -> None:
    shape = json.loads((shared_traces / "framework" / case / "truth.json").read_text(encoding="utf-8"))
    ranks = sorted({0, max(shape["emitted_ranks"])})

    result = dry_run(
        lambda trained: trained.step(),
        setup=lambda: CASES[case](shape),
        world_size=shape["world_size"],
        ranks=ranks,
    )

    groups = {group.id: group.ranks for group in result.groups}
    for rank in ranks:
        measured: Totals = defaultdict(lambda: (0, 0, 0))
        for row in result.traffic:
            if row.ranks == (rank,):
                key = groups[row.group or ""] or (), str(row.primitive)
                calls, payload, wire = measured[key]
                measured[key] = (
                    calls + row.calls_per_step.mean,
                    payload + (row.payload_bytes_per_step or 0),
                    wire + (row.wire_bytes_per_step or 0),
                )
        assert dict(measured) == _totals(shape["ranks"][str(rank)])


def _totals(truth: Shape) -> Totals:
    return {
        (tuple(group["ranks"]), primitive): (
            total["calls"],
            int(total["payload_bytes"]),
            round(total["sent_bytes_exact_splits"]),
        )
        for group in truth["groups"].values()
        for primitive, total in group["totals"].items()
    }
