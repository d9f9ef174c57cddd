"""One process that believes to be a rank of a large job: a fake process group, fake tensors, no GPU."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tracelens.capture.calls import Call
from tracelens.capture.stages import Shapes, stage_patches
from tracelens.collectives import Primitive
from tracelens.errors import UsageError

_WORLD_NUMBERS = itertools.count(-2, -1)


class FakeWorld(msgspec.Struct, frozen=True, kw_only=True):
    """A job that does not exist, and which rank of it to be."""

    world_size: int
    rank: int
    gpus_per_node: int = 8
    fake_tensors: bool = True
    """Tensors without memory or values; False for code whose traffic depends on values, such as a router."""
    stage_shapes: Shapes = {}
    """What pipeline stages that ran before told of their outputs; this rank's are added."""


@contextlib.contextmanager
def fake_world(world: FakeWorld) -> Iterator[None]:
    """Be a rank of `world` inside the block: CUDA means the CPU, every process group is fake.

    Raises:
        UsageError: a process group exists already, or the program asks for another world size.
    """
    if dist.is_initialized():
        raise UsageError(
            "a process group exists already", hint="run a dry run in a process of its own, without torchrun"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, _environment(world)))
        dist.init_process_group("fake", rank=world.rank, world_size=world.world_size, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        for target, name, value in _patches(world):
            stack.enter_context(mock.patch.object(target, name, value, create=True))
        stack.enter_context(_CpuForCuda())
        if world.fake_tensors:
            stack.enter_context(_FlashAttention())
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _environment(world: FakeWorld) -> dict[str, str]:
    """What torchrun would set (torch/distributed/run.py)."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_RANK": str(world.rank % world.gpus_per_node),
        "LOCAL_WORLD_SIZE": str(min(world.world_size, world.gpus_per_node)),
        "GROUP_RANK": str(world.rank // world.gpus_per_node),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


def _patches(world: FakeWorld) -> list[tuple[Any, str, Any]]:
    """What a program written for GPUs calls, and what answers it here."""
    nothing = _answer(None)
    cuda = {name: nothing for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats")}
    cuda |= {
        "current_device": _answer(world.rank % world.gpus_per_node),
        "device_count": _answer(world.gpus_per_node),
        "is_bf16_supported": _answer(value=True),
        "memory_allocated": _answer(0),
        "max_memory_allocated": _answer(0),
        "max_memory_reserved": _answer(0),
        "current_stream": mock.MagicMock,
        "Stream": mock.MagicMock,
        "Event": mock.MagicMock,
    }
    world_number = next(_WORLD_NUMBERS)
    real_new_group, real_mesh, real_autocast = dist.new_group, DeviceMesh.__init__, torch.autocast.__init__
    real_object_to_tensor = dist.distributed_c10d._object_to_tensor

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return real_new_group(ranks, timeout, None, *args, **kwargs)

    def mesh(self: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_mesh(self, "cpu", *args, **kwargs)
        # DTensor caches by mesh: a mesh of an earlier world, equal but for its dead groups, must not be found
        self._thread_id = world_number

    def autocast(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        real_autocast(self, _cpu_device(device_type), *args, **kwargs)

    def object_to_tensor(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return real_object_to_tensor(*args, **kwargs)

    return [
        *((torch.cuda, name, value) for name, value in cuda.items()),
        (torch, "compile", _no_compile),
        (torch.nn.Module, "_apply", _apply_by_rebinding()),
        (dist, "init_process_group", _checked_init(world.world_size)),
        (dist, "destroy_process_group", nothing),
        (dist, "new_group", new_group),
        (dist, "recv_object_list", _no_object),
        (dist.distributed_c10d, "_object_to_tensor", object_to_tensor),
        (DeviceMesh, "__init__", mesh),
        (torch.autocast, "__init__", autocast),
        (DistributedDataParallel, "__init__", _without_device(DistributedDataParallel.__init__)),
        (FullyShardedDataParallel, "__init__", _without_device(FullyShardedDataParallel.__init__)),
        *stage_patches(world.stage_shapes),
    ]


def _no_object(*args: Any, **kwargs: Any) -> None:
    raise UsageError(
        "the program waits for an object that another rank sends, which a dry run can't know",
        hint="let the program do without, where the backend is `fake`",
    )


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


def _without_device(init: Callable[..., None]) -> Callable[..., None]:
    """A wrapper's constructor that is not told which GPU is its own."""

    def wrapped(*args: Any, **kwargs: Any) -> None:
        for name in ("device_ids", "output_device", "device_id"):
            kwargs.pop(name, None)
        init(*args, **kwargs)

    return wrapped


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _no_compile(model: Any = None, **options: Any) -> Any:
    """`torch.compile` that leaves the model alone, as call or as decorator."""
    return (lambda inner: inner) if model is None else model


def _checked_init(world_size: int) -> Callable[..., None]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("world_size", -1)
        if asked not in (-1, world_size):
            raise UsageError(
                f"the program asks for a world size of {asked}, the dry run is one of {world_size}",
                hint=f"use --world-size {asked}, or let the program read WORLD_SIZE",
            )

    return init_process_group


class _CpuForCuda(TorchFunctionMode):
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


class _FlashAttention(TorchFunctionMode):
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
