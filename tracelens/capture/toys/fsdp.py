"""FSDP2 through PyTorch's own `fully_shard`: with and without resharding, and over a 2 x 2 mesh (HSDP)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close
from tracelens.capture.toys.transformer import make_batch, make_transformer, next_token_loss
from tracelens.collectives import Primitive


class Fsdp2(Exercise):
    """Each unit of a small transformer sharded over all ranks; parameters dropped after the forward pass."""

    name = "fsdp2"
    title = "FSDP2, resharding after forward (ZeRO-3)"
    layout: ClassVar = {"dp_shard": WORLD_SIZE, "dp_replicate": 1, "zero": 3, "reshard_after_forward": True}

    def __init__(self) -> None:
        self.mesh = self.make_mesh()
        self.batch = make_batch(WORLD_SIZE)
        self.tokens = self.batch[dist.get_rank() :][:1]
        reference = make_transformer()
        next_token_loss(reference(self.batch), self.batch).backward()
        self.reference = dict(reference.named_parameters())
        self.model = make_transformer()
        for unit in self.model:
            fully_shard(unit, mesh=self.mesh, reshard_after_forward=bool(self.layout["reshard_after_forward"]))
        fully_shard(self.model, mesh=self.mesh)

    def make_mesh(self) -> DeviceMesh:
        """One dimension over all ranks."""
        return init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("dp_shard",))

    @property
    def shards(self) -> int:
        """Ranks that a parameter is cut over."""
        return int(self.layout["dp_shard"])

    def step(self) -> Iterator[Check]:
        """Forward and backward on own tokens; own part of every gradient against one process."""
        self.model.zero_grad()
        next_token_loss(self.model(self.tokens), self.tokens).backward()
        part = dist.get_rank() % self.shards
        for name, parameter in self.model.named_parameters():
            expected = self.reference[name].grad.chunk(self.shards)[part]
            yield check_close(f"gradient of {name}", parameter.grad.to_local(), expected, tolerance=1e-5)

    def sent(self) -> list[Sent]:
        """Per unit one all-gather forward, one backward if it was resharded, and one reduce-scatter."""
        first = dist.get_rank() // self.shards * self.shards
        group = list(range(first, first + self.shards))
        gathers = 2 if self.layout["reshard_after_forward"] else 1
        sizes = [sum(p.numel() for p in unit.parameters()) for unit in make_transformer()]
        return [
            Sent.total(group, Primitive.all_gather, calls=gathers * len(sizes), elements=gathers * sum(sizes)),
            Sent.total(group, Primitive.reduce_scatter, calls=len(sizes), elements=sum(sizes)),
        ]


class Fsdp2NoReshard(Fsdp2):
    """Parameters are kept from the forward to the backward pass: traffic of ZeRO-2."""

    name = "fsdp2-no-reshard"
    title = "FSDP2 without resharding (ZeRO-2's traffic)"
    layout: ClassVar = {"dp_shard": WORLD_SIZE, "dp_replicate": 1, "zero": 3, "reshard_after_forward": False}


class Hsdp(Fsdp2):
    """Sharded over pairs, replicated over the two pairs."""

    name = "hsdp"
    title = "HSDP on a 2 x 2 mesh: sharded in a pair, replicated across"
    layout: ClassVar = {"dp_shard": 2, "dp_replicate": 2, "zero": 3, "reshard_after_forward": True}

    def make_mesh(self) -> DeviceMesh:
        """Pairs of neighbours hold a copy together."""
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))

    def sent(self) -> list[Sent]:
        """As FSDP2 inside a pair, then an all-reduce of the shard across pairs, per unit."""
        rank = dist.get_rank()
        across = [rank % 2, rank % 2 + 2]
        sizes = [sum(p.numel() for p in unit.parameters()) // 2 for unit in make_transformer()]
        return [
            *super().sent(),
            Sent.total(across, Primitive.all_reduce, calls=len(sizes), elements=sum(sizes)),
        ]
