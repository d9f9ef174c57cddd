"""Dry runs of small programs whose traffic can be counted by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tracelens.capture import dry_run
from tracelens.capture.traffic import DryRun
from tracelens.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

HIDDEN = 8


def make_layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3)))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, HIDDEN, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def run(make: Callable[[], nn.Module], **options: Any) -> DryRun:
    def setup() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    return dry_run(lambda state: train_step(*state), setup=setup, **options)


def summary(result: DryRun) -> list[tuple[str, str | None, str | None, float, int | None]]:
    return [
        (row.primitive, row.dtype, row.phase, row.calls_per_step.mean, row.payload_bytes_per_step)
        for row in result.traffic
    ]


def test_ddp_reduces_every_gradient_once() -> None:
    result = run(lambda: nn.parallel.DistributedDataParallel(make_layers().cuda()), world_size=16)
    assert summary(result) == [("all_reduce", "fp32", "backward", 1, 3 * 64 * 4)]
    # 2 (n-1)/n of the gradients
    assert result.traffic[0].wire_bytes_per_step == 3 * 64 * 4 * 2 * 15 // 16


def test_fsdp2_gathers_forward_and_backward_and_says_in_which_module() -> None:
    def make() -> nn.Module:
        model = make_layers()
        mesh = init_device_mesh("cuda", (4,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    result = run(make, world_size=4, ranks=(3,))

    assert summary(result) == [
        ("all_gather", "fp32", "forward", 3, 3 * 256),
        ("all_gather", "fp32", "backward", 3, 3 * 256),
        ("reduce_scatter", "fp32", "backward", 3, 3 * 256),
        ("all_reduce", "fp32", "optimizer", 1, 3 * 4),
    ]
    forward = [call.module for call in result.ranks[0].calls if call.step == 2 and call.phase == "forward"]
    assert forward == ["0", "1", "2"]


def test_calls_of_each_size_and_of_each_group_are_summed_as_those_of_a_trace() -> None:
    def step(mesh: Any) -> None:
        for elements in (64, 64, 16):
            dist.all_reduce(torch.ones(elements), group=mesh.get_group("tp"))
        dist.all_gather_into_tensor(torch.empty(128), torch.ones(64), group=mesh.get_group("dp"))

    def setup() -> Any:
        return init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))

    measured = dry_run(step, setup=setup, world_size=8, ranks=(0, 5), steps=(1, 2)).measurement

    # an all-reduce among 4 sends 2 · 3/4 of its buffer, an all-gather among 2 one half of what it gathers
    for rank, (tp, dp) in enumerate([("[[4,1]]@0", "[[2,4]]@0"), ("[[4,1]]@4", "[[2,4]]@1")]):
        own = [row for row in measured.sizes if row.rank_class == rank]
        assert [
            (row.group, row.primitive, row.from_bytes, row.to_bytes, row.calls_per_step.mean, row.wire_bytes_per_step)
            for row in own
        ] == [
            (dp, "all_gather", 512, 512, 1, 256),
            (tp, "all_reduce", 64, 64, 1, 96),
            (tp, "all_reduce", 256, 256, 2, 768),
        ]
        assert {(row.steps_used, row.busy_ns_per_step, row.calls_with_time) for row in own} == {(2, None, 0)}
        groups = {row.group: row for row in measured.group_time if row.rank_class == rank}
        assert {(name, row.calls_per_step, row.wire_bytes_per_step, row.calls) for name, row in groups.items()} == {
            (tp, 3, 864, 6),
            (dp, 1, 256, 2),
        }


def test_a_barrier_goes_by_the_word_that_it_has_in_a_trace() -> None:
    result = dry_run(lambda _: dist.barrier(), setup=lambda: None, world_size=2)
    assert [row.primitive for row in result.traffic] == ["other"]
    assert [row.primitive for row in result.measurement.sizes] == ["other"]


def test_tied_parameters_stay_tied_when_a_model_is_converted() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False))
        model[1].weight = model[0].weight
        model.to(torch.bfloat16)
        assert model[1].weight is model[0].weight
        return nn.parallel.DistributedDataParallel(nn.Sequential(_ToHalf(), model))

    assert summary(run(make, world_size=2)) == [("all_reduce", "bf16", "backward", 1, 64 * 2)]


class _ToHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16)


def test_counts_exchanged_before_an_all_to_all_agree_with_it() -> None:
    received: list[int] = []

    def step(_: None) -> None:
        send = torch.tensor([1, 2, 0, 5])
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        received.extend(receive.tolist())
        rows = torch.randn(8, HIDDEN)
        dist.all_to_all_single(torch.empty(8, HIDDEN), rows, receive.tolist(), send.tolist())

    result = dry_run(step, setup=lambda: None, world_size=4, ranks=(3,))
    assert received[:4] == [1, 2, 0, 5]
    # rank 3 keeps 5 of the 8 rows
    wires = [row.wire_bytes_per_step for row in result.traffic]
    assert wires == [3 * 8, 3 * HIDDEN * 4]


def test_real_tensors_let_values_decide_what_is_sent() -> None:
    def step(_: None) -> None:
        chosen = torch.eye(3).argmax(dim=1)
        dist.all_reduce(torch.ones(int(torch.bincount(chosen).sum())))

    result = dry_run(step, setup=lambda: None, world_size=2, fake_tensors=False)
    assert [row.payload_bytes_per_step for row in result.traffic] == [12]


def test_a_number_read_from_a_fake_tensor_is_zero() -> None:
    losses: list[float] = []

    def step(model: nn.Module) -> None:
        losses.append(model(torch.ones(1, HIDDEN)).sum().item())

    dry_run(step, setup=make_layers, world_size=2)
    assert set(losses) == {0.0}


def test_the_program_sees_the_rank_that_it_is() -> None:
    seen: list[tuple[int, int]] = []
    dry_run(
        lambda _: seen.append((dist.get_rank(), dist.get_world_size())),
        setup=lambda: dist.init_process_group("nccl"),
        world_size=64,
        ranks=(0, 63),
        steps=(0, 0),
    )
    assert seen == [(0, 64), (63, 64)]
    assert not dist.is_initialized()


def test_groups_carry_the_names_of_their_mesh() -> None:
    def setup() -> Any:
        return init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))

    def step(mesh: Any) -> None:
        dist.all_reduce(torch.ones(1), group=mesh.get_group("tp"))
        dist.all_reduce(torch.ones(1), group=mesh.get_group("dp"))

    result = dry_run(step, setup=setup, world_size=8, ranks=(5,))
    found = {(group.descriptions, group.ranks, group.mesh) for group in result.groups}
    assert found == {(("mesh_tp",), (4, 5, 6, 7), ((4, 1),)), (("mesh_dp",), (1, 5), ((2, 4),))}


def test_a_pipeline_stage_learns_its_shapes_from_stages_that_run_before_it() -> None:
    entered: list[int] = []

    def setup() -> Any:
        rank = dist.get_rank()
        entered.append(rank)
        # widths 8 -> 16 -> 32 -> 64: no stage takes what it gives
        stage = PipelineStage(nn.Linear(8 << rank, 16 << rank), rank, 3, torch.device("cpu"))
        return Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, y: out.sum())

    def step(schedule: Any) -> None:
        batch = torch.randn(4, 8)
        inputs = (batch,) if dist.get_rank() == 0 else ()
        schedule.step(*inputs, **({"target": batch} if dist.get_rank() == 2 else {}))

    result = dry_run(step, setup=setup, world_size=3, ranks=(2,))

    # rank 2 waits for 1, and 1 for 0
    assert entered == [2, 1, 0, 1, 2]
    payloads = {(row.primitive, row.calls_per_step.mean, row.payload_bytes_per_step) for row in result.traffic}
    assert payloads == {("recv", 4, 4 * 32 * 4), ("send", 4, 4 * 32 * 4)}


def test_ranks_outside_the_world_are_refused() -> None:
    with pytest.raises(UsageError, match="rank 8 is not in a world of 8"):
        dry_run(lambda _: None, setup=lambda: None, world_size=8, ranks=(8,))


def test_a_program_that_asks_for_another_world_is_refused() -> None:
    with pytest.raises(UsageError, match="asks for a world size of 4"):
        dry_run(
            lambda _: None,
            setup=lambda: dist.init_process_group("nccl", world_size=4, rank=0),
            world_size=8,
        )
    assert not dist.is_initialized()


def test_an_error_of_the_step_is_the_callers_own() -> None:
    def step(_: None) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dry_run(step, setup=lambda: None, world_size=2)
    assert not dist.is_initialized()


def test_every_gpu_call_of_a_script_has_an_answer() -> None:
    def step(_: None) -> None:
        torch.cuda.set_device(1)
        torch.cuda.synchronize()
        with torch.autocast("cuda", torch.bfloat16):
            out = nn.Linear(HIDDEN, HIDDEN, device="cuda:1")(torch.ones(1, HIDDEN).cuda())
        dist.all_reduce(out.detach())

    result = dry_run(step, setup=lambda: None, world_size=2)
    assert Counter(row.dtype for row in result.traffic) == {"bf16": 1}


def test_a_gpu_may_be_named_by_its_number() -> None:
    def setup() -> nn.Module:
        return nn.parallel.DistributedDataParallel(make_layers().to(3), device_ids=[3], output_device=3)

    def step(model: nn.Module) -> None:
        batch = torch.ones(2, HIDDEN).pin_memory().to(3, non_blocking=True) + torch.zeros(1, device=3)
        assert torch.device(3).type == "cpu"
        model(batch).sum().backward()

    result = dry_run(step, setup=setup, world_size=8, ranks=(3,))
    assert summary(result) == [("all_reduce", "fp32", "backward", 1, 3 * 64 * 4)]
