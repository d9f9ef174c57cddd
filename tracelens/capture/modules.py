"""Which module runs: forward by PyTorch's global hooks, backward by the gradients of what it gave and took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves


class ModuleTracker:
    """Follows every module of the program by its name in the outermost module that was called.

    A module's backward pass begins with the gradient of an output, and ends with the gradient of an input.
    """

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._forward: list[str] = []
        self._backward: set[str] = set()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Begin to follow."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()

    @property
    def is_forward(self) -> bool:
        """Whether a module's forward pass runs."""
        return bool(self._forward)

    @property
    def innermost(self) -> str | None:
        """Name of the innermost module that runs; None outside of all."""
        if self._forward:
            return self._forward[-1]
        return max(self._backward, key=lambda name: (name.count("."), name), default=None)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if not self._forward:
            self._name_modules_of(module)
            if torch._C._current_graph_task_id() == -1:
                self._backward.clear()
        name = self._names.get(module, type(module).__name__)
        self._forward.append(name)
        _on_gradient(args, lambda: self._backward.discard(name))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name = self._forward.pop()
        _on_gradient(output, lambda: self._backward.add(name))

    def _name_modules_of(self, root: torch.nn.Module) -> None:
        if root not in self._names:
            for name, module in root.named_modules():
                self._names.setdefault(module, name or type(root).__name__)


def _on_gradient(values: Any, act: Callable[[], None]) -> None:
    """Call `act` when the gradient of any tensor among the values is there."""
    for tensor in _differentiable(values):
        tensor.register_hook(lambda _: act())


def _differentiable(values: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
