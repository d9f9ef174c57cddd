"""Ranks on one timeline, whose waits, clocks and loads are known because they were put there.

A rank computes and then calls; a collective begins on each rank when it gets there and ends on all of them `transfer`
after the last one came. Every rank writes times on a clock of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tests.measurement.build import group as make_group
from tracelens import intervals
from tracelens.summary import FRAMES, LocalGroup, RankSummary, StepSpan, SummaryHead
from tracelens.trace.timeline import cut_segments

US = 1_000
BASE_NS = 1_700_000_000_000_000_000
"""Times since the epoch, so that a float on the way would lose ns."""


@dataclass
class Rank:
    """One rank as it goes along."""

    rank: int
    clock_ns: int = 0
    """How far its clock is ahead."""
    now_ns: int = BASE_NS
    step: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    compute: list[dict[str, Any]] = field(default_factory=list)

    def work(self, ns: int, *, thread: int = 0) -> None:
        """Compute, launched after the last call by a thread (0 is the main one)."""
        self.compute.append(
            {
                "after_call": len(self.calls) - 1 if self.calls else None,
                "thread": thread,
                "step": self.step,
                "start_ns": self.now_ns + self.clock_ns,
                "end_ns": self.now_ns + ns + self.clock_ns,
                "busy_ns": ns,
                "matmul_ns": ns,
                "kernels": 1,
            }
        )
        self.now_ns += ns

    def call(self, start_ns: int, end_ns: int, **fields: Any) -> None:
        """A call with a kernel of its own."""
        number = len(self.calls)
        self.calls.append(self._call(number, **fields) | self._times(start_ns, end_ns))
        self.kernels.append(self._kernel(len(self.kernels), number, start_ns, end_ns))
        self.links.append({"kernel": len(self.kernels) - 1, "call": number, "link": "launch"})
        self.now_ns = end_ns

    def batch(self, start_ns: int, end_ns: int, parts: Sequence[dict[str, Any]]) -> None:
        """Several calls that one kernel serves."""
        first = len(self.calls)
        for part in parts:
            number = len(self.calls)
            self.calls.append(self._call(number, **part) | self._times(start_ns, end_ns))
            self.links.append({"kernel": len(self.kernels), "call": number, "link": "position"})
        self.kernels.append(self._kernel(len(self.kernels), first, start_ns, end_ns))
        self.now_ns = end_ns

    def _call(self, number: int, **fields: Any) -> dict[str, Any]:
        usual = {
            "call": number, "primitive": "all_reduce", "dtype": "bf16", "group": 0, "group_size": None,
            "step": self.step, "thread": 0, "issue_ns": self.now_ns + self.clock_ns + number, "kernels": 1,
            "stream": 20, "payload_bytes": 1 << 20, "wire_bytes": float(1 << 20), "evidence": "metadata",
        }  # fmt: skip
        return usual | {"issue_end_ns": usual["issue_ns"]} | fields

    def _times(self, start_ns: int, end_ns: int) -> dict[str, int]:
        start, end = start_ns + self.clock_ns, end_ns + self.clock_ns
        return {"launch_ns": start - 5 * US, "gpu_start_ns": start, "gpu_end_ns": end}

    def _kernel(self, number: int, owner: int, start_ns: int, end_ns: int) -> dict[str, Any]:
        start, end = start_ns + self.clock_ns, end_ns + self.clock_ns
        return {
            "kernel": number, "name": "ncclDevKernel", "start_ns": start, "end_ns": end, "launch_ns": start - 5 * US,
            "step": self.step, "stream": 20, "device": 0, "owner": owner,
        }  # fmt: skip

    def summary(self, groups: Sequence[LocalGroup], *, steps: Sequence[int] = (3,), **head: Any) -> RankSummary:
        """What a reader would make of it."""
        computing = intervals.union([c["start_ns"] for c in self.compute], [c["end_ns"] for c in self.compute])
        sizes = {index: local.size for index, local in enumerate(groups)}
        calls = [call | {"group_size": sizes[call["group"]]} for call in self.calls]
        rows = {
            "calls": calls, "kernels": self.kernels, "links": self.links, "compute": self.compute,
        }  # fmt: skip
        frames = {name: pl.DataFrame(rows.get(name, []), schema=schema) for name, schema in FRAMES.items()}
        frames["segments"] = cut_segments(frames["kernels"], computing)
        windows = tuple(StepSpan(number=n, cpu_start_ns=BASE_NS, cpu_end_ns=BASE_NS) for n in steps)
        told: dict[str, Any] = {
            "path": f"rank{self.rank}.json", "bytes": 1, "events": 1, "rank": self.rank, "rank_source": "metadata",
            "world_size": len(groups[0].ranks or ()), "backend": "nccl", "steps": windows, "groups": tuple(groups),
            "start_ns": BASE_NS + self.clock_ns - 1000 * US,
        }  # fmt: skip
        return RankSummary(head=SummaryHead(**told | head), **frames)


def meet(ranks: Sequence[Rank], transfer_ns: int, **fields: Any) -> None:
    """A collective of these ranks: it ends `transfer_ns` after the last one arrived."""
    end = max(rank.now_ns for rank in ranks) + transfer_ns
    for rank in ranks:
        rank.call(rank.now_ns, end, **fields)


def message(source: Rank, target: Rank, transfer_ns: int, **fields: Any) -> None:
    """A message: both kernels end `transfer_ns` after the later of the two was there."""
    end = max(source.now_ns, target.now_ns) + transfer_ns
    source.call(source.now_ns, end, primitive="send", peer=target.rank, **fields)
    target.call(target.now_ns, end, primitive="recv", peer=source.rank, **fields)


def world(size: int, *, clocks: Sequence[int] | None = None) -> tuple[list[Rank], list[LocalGroup]]:
    """Ranks of one group."""
    offsets = clocks or [0] * size
    return [Rank(rank, clock_ns=offsets[rank]) for rank in range(size)], [make_group("0", range(size), "default_pg")]
