"""Every collective that PyTorch issues, seen at the one place that all of them pass: the dispatcher.

Python calls, functional collectives (DTensor), FSDP and the C++ reducer of DDP all end in an operator of
the namespace `c10d` or `_c10d_functional`. A dispatch mode sees each with its tensors and its process group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tracelens.collectives import DTYPE_BYTES, DTYPES, RECORD_PRIMITIVES, Primitive, wire_bytes
from tracelens.results import Phase

NAMESPACES = frozenset({"c10d", "_c10d_functional", "_dtensor"})

# Operators of these namespaces that move nothing.
_NO_CALL = frozenset({"wait_tensor", "_wrap_tensor_autograd", "check_for_nan"})

# Operator to the `Collective name` that Kineto writes for it on NCCL (torch/csrc/distributed/c10d/
# ProcessGroupNCCL.cpp); functional operators end in the coalesced forms (Functional.cpp).
_KINETO_NAMES = {
    "allreduce_": "allreduce",
    "allreduce_coalesced_": "allreduce_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "allgather_coalesced",
    "_allgather_base_": "_allgather_base",
    "allgather_into_tensor_coalesced_": "allgather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_allv",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_reduce_coalesced_": "allreduce_coalesced",
    "all_gather_into_tensor": "allgather_into_tensor_coalesced",
    "all_gather_into_tensor_out": "allgather_into_tensor_coalesced",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out": "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_allv",
    "shard_dim_alltoall": "all_to_allv",
    "isend": "send",
    "irecv": "recv",
}

_INPUTS = ("input_tensor", "input_tensors", "input_list", "inputs", "input", "tensors", "tensor")
_OUTPUTS = ("output_tensor", "output_tensors", "output_lists", "outputs", "output", "out")
_PEERS = ("dst", "src", "root_rank")

_SCALAR_TYPES: dict[torch.dtype, str] = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


class ProcessGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as PyTorch names it, with the global ranks in it."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that the program asked for."""

    name: str
    """`Collective name` as Kineto writes it for NCCL."""
    primitive: Primitive
    group: ProcessGroup
    dtype: str | None
    """c10 ScalarType name such as `BFloat16`; null for a barrier."""
    in_elements: int
    out_elements: int
    in_splits: tuple[int, ...] = ()
    """Rows sent to each rank of the group; empty where the split is equal."""
    out_splits: tuple[int, ...] = ()
    peer: int | None = None
    """Global rank of the other end of P2P, or of the root."""
    phase: Phase | None = None
    module: str | None = None
    step: int | None = None

    @property
    def payload_bytes(self) -> int:
        """The full buffer: what an all-to-all sends, else the larger of input and output."""
        if self.primitive is Primitive.all_to_all:
            return self.in_elements * self._element_bytes
        return max(self.in_elements, self.out_elements) * self._element_bytes

    def wire_bytes(self, rank: int) -> float:
        """Bytes that global rank `rank` sends; for uneven all-to-all its own splits but the one it keeps."""
        if any(self.in_splits):
            own = self.group.ranks.index(rank)
            rows = sum(self.in_splits)
            return (rows - self.in_splits[own]) * (self.in_elements // rows) * self._element_bytes
        return wire_bytes(self.primitive, len(self.group.ranks), self.payload_bytes) or 0.0

    @property
    def _element_bytes(self) -> int:
        return DTYPE_BYTES[DTYPES[self.dtype][0]] if self.dtype else 0


def describe_group(group: dist.ProcessGroup) -> ProcessGroup:
    """Name, description and global ranks of a process group."""
    return ProcessGroup(
        name=group.group_name,
        description=group.group_desc,
        ranks=tuple(dist.get_process_group_ranks(group)),
    )


def describe_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call | None:
    """The call behind an operator of `NAMESPACES`; None for those that move nothing."""
    operator = func._schema.name.split("::")[1]
    if operator in _NO_CALL:
        return None
    given = _named_arguments(func, args, kwargs)
    group = describe_group(_process_group(given))
    name = _KINETO_NAMES.get(operator, operator)
    primitive = RECORD_PRIMITIVES.get(name, Primitive.other)
    inputs = _tensors(given, _INPUTS)
    outputs = _tensors(given, _OUTPUTS)
    in_elements = 0 if primitive is Primitive.barrier else sum(tensor.numel() for tensor in inputs)
    out_splits = tuple(given.get("output_split_sizes") or ())
    in_splits = tuple(given.get("input_split_sizes") or ())
    out_elements = sum(tensor.numel() for tensor in outputs)
    if not out_elements:
        out_elements = _output_elements(primitive, in_elements, len(group.ranks), in_splits, out_splits)
    if primitive is Primitive.scatter:
        in_elements = out_elements * len(group.ranks)
    peer = next((given[key] for key in _PEERS if key in given), None)
    return Call(
        name=name,
        primitive=primitive,
        group=group,
        dtype=_SCALAR_TYPES.get(inputs[0].dtype) if inputs and in_elements + out_elements else None,
        in_elements=in_elements,
        out_elements=out_elements,
        in_splits=in_splits,
        out_splits=out_splits,
        peer=group.ranks[peer] if peer is not None else None,
    )


def _named_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _process_group(given: dict[str, Any]) -> dist.ProcessGroup:
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])
    name = given["group_name"]
    return name if isinstance(name, dist.ProcessGroup) else dist.distributed_c10d._resolve_process_group(name)


def _tensors(given: dict[str, Any], names: Iterable[str]) -> list[torch.Tensor]:
    """The tensors of the first argument of those names, lists of lists made flat."""
    value = next((given[name] for name in names if name in given), ())
    found: list[torch.Tensor] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        else:
            waiting.extend(item)
    return found


def _output_elements(
    primitive: Primitive, in_elements: int, size: int, in_splits: Sequence[int], out_splits: Sequence[int]
) -> int:
    """Elements that come out of a call that makes its own output, or has none on this rank."""
    if primitive in (Primitive.all_gather, Primitive.gather):
        return in_elements * size
    if primitive is Primitive.reduce_scatter:
        return in_elements // size
    if primitive is Primitive.all_to_all and any(in_splits):
        return in_elements // sum(in_splits) * sum(out_splits)
    return in_elements


_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})


class CallObserver(TorchDispatchMode):
    """Hands each collective to `on_call`, on this thread and in the backward pass that it starts."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass every operator on; collectives through `on_call`."""
        kwargs = kwargs or {}
        if not _PLAIN_TENSORS.issuperset(types):
            # a DTensor unwraps itself first, and its collectives come back to this mode
            return NotImplemented
        call = describe_call(func, args, kwargs) if func.namespace in NAMESPACES else None
        return func(*args, **kwargs) if call is None else self.on_call(call, func, args, kwargs)

    def on_call(self, call: Call, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the collective; subclasses note it."""
        return func(*args, **kwargs)
