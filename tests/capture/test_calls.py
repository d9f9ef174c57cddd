"""What is noted of single collectives, in a fake world of four ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tracelens.capture.calls import Call
from tracelens.capture.dryrun import rehearse
from tracelens.capture.fakeworld import FakeWorld
from tracelens.capture.profiling import record_arguments
from tracelens.capture.steps import StepTracker
from tracelens.collectives import Primitive

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

RANK = 1


def noted(program: Callable[[], object]) -> Call:
    world = FakeWorld(world_size=4, rank=RANK, fake_tensors=False)
    (call,) = rehearse(lambda _: program(), world, StepTracker(), steps=(0, 0)).calls
    return call


def test_all_reduce_has_its_buffer_on_both_sides() -> None:
    call = noted(lambda: dist.all_reduce(torch.ones(6, dtype=torch.bfloat16)))
    assert (call.name, call.primitive, call.dtype) == ("allreduce", Primitive.all_reduce, "BFloat16")
    assert (call.in_elements, call.out_elements, call.payload_bytes) == (6, 6, 12)
    assert call.group.ranks == (0, 1, 2, 3)
    # 2 (n-1)/n of 12 bytes
    assert call.wire_bytes(RANK) == 18


def test_all_gather_counts_the_whole_output() -> None:
    call = noted(lambda: dist.all_gather_into_tensor(torch.empty(8), torch.ones(2)))
    assert (call.name, call.in_elements, call.out_elements) == ("_allgather_base", 2, 8)
    assert (call.payload_bytes, call.wire_bytes(RANK)) == (32, 24)


def test_reduce_scatter_counts_the_whole_input() -> None:
    call = noted(lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(8)))
    assert (call.name, call.in_elements, call.out_elements) == ("_reduce_scatter_base", 8, 2)
    assert (call.payload_bytes, call.wire_bytes(RANK)) == (32, 24)


def test_a_list_of_tensors_is_one_call() -> None:
    call = noted(lambda: dist.all_gather([torch.empty(2) for _ in range(4)], torch.ones(2)))
    assert (call.name, call.in_elements, call.out_elements) == ("all_gather", 2, 8)


def test_uneven_all_to_all_sends_its_splits_but_the_one_that_stays() -> None:
    # 8 rows of 2 int64; rank 1 keeps 3 of them
    call = noted(
        lambda: dist.all_to_all_single(
            torch.empty(6, 2, dtype=torch.int64),
            torch.ones(8, 2, dtype=torch.int64),
            output_split_sizes=[1, 3, 1, 1],
            input_split_sizes=[2, 3, 2, 1],
        )
    )
    assert (call.name, call.in_splits, call.out_splits) == ("all_to_allv", (2, 3, 2, 1), (1, 3, 1, 1))
    assert (call.payload_bytes, call.wire_bytes(RANK)) == (8 * 2 * 8, 5 * 2 * 8)


def test_peers_are_global_ranks() -> None:
    def program() -> None:
        dist.send(torch.ones(4), group_dst=1, group=dist.new_group([1, 3]))

    call = noted(program)
    assert (call.primitive, call.peer, call.group.ranks) == (Primitive.send, 3, (1, 3))
    assert call.wire_bytes(RANK) == 16


def test_recv_sends_nothing() -> None:
    call = noted(lambda: dist.recv(torch.empty(4), 0))
    assert (call.primitive, call.peer, call.payload_bytes, call.wire_bytes(RANK)) == (Primitive.recv, 0, 16, 0)


def test_functional_collectives_are_seen_once_under_their_name_on_nccl() -> None:
    call = noted(lambda: functional.all_gather_tensor(torch.ones(2, 3), 0, dist.group.WORLD).wait())
    assert (call.name, call.in_elements, call.out_elements) == ("allgather_into_tensor_coalesced", 6, 24)


def test_a_barrier_has_no_bytes() -> None:
    call = noted(dist.barrier)
    assert (call.primitive, call.dtype, call.payload_bytes) == (Primitive.barrier, None, 0)


def test_the_record_speaks_kinetos_words() -> None:
    records: list[dict[str, int | str]] = []

    def program() -> None:
        group = dist.new_group([1, 2], group_desc="mesh_tp")
        dist.broadcast(torch.ones(5, dtype=torch.int32), src=2, group=group)

    world = FakeWorld(world_size=4, rank=RANK, fake_tensors=False)

    def run(_: object) -> None:
        program()

    (call,) = rehearse(run, world, StepTracker(), steps=(0, 0)).calls
    records.append(record_arguments(call, sequence=7))
    assert records == [
        {
            "Collective name": "broadcast",
            "dtype": "Int",
            "In msg nelems": 5,
            "Out msg nelems": 5,
            "In split size": "[]",
            "Out split size": "[]",
            "Group size": 2,
            "Process Group Name": call.group.name,
            "Process Group Description": "mesh_tp",
            "Process Group Ranks": "[1, 2]",
            "Rank": 1,
            "Seq": 7,
            "Src Rank": 2,
        }
    ]
