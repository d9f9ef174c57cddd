"""One process that believes to be a rank of a large job: a fake process group, fake tensors, no GPU."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tracelens.capture.devices import CpuForCuda, FlashAttention, Patch, device_patches
from tracelens.capture.stages import Shapes, stage_patches
from tracelens.errors import UsageError

_WORLD_NUMBERS = itertools.count(-2, -1)


class FakeWorld(msgspec.Struct, frozen=True, kw_only=True):
    """A job that does not exist, and which rank of it to be."""

    world_size: int
    rank: int
    gpus_per_node: int = 8
    fake_tensors: bool = True
    """Tensors without memory or values; False for code whose traffic depends on values, such as a router."""
    stage_shapes: Shapes = {}
    """What pipeline stages that ran before told of their outputs; this rank's are added."""

    @property
    def local_rank(self) -> int:
        """Rank inside the node."""
        return self.rank % self.gpus_per_node


@contextlib.contextmanager
def fake_world(world: FakeWorld) -> Iterator[None]:
    """Be a rank of `world` inside the block: CUDA means the CPU, every process group is fake.

    Raises:
        UsageError: a process group exists already, or the program asks for another world size.
    """
    if dist.is_initialized():
        raise UsageError(
            "a process group exists already", hint="run a dry run in a process of its own, without torchrun"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, _environment(world)))
        dist.init_process_group("fake", rank=world.rank, world_size=world.world_size, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        patches = [
            *device_patches(local_rank=world.local_rank, gpus_per_node=world.gpus_per_node),
            *_group_patches(world.world_size),
            *stage_patches(world.stage_shapes),
        ]
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value, create=True))
        stack.enter_context(CpuForCuda())
        if world.fake_tensors:
            stack.enter_context(FlashAttention())
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _environment(world: FakeWorld) -> dict[str, str]:
    """What torchrun would set (torch/distributed/run.py)."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(min(world.world_size, world.gpus_per_node)),
        "GROUP_RANK": str(world.rank // world.gpus_per_node),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _group_patches(world_size: int) -> list[Patch]:
    """Process groups and meshes as the program asks for them, but fake."""
    world_number = next(_WORLD_NUMBERS)
    real_new_group, real_mesh = dist.new_group, DeviceMesh.__init__
    real_object_to_tensor = dist.distributed_c10d._object_to_tensor

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return real_new_group(ranks, timeout, None, *args, **kwargs)

    def mesh(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_mesh(self, "cpu", *args, **kwargs)
        # DTensor caches by mesh: a mesh of an earlier world, equal but for its dead groups, must not be found
        self._thread_id = world_number

    def object_to_tensor(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return real_object_to_tensor(*args, **kwargs)

    return [
        (dist, "init_process_group", _checked_init(world_size)),
        (dist, "destroy_process_group", lambda *args, **kwargs: None),
        (dist, "new_group", new_group),
        (dist, "recv_object_list", _no_object),
        (dist.distributed_c10d, "_object_to_tensor", object_to_tensor),
        (DeviceMesh, "__init__", mesh),
    ]


def _checked_init(world_size: int) -> Callable[..., None]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("world_size", -1)
        if asked not in (-1, world_size):
            raise UsageError(
                f"the program asks for a world size of {asked}, the dry run is one of {world_size}",
                hint=f"use --world-size {asked}, or let the program read WORLD_SIZE",
            )

    return init_process_group


def _no_object(*args: Any, **kwargs: Any) -> None:
    raise UsageError(
        "the program waits for an object that another rank sends, which a dry run can't know",
        hint="let the program do without, where the backend is `fake`",
    )
