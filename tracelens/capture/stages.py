"""What the stages of PyTorch's pipelines tell one another before the first step, answered in a dry run.

A `PipelineStage` without `input_args` learns its input shapes from the stage before, and the shapes of its output's
gradients from the stage after. In a dry run the stages are run one after the other, and each leaves what it would
have sent for the next (torch/distributed/pipelining/stage.py of PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.distributed.pipelining import PipelineStage

from tracelens.errors import UsageError

Shapes = dict[int, Any]
"""Stage to what the stage before told it of its input."""

Result = TypeVar("Result")


class UnknownShapes(BaseException):
    """A stage waits for one that was not run yet; no `except Exception` of the program may swallow it.

    Args:
        rank: global rank of the stage before.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


def run_with_stages(run: Callable[[int], Result], rank: int) -> Result:
    """Run a rank; where it waits for the shapes of an earlier stage, run that stage's rank first.

    Raises:
        UsageError: the earlier stage did not tell.
    """
    try:
        return run(rank)
    except UnknownShapes as unknown:
        run_with_stages(run, unknown.rank)
    try:
        return run(rank)
    except UnknownShapes:
        raise UsageError(
            f"the pipeline stage of rank {rank} waits for shapes that no other stage sends",
            hint="give PipelineStage its input_args and output_args",
        ) from None


def stage_patches(shapes: Shapes) -> list[tuple[Any, str, Any]]:
    """Methods of `PipelineStage` that answer from `shapes`, and fill it; none for a PyTorch without them."""
    if not hasattr(PipelineStage, "_recv_meta"):
        return []
    # PyTorch's own helpers, there whenever `_recv_meta` is
    from torch.distributed.pipelining._utils import _derive_grad_metas, _StageBackwardMeta, _StageForwardMeta

    told_here: list[Any] = []

    def send(stage: Any, meta: Any, dst_stage: int) -> None:
        if isinstance(meta, _StageForwardMeta):
            shapes[dst_stage] = meta
            told_here.append(meta)

    def receive(stage: Any, src_stage: int) -> Any:
        if src_stage > stage.stage_index:
            # a gradient has the shape of what it is the gradient of
            return _StageBackwardMeta(backward_metas=_derive_grad_metas(stage._stage_meta.outputs))
        if stage.stage_index in shapes:
            return shapes[stage.stage_index]
        if told_here:
            # a later chunk of this rank: layers hand on what they were given
            return told_here[-1]
        raise UnknownShapes(stage._resolve_peer_global_rank(src_stage))

    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:  # noqa: FBT001
        """All stages vote as this one does."""
        from torch.distributed.pipelining._utils import InferenceMode

        is_static = not InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        stage.vote = torch.tensor([int(is_static)], dtype=torch.int32)
        return stage.vote

    def result(stage: Any, received_result: Any = None) -> torch.Tensor:
        return stage.vote

    return [
        (PipelineStage, "_send_meta", send),
        (PipelineStage, "_recv_meta", receive),
        (PipelineStage, "_warmup_forward_vote", vote),
        (PipelineStage, "_warmup_backward_result", result),
    ]
