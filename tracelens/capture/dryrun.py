"""The collectives that real training code issues, without a GPU and without a second process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from tracelens.capture.answers import answer_locally
from tracelens.capture.calls import Call, CallObserver
from tracelens.capture.fakeworld import FakeWorld, fake_world
from tracelens.capture.stages import Shapes, run_with_stages
from tracelens.capture.steps import EnoughSteps, StepTracker
from tracelens.capture.traffic import DryRun, RankCalls
from tracelens.errors import Problem, Severity, UsageError


class Rehearsal(CallObserver):
    """Notes every collective and answers it on the spot."""

    def __init__(self, tracker: StepTracker) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As the base; what no parameter takes part in is computed with real values.

        So meshes, labels, masks and counts are what they are, and a number that the program reads from a fake
        tensor is zero.
        """
        if func is torch.ops.aten._local_scalar_dense.default and _is_fake(args[0]):
            return _SCALARS.get(args[0].dtype, 1 if not args[0].dtype.is_floating_point else 0.0)
        if func is torch.ops.aten.equal.default and _is_fake(args[0]):
            return True
        if FakeTensor not in types and self._stays_real(func, args, kwargs or {}):
            with unset_fake_temporarily():
                return super().__torch_dispatch__(func, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _stays_real(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether an operator without fake input computes: all but making floating or large tensors."""
        if any(isinstance(value, torch.Tensor) for value in tree_leaves((args, kwargs))):
            return True
        made = func(*args, **kwargs)
        return (
            isinstance(made, torch.Tensor)
            and not made.is_floating_point()
            and made.device.type == "cpu"
            and made.numel() <= _LARGEST_REAL_ELEMENTS
        )

    def on_call(self, call: Call, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Note the call with its place in the step; send nothing."""
        step, phase, module = self._tracker.place(call)
        self.calls.append(msgspec.structs.replace(call, step=step, phase=phase, module=module))
        return answer_locally(call, func, args, kwargs)


_SCALARS: dict[torch.dtype, Any] = {torch.bool: False}
_LARGEST_REAL_ELEMENTS = 1 << 24


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def dry_run(
    step_fn: Callable[[Any], object],
    *,
    setup: Callable[[], Any],
    world_size: int,
    ranks: Sequence[int] = (0,),
    steps: tuple[int, int] = (2, 2),
    fake_tensors: bool = True,
) -> DryRun:
    """Run a training step as a few ranks of a job that does not exist, and note what it would send.

    Args:
        step_fn: one training step; gets what `setup` returned.
        setup: builds model and optimizer; runs anew for each rank, inside the fake world.
        world_size: ranks of the pretended job.
        ranks: the ranks to be, one after the other.
        steps: first and last step that count, from 0. Those before only warm up: pipelines exchange shapes in
            their first step, and DDP rearranges its buckets in its second.
        fake_tensors: tensors without memory or values; False for code whose traffic depends on values, such
            as a router.

    Raises:
        UsageError: a rank outside the world, or a process group that exists already.
    """
    check_ranks(ranks, world_size)

    def run(tracker: StepTracker) -> None:
        state = setup()
        for step in range(steps[1] + 1):
            tracker.step = step
            step_fn(state)

    shapes: Shapes = {}

    def run_as(rank: int) -> RankCalls:
        world = FakeWorld(world_size=world_size, rank=rank, fake_tensors=fake_tensors, stage_shapes=shapes)
        return rehearse(run, world, StepTracker(counts=False), steps=steps)

    return DryRun(world_size=world_size, ranks=tuple(run_with_stages(run_as, rank) for rank in ranks))


def rehearse(
    program: Callable[[StepTracker], object], world: FakeWorld, tracker: StepTracker, *, steps: tuple[int, int]
) -> RankCalls:
    """Run a program as one rank of a fake world and return its calls.

    Args:
        program: what to run; may set the tracker's step.
        world: the rank to be.
        tracker: tells phase, module and step of each call.
        steps: first and last step that count. A program without any step, such as a benchmark of bare collectives,
            is one step as a whole; one that ends sooner counts its last step.
    """
    with fake_world(world), Rehearsal(tracker) as rehearsal, contextlib.suppress(EnoughSteps), tracker:
        program(tracker)
    calls = rehearsal.calls
    if all(call.step is None for call in calls):
        calls = [msgspec.structs.replace(call, step=0) for call in calls]
    seen = sorted({call.step for call in calls if call.step is not None})
    counted = tuple([step for step in seen if step >= steps[0]] or seen[-1:])
    return RankCalls(
        rank=world.rank,
        calls=tuple(calls),
        steps=counted,
        problems=tuple(_problems(world.rank, tracker.step, steps, counted)),
    )


def _problems(rank: int, last: int | None, asked: tuple[int, int], counted: Sequence[int]) -> Iterator[Problem]:
    """What is to be said of a program that did not take the steps that were asked for; `last` is the last it began."""
    if last is None:
        yield Problem(
            code="steps-not-found",
            severity=Severity.info,
            message=f"rank {rank} took no step of an optimizer after a module: all that it sent counts as one step",
            rank=rank,
        )
    elif last < asked[1]:
        used = f"{_range_of(counted)} counted" if counted else "nothing is sent"
        yield Problem(
            code="steps-missing",
            severity=Severity.warning,
            message=f"rank {rank} ended with step {last}, and {_range_of(asked)} asked for: {used}",
            rank=rank,
        )


def _range_of(steps: Sequence[int]) -> str:
    first, last = steps[0], steps[-1]
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def check_ranks(ranks: Sequence[int], world_size: int) -> None:
    """Raise `UsageError` unless every rank is one of the world."""
    if world_size < 1:
        raise UsageError(f"a world size of {world_size} is none", hint="use --world-size 1 or more")
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside or not ranks:
        raise UsageError(
            f"rank {outside[0]} is not in a world of {world_size}" if outside else "no rank given",
            hint=f"ranks run from 0 to {world_size - 1}",
        )
