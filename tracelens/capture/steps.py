"""Where in a step the program is: forward, backward or optimizer, in which module, and in which step."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tracelens.capture.calls import Call
from tracelens.capture.modules import ModuleTracker
from tracelens.collectives import Primitive
from tracelens.results import Phase


class EnoughSteps(BaseException):
    """Ends a script once the steps asked for are recorded; no `except Exception` may swallow it."""


class StepTracker:
    """Follows modules, the autograd engine and optimizers by PyTorch's global hooks.

    A step ends with the last `Optimizer.step` before the next forward pass or pipeline message. Calls before
    the first forward pass belong to no step.

    Args:
        last_step: raise `EnoughSteps` when the step after this one begins; None follows for ever.
        counts: whether this tracker finds the steps itself; else the owner sets `step`.
    """

    def __init__(self, *, last_step: int | None = None, counts: bool = True) -> None:
        self.step: int | None = None
        self._last_step = last_step
        self._counts = counts
        self._modules = ModuleTracker()
        self._in_optimizer = False
        self._after_optimizer = False
        self._after_backward = False
        self._handles: list[Any] = []

    def __enter__(self) -> StepTracker:
        self._modules.start()
        self._handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._on_forward),
            register_optimizer_step_pre_hook(self._on_optimizer),
            register_optimizer_step_post_hook(self._on_optimizer_end),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._modules.stop()

    def place(self, call: Call) -> tuple[int | None, Phase | None, str | None]:
        """Step, phase and module of a call that is issued now."""
        if call.primitive in (Primitive.send, Primitive.recv):
            self._begin_step()
        return self.step, self._phase(call), self._modules.innermost

    def _phase(self, call: Call) -> Phase | None:
        if torch._C._current_graph_task_id() != -1:
            self._after_backward = True
            return Phase.backward
        if self._in_optimizer:
            return Phase.optimizer
        if self._modules.is_forward:
            return Phase.forward
        if call.primitive in (Primitive.send, Primitive.recv) or self.step is None:
            return None
        # a loss is computed before the backward pass, a gradient norm after it, both outside of any module
        return Phase.optimizer if self._after_backward else Phase.forward

    def _on_forward(self, module: torch.nn.Module, args: Any) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._begin_step()
            self._after_backward = False

    def _on_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_optimizer = True

    def _on_optimizer_end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_optimizer = False
        self._after_optimizer = True

    def _begin_step(self) -> None:
        if not self._counts:
            return
        if self.step is None or self._after_optimizer:
            self._after_optimizer = False
            self.step = 0 if self.step is None else self.step + 1
            if self._last_step is not None and self.step > self._last_step:
                raise EnoughSteps
