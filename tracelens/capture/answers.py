"""What a collective gives in a fake world, where nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import _create_work_from_future

from tracelens.capture.calls import Call
from tracelens.collectives import Primitive


def answer_locally(call: Call, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a collective as if every other rank held what this one holds; nothing is sent.

    So an all-reduce keeps its input, an all-gather repeats the shard, and the counts that two ranks exchange
    before an uneven all-to-all agree with what they then send.
    """
    if func.namespace != "c10d":
        return func(*args, **kwargs)
    if call.primitive is Primitive.barrier and func._schema.name.endswith("monitored_barrier_"):
        return None
    outputs, inputs = args[0], args[1] if call.primitive in _TWO_BUFFERS else args[0]
    if call.primitive in _TWO_BUFFERS:
        _mirror(_flat(outputs), _flat(inputs))
    work = _finished_work(_flat(outputs))
    returns = func._schema.returns
    return work if len(returns) == 1 else (outputs, work)


_TWO_BUFFERS = frozenset(
    {
        Primitive.all_gather,
        Primitive.reduce_scatter,
        Primitive.all_to_all,
        Primitive.gather,
        Primitive.scatter,
    }
)


def _mirror(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Fill the outputs from the inputs, again and again until they are full."""
    with torch.no_grad():
        if not inputs:
            return
        for index, output in enumerate(outputs):
            source = inputs[index % len(inputs)].reshape(-1)
            if not source.numel() or not output.numel():
                continue
            repeats = -(-output.numel() // source.numel())
            output.copy_(source.repeat(repeats)[: output.numel()].view(output.shape))


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for item in tensors for tensor in _flat(item)]


def _finished_work(tensors: list[torch.Tensor]) -> Any:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future).boxed()
