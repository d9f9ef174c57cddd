"""Run a layout as ranks of a world that does not exist and make summaries of what it would send (needs torch)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
import torch

from benchmarks.inference_layouts import Layout, Program
from tracelens.capture.calls import Call, CallObserver
from tracelens.capture.dryrun import Rehearsal
from tracelens.capture.fakeworld import FakeWorld, fake_world
from tracelens.collectives import DTYPES, Primitive
from tracelens.results import Phase, RanksSource
from tracelens.summary import CALLS, COMPUTE, FRAMES, SHAPES, LocalGroup, RankSummary, StepSpan, SummaryHead

_CALL_NS = 1_000_000


class PlainTracker:
    """Says only whether the optimizer runs.

    The module tracker of `tracelens.capture` hooks into autograd, which schedules that split backward do not bear.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.in_optimizer = False

    def place(self, call: Call) -> tuple[int | None, Phase | None, str | None]:
        """Step, phase and module of a call that is issued now."""
        return self.step, Phase.optimizer if self.in_optimizer else None, None


class Recorder(Rehearsal):
    """Notes collectives, and the matrix products between them."""

    def __init__(self, tracker: Any) -> None:
        super().__init__(tracker)
        self.products: list[tuple[int, bool, tuple[int, int, int]]] = []
        self.in_backward: list[bool] = []
        self.counting = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As the base, counting products by what they multiply."""
        if self.counting and func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            a, b = args[-2:]
            backward = torch._C._current_graph_task_id() != -1
            self.products.append((len(self.calls), backward, (a.shape[0], a.shape[1], b.shape[1])))
        before = len(self.calls)
        result = CallObserver.__torch_dispatch__(self, func, types, args, kwargs)  # tensors are real here
        if len(self.calls) > before:
            self.in_backward.append(torch._C._current_graph_task_id() != -1)
        return result


def run_layout(layout: Layout, *, ranks: Sequence[int] | None = None) -> list[RankSummary]:
    """The summaries of some ranks of a layout (default: one of each stage)."""
    return [_run_rank(layout, rank) for rank in (ranks if ranks is not None else layout.ranks())]


def _run_rank(layout: Layout, rank: int) -> RankSummary:
    torch.manual_seed(0)
    tracker = PlainTracker()
    world = FakeWorld(world_size=layout.world, rank=rank, fake_tensors=False)
    with fake_world(world), Recorder(tracker) as recorder:
        program = Program(layout)
        program.optimizer.register_step_pre_hook(lambda *_: setattr(tracker, "in_optimizer", True))
        program.optimizer.register_step_post_hook(lambda *_: setattr(tracker, "in_optimizer", False))
        tracker.step = 0
        program.step()
        begin = len(recorder.calls)
        recorder.counting = True
        tracker.step = 1
        program.step()
    calls, backward = recorder.calls[begin:], recorder.in_backward[begin:]
    products = [(at - begin, late, shape) for at, late, shape in recorder.products]
    return summary_of(calls, backward, products, rank=rank, world=layout.world)


def summary_of(
    calls: Sequence[Call],
    backward: Sequence[bool],
    products: Sequence[tuple[int, bool, tuple[int, int, int]]],
    *,
    rank: int,
    world: int,
) -> RankSummary:
    """Calls and products of one step in the form of a summary, as a trace of it would give."""
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    for call in calls:
        groups.setdefault((call.group.name, call.group.ranks), len(groups))
    descriptions = {(c.group.name, c.group.ranks): c.group.description for c in calls}
    # products at n were made before call n
    busy = [at - 0.5 for at, late, _ in products if late] + [float(at) for at, late in enumerate(backward) if late]
    bounds = (min(busy), max(busy)) if busy else None
    rows = [
        _row(i, call, bounds, groups, late=late) for i, (call, late) in enumerate(zip(calls, backward, strict=True))
    ]
    frames = {name: pl.DataFrame(schema=schema) for name, schema in FRAMES.items()}
    frames["calls"] = pl.DataFrame(rows, schema=CALLS, orient="row")
    frames["compute"] = _compute(products)
    frames["shapes"] = _shapes(products)
    end = (len(calls) + 1) * _CALL_NS
    head = SummaryHead(
        path="dry run",
        bytes=0,
        events=len(calls),
        rank=rank,
        rank_source="metadata",
        world_size=world,
        backend="nccl",
        steps=(StepSpan(number=1, cpu_start_ns=0, cpu_end_ns=end),),
        groups=tuple(
            LocalGroup(
                name=name,
                description=descriptions[name, ranks],
                size=len(ranks),
                ranks=ranks,
                ranks_source=RanksSource.metadata,
            )
            for name, ranks in groups
        ),
    )
    return RankSummary(head=head, **frames)


def _row(
    index: int, call: Call, bounds: tuple[float, float] | None, groups: dict[Any, int], *, late: bool
) -> tuple[object, ...]:
    p2p = call.primitive in (Primitive.send, Primitive.recv)
    filled: dict[str, object] = {
        "call": index,
        "primitive": call.primitive.value,
        "collective": call.name,
        "dtype": DTYPES[call.dtype][0] if call.dtype else None,
        "group": groups[call.group.name, call.group.ranks],
        "group_size": len(call.group.ranks),
        "step": 0,
        "phase": _phase(index, call, bounds, late=late, p2p=p2p),
        "thread": 1 if late else 0,
        "issue_ns": index * _CALL_NS,
        "issue_end_ns": index * _CALL_NS + 1,
        "kernels": 1,
        "ordinal": index,
        "peer": call.peer if p2p else None,
        "in_elements": call.in_elements,
        "out_elements": call.out_elements,
        "in_split_list": list(call.in_splits) or None,
        "out_split_list": list(call.out_splits) or None,
        "evidence": "metadata",
    }
    return tuple(filled.get(name) for name in CALLS)


def _phase(index: int, call: Call, bounds: tuple[float, float] | None, *, late: bool, p2p: bool) -> str | None:
    """As the trace reader tells phases: by autograd's thread, the optimizer, and the bounds of backward."""
    if late:
        return "backward"
    if call.phase is not None and call.phase.value == "optimizer":
        return "optimizer"
    if bounds is None:
        return None
    if index > bounds[1]:
        return "optimizer"
    return None if p2p and index >= bounds[0] else "forward"


