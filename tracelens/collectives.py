"""Primitives, dtypes and bytes: one table each, with its source."""

from __future__ import annotations

from enum import StrEnum


class Primitive(StrEnum):
    """What a communication call does, in NCCL's terms."""

    all_reduce = "all_reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"
    send = "send"
    recv = "recv"
    broadcast = "broadcast"
    reduce = "reduce"
    gather = "gather"
    scatter = "scatter"
    barrier = "barrier"
    other = "other"


# `Collective name` of record_param_comms, lower case (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
RECORD_PRIMITIVES: dict[str, Primitive] = {
    "allreduce": Primitive.all_reduce,
    "all_reduce": Primitive.all_reduce,
    "allreduce_coalesced": Primitive.all_reduce,
    "allreduce_sparse": Primitive.all_reduce,
    "all_gather": Primitive.all_gather,
    "allgather": Primitive.all_gather,
    "_allgather_base": Primitive.all_gather,
    "_all_gather_base": Primitive.all_gather,
    "allgather_base": Primitive.all_gather,
    "all_gather_into_tensor": Primitive.all_gather,
    "allgather_into_tensor_coalesced": Primitive.all_gather,
    "all_gather_into_tensor_coalesced": Primitive.all_gather,
    "allgather_coalesced": Primitive.all_gather,
    "reduce_scatter": Primitive.reduce_scatter,
    "_reduce_scatter_base": Primitive.reduce_scatter,
    "reduce_scatter_base": Primitive.reduce_scatter,
    "reduce_scatter_tensor": Primitive.reduce_scatter,
    "reduce_scatter_tensor_coalesced": Primitive.reduce_scatter,
    "reduce_scatter_coalesced": Primitive.reduce_scatter,
    "all_to_all": Primitive.all_to_all,
    "all_to_allv": Primitive.all_to_all,
    "all_to_all_single": Primitive.all_to_all,
    "alltoall": Primitive.all_to_all,
    "alltoall_base": Primitive.all_to_all,
    "broadcast": Primitive.broadcast,
    "_broadcast_oop": Primitive.broadcast,
    "broadcast_oop": Primitive.broadcast,
    "reduce": Primitive.reduce,
    "_reduce_oop": Primitive.reduce,
    "reduce_oop": Primitive.reduce,
    "send": Primitive.send,
    "recv": Primitive.recv,
    "recv_any_source": Primitive.recv,
    "recvanysource": Primitive.recv,
    "gather": Primitive.gather,
    "scatter": Primitive.scatter,
    "barrier": Primitive.barrier,
}

# Names that `record_param_comms` carries for things that move nothing.
NOT_CALLS = frozenset({"wait", "init", "pg_config", ""})

# c10 ScalarType names (c10/core/ScalarType.h) to (our name, bytes).
DTYPES: dict[str, tuple[str, int]] = {
    "Float": ("fp32", 4),
    "Double": ("fp64", 8),
    "Half": ("fp16", 2),
    "BFloat16": ("bf16", 2),
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "UInt16": ("uint16", 2),
    "UInt32": ("uint32", 4),
    "UInt64": ("uint64", 8),
    "Bool": ("bool", 1),
    "Float8_e4m3fn": ("fp8_e4m3", 1),
    "Float8_e5m2": ("fp8_e5m2", 1),
    "Float8_e4m3fnuz": ("fp8_e4m3fnuz", 1),
    "Float8_e5m2fnuz": ("fp8_e5m2fnuz", 1),
    "Float8_e8m0fnu": ("fp8_e8m0", 1),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}

DTYPE_BYTES: dict[str, int] = dict(DTYPES.values())

# Share of the payload that one GPU puts on the wire, as (k, divide): k·(n-1)/n, or k when `divide` is false.
# nccl-tests doc/PERFORMANCE.md; for send, broadcast and reduce the whole message, for recv nothing.
_WIRE: dict[Primitive, tuple[int, bool]] = {
    Primitive.all_reduce: (2, True),
    Primitive.all_gather: (1, True),
    Primitive.reduce_scatter: (1, True),
    Primitive.all_to_all: (1, True),
    Primitive.gather: (1, True),
    Primitive.scatter: (1, True),
    Primitive.send: (1, False),
    Primitive.broadcast: (1, False),
    Primitive.reduce: (1, False),
    Primitive.recv: (0, False),
    Primitive.barrier: (0, False),
}


def wire_factor(primitive: Primitive, group_size: int) -> float | None:
    """Wire bytes over payload bytes for one GPU of a group; None for `other`.

    The payload is the full buffer: of all ranks together for all-gather and reduce-scatter, of one rank for the
    others. A group of one sends nothing, whatever the primitive.

    Source: nccl-tests, doc/PERFORMANCE.md (the factors between algorithm and bus bandwidth).
    """
    if primitive not in _WIRE:
        return None
    if group_size <= 1:
        return 0.0
    share, divide = _WIRE[primitive]
    return share * (group_size - 1) / group_size if divide else float(share)


def wire_bytes(primitive: Primitive, group_size: int, payload_bytes: float) -> float | None:
    """Bytes that one GPU of a group of `group_size` sends for a call; None where no formula is known."""
    factor = wire_factor(primitive, group_size)
    return None if factor is None else factor * payload_bytes


def bus_factor(primitive: Primitive, group_size: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth (nccl-tests): the wire factor, and 1 for the messages of P2P."""
    return 1.0 if primitive is Primitive.recv else wire_factor(primitive, group_size)
