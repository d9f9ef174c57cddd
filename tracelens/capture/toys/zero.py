"""All-reduce is reduce-scatter then all-gather, and ZeRO-1 puts the optimizer between the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.distributed as dist

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_values
from tracelens.collectives import Primitive


class Zero(Exercise):
    """Rank r holds the "gradient" 10 r + [0, 1, ..., 7]; the "optimizer" halves it."""

    name = "zero"
    title = "reduce-scatter + all-gather = all-reduce (DP against ZeRO-1)"
    layout: ClassVar = {"dp": WORLD_SIZE, "zero": 1}

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.gradient = 10.0 * self.rank + torch.arange(8.0)

    def step(self) -> Iterator[Check]:
        """Reduce the gradient both ways."""
        reduced = self.gradient.clone()
        dist.all_reduce(reduced)

        shard = torch.empty(2)
        dist.reduce_scatter_tensor(shard, self.gradient)

        updated = 0.5 * shard  # the optimizer of ZeRO-1: every rank updates what it owns
        gathered = torch.empty(8)
        dist.all_gather_into_tensor(gathered, updated)

        # 60 = 0 + 10 + 20 + 30, the first elements of the four ranks; the next ones are each 4 more
        sums = [60.0 + 4 * index for index in range(8)]
        yield check_values("all-reduce", reduced, sums)
        yield check_values("reduce-scatter, own part", shard, sums[2 * self.rank : 2 * self.rank + 2])
        yield check_values("all-gather, halved", gathered, [30.0, 32.0, 34.0, 36.0, 38.0, 40.0, 42.0, 44.0])
        yield check_values("halved all-reduce", 0.5 * reduced, gathered)

    def sent(self) -> list[Sent]:
        """One call of each, all of eight numbers."""
        primitives = (Primitive.all_reduce, Primitive.reduce_scatter, Primitive.all_gather)
        return [Sent.of([0, 1, 2, 3], primitive, calls=1, elements=8) for primitive in primitives]