def _compute(products: Sequence[tuple[int, bool, tuple[int, int, int]]]) -> pl.DataFrame:
    """Products between two calls by thread, with start and end in the order of issue."""
    rows: dict[tuple[int, bool], dict[str, int | None]] = {}
    for number, (at, late, (m, k, n)) in enumerate(products):
        time = at * _CALL_NS + number
        row = rows.setdefault(
            (at - 1, late),
            {
                "after_call": None if at < 1 else at - 1,
                "thread": int(late),
                "step": 0,
                "start_ns": time,
                "end_ns": time,
                "busy_ns": 0,
                "matmul_ns": 0,
                "kernels": 0,
            },
        )
        work = max(1, m * k * n // 1000)
        row |= {
            "end_ns": time,
            "busy_ns": (row["busy_ns"] or 0) + work,
            "matmul_ns": (row["matmul_ns"] or 0) + work,
            "kernels": (row["kernels"] or 0) + 1,
        }
    return pl.DataFrame(list(rows.values()), schema=COMPUTE)


def _shapes(products: Sequence[tuple[int, bool, tuple[int, int, int]]]) -> pl.DataFrame:
    counted = Counter(shape for *_, shape in products)
    rows = [
        {"operator": "aten::mm", "input_dims": f"[[{m},{k}],[{k},{n}]]", "count": count}
        for (m, k, n), count in counted.items()
    ]
    return pl.DataFrame(rows, schema=SHAPES)
