"""CUDA that means the CPU: what a program written for GPUs calls, and what answers it in a fake world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

Patch = tuple[Any, str, Any]
"""Object, attribute, and what stands there inside the fake world."""


def device_patches(*, local_rank: int, gpus_per_node: int) -> list[Patch]:
    """Everything that would ask a GPU, compile for one, or move a module to one."""
    real_autocast = torch.autocast.__init__

    def autocast(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_autocast(self, _cpu_device(device_type), *args, **kwargs)

    return [
        *((torch.cuda, name, _answer(value)) for name, value in _cuda_answers(local_rank, gpus_per_node).items()),
        *((torch.cuda, name, mock.MagicMock) for name in ("current_stream", "Stream", "Event")),
        (torch, "compile", _no_compile),
        (torch.autocast, "__init__", autocast),
        (torch.nn.Module, "_apply", _apply_by_rebinding()),
        (
            DistributedDataParallel,
            "__init__",
            _with_options(DistributedDataParallel.__init__, device_ids=None, output_device=None),
        ),
        (
            FullyShardedDataParallel,
            "__init__",
            _with_options(FullyShardedDataParallel.__init__, device_id=torch.device("cpu")),
        ),
    ]


def _cuda_answers(local_rank: int, gpus_per_node: int) -> dict[str, Any]:
    """Functions of `torch.cuda` and their results."""
    return {
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "current_device": local_rank,
        "device_count": gpus_per_node,
        "is_bf16_supported": True,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
    }


class CpuForCuda(TorchFunctionMode):
    """Turns `device="cuda:0"`, `.cuda()` and `.to("cuda")` into the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        kwargs = {key: _cpu_device(value) for key, value in (kwargs or {}).items()}
        # a bare number is a GPU too
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        if func in (torch.device, torch.Tensor.to, torch._C._nn._parse_to):
            args = tuple("cpu" if type(value) is int else value for value in args)
        if func is torch.device:
            return _cpu_device(func(*args, **kwargs))
        return func(*(_cpu_device(value) for value in args), **kwargs)


# context parallelism puts its own function in the place of this one
_ATTENTION = torch.nn.functional.scaled_dot_product_attention


class FlashAttention(TorchFunctionMode):
    """Attention by the operator that a GPU would take: the only one that context parallelism knows."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION:
            return _flash_attention(func, *args, **kwargs)
        return func(*args, **kwargs)


def _flash_attention(  # noqa: PLR0913 - the signature of PyTorch's function
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    **options: Any,
) -> Any:
    if attn_mask is not None or options.get("enable_gqa"):
        return func(query, key, value, attn_mask, dropout_p, is_causal, **options)
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return flash(query, key, value, dropout_p, is_causal, scale=options.get("scale"))[0]


def _cpu_device(value: Any) -> Any:
    """The CPU for a CUDA device, by object or by name; anything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _apply_by_rebinding() -> Callable[..., Any]:
    """A `Module._apply` for fake tensors, which PyTorch's own can't swap; tied parameters stay tied."""
    # by id, with the old parameter kept alive so that its id stays its own; emptied after the outermost call
    converted: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    open_calls: list[torch.nn.Module] = []

    def convert(parameter: torch.nn.Parameter, fn: Callable[[Any], Any]) -> torch.nn.Parameter:
        if id(parameter) not in converted:
            with torch.no_grad():
                new = fn(parameter)
            if new is not parameter:
                new = torch.nn.Parameter(new, requires_grad=parameter.requires_grad)
            converted[id(parameter)] = (parameter, new)
            converted[id(new)] = (new, new)
        return converted[id(parameter)][1]

    def apply(module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002
        open_calls.append(module)
        for child in module.children() if recurse else ():
            child._apply(fn)
        module._parameters.update({k: convert(v, fn) for k, v in module._parameters.items() if v is not None})
        module._buffers.update({k: fn(v) for k, v in module._buffers.items() if v is not None})
        open_calls.pop()
        if not open_calls:
            converted.clear()
        return module

    return apply


def _with_options(init: Callable[..., None], **options: Any) -> Callable[..., None]:
    """A constructor whose options about the own GPU are these, whatever the program gives."""

    def wrapped(*args: Any, **kwargs: Any) -> None:
        init(*args, **{**kwargs, **options})

    return wrapped


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _no_compile(model: Any = None, **options: Any) -> Any:
    """`torch.compile` that leaves the model alone, as call or as decorator."""
    return (lambda inner: inner) if model is None else model
