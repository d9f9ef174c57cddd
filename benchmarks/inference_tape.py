"""Summaries written call by call, for schedules that no code at hand can be run for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.results import RanksSource
from tracelens.summary import CALLS, COMPUTE, FRAMES, LocalGroup, RankSummary, StepSpan, SummaryHead

_CALL_NS = 1_000_000
_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}


class Tape:
    """One step of one rank: calls in order, with the compute between them.

    Args:
        rank: global rank.
        world: ranks of the job.
        groups: ranks of each group by its description, the rank's own groups only.
    """

    def __init__(self, rank: int, world: int, groups: Mapping[str, Sequence[int]]) -> None:
        self.rank, self.world = rank, world
        self.groups = {name: tuple(ranks) for name, ranks in groups.items()}
        self._calls: list[dict[str, object]] = []
        self._work: list[tuple[int, bool, int]] = []

    def call(  # noqa: PLR0913 - all named, a call has as many sides
        self,
        primitive: str,
        group: str,
        elements: int,
        *,
        dtype: str = "bf16",
        phase: str | None = "forward",
        name: str | None = None,
        peer: int | None = None,
        splits: Sequence[int] | None = None,
    ) -> None:
        """Issue a call; `elements` is the full buffer. Groups of one rank send nothing and are left out."""
        size = len(self.groups[group])
        if size == 1:
            return
        shard = elements // size if primitive in ("all_gather", "reduce_scatter") else elements
        index = len(self._calls)
        self._calls.append(
            {
                "call": index,
                "primitive": primitive,
                "collective": name or _NAMES[primitive],
                "dtype": dtype,
                "group": list(self.groups).index(group),
                "group_size": size,
                "step": 0,
                "phase": phase,
                "thread": int(phase == "backward"),
                "issue_ns": index * _CALL_NS,
                "issue_end_ns": index * _CALL_NS + 1,
                "kernels": 1,
                "ordinal": index,
                "peer": peer,
                "in_elements": shard if primitive == "all_gather" else elements,
                "out_elements": shard if primitive == "reduce_scatter" else elements,
                "in_split_list": None if splits is None else list(splits),
                "out_split_list": None if splits is None else list(splits),
                "evidence": "metadata",
            }
        )

    def compute(self, matmul_ns: int, *, backward: bool = False) -> None:
        """Matrix products launched now, by the main thread or by autograd's."""
        self._work.append((len(self._calls) - 1, backward, matmul_ns))

    def summary(self) -> RankSummary:
        """What a trace of this step would be read into."""
        frames = {name: pl.DataFrame(schema=schema) for name, schema in FRAMES.items()}
        rows = [tuple(call.get(name) for name in CALLS) for call in self._calls]
        frames["calls"] = pl.DataFrame(rows, schema=CALLS, orient="row")
        frames["compute"] = self._compute()
        head = SummaryHead(
            path="tape",
            bytes=0,
            events=len(self._calls),
            rank=self.rank,
            rank_source="metadata",
            world_size=self.world,
            backend="nccl",
            steps=(StepSpan(number=1, cpu_start_ns=0, cpu_end_ns=(len(self._calls) + 1) * _CALL_NS),),
            groups=tuple(
                LocalGroup(
                    name=str(number),
                    description=description,
                    size=len(ranks),
                    ranks=ranks,
                    ranks_source=RanksSource.metadata,
                )
                for number, (description, ranks) in enumerate(self.groups.items())
            ),
        )
        return RankSummary(head=head, **frames)

    def _compute(self) -> pl.DataFrame:
        rows: dict[tuple[int, bool], dict[str, int | None]] = {}
        for number, (after, backward, matmul_ns) in enumerate(self._work):
            time = (after + 1) * _CALL_NS + number + 1
            row = rows.setdefault(
                (after, backward),
                {"after_call": None if after < 0 else after, "thread": int(backward), "step": 0, "start_ns": time}
                | {"end_ns": time, "busy_ns": 0, "matmul_ns": 0, "kernels": 0},
            )
            row["end_ns"] = time
            for column, amount in (("busy_ns", matmul_ns), ("matmul_ns", matmul_ns), ("kernels", 1)):
                row[column] = (row[column] or 0) + amount
        return pl.DataFrame(list(rows.values()), schema=COMPUTE)
