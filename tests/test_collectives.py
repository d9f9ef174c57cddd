"""Bytes on the wire and bus bandwidth, against values worked out by hand from nccl-tests' factors."""

from __future__ import annotations

import pytest

from tracelens.collectives import (
    DTYPE_BYTES,
    DTYPES,
    NOT_CALLS,
    RECORD_PRIMITIVES,
    Primitive,
    bus_factor,
    wire_bytes,
)

MIB = 1024**2


@pytest.mark.parametrize(
    ("primitive", "size", "payload", "wire"),
    [
        # 2 (n-1)/n of the buffer: 2 * 7/8 * 1 GiB
        (Primitive.all_reduce, 8, 1024 * MIB, 1792 * MIB),
        (Primitive.all_reduce, 2, 100, 100),
        (Primitive.all_reduce, 3, 30, 40),
        # (n-1)/n of the full size, of all ranks together
        (Primitive.all_gather, 8, 64 * MIB, 56 * MIB),
        (Primitive.reduce_scatter, 4, 64 * MIB, 48 * MIB),
        (Primitive.all_to_all, 64, 64 * MIB, 63 * MIB),
        # the whole message
        (Primitive.broadcast, 8, 7, 7),
        (Primitive.reduce, 8, 7, 7),
        (Primitive.send, 2, 7, 7),
        (Primitive.recv, 2, 7, 0),
        (Primitive.barrier, 8, 4, 0),
    ],
)
def test_wire_bytes_are_what_one_gpu_sends(primitive: Primitive, size: int, payload: int, wire: float) -> None:
    assert wire_bytes(primitive, size, payload) == pytest.approx(wire, rel=1e-12)


@pytest.mark.parametrize("primitive", [member for member in Primitive if member is not Primitive.other])
def test_a_group_of_one_sends_nothing(primitive: Primitive) -> None:
    assert wire_bytes(primitive, 1, 1000) == 0


def test_an_unknown_primitive_has_unknown_bytes_and_not_none() -> None:
    assert wire_bytes(Primitive.other, 8, 1000) is None


def test_nccl_tests_worked_example_of_bus_bandwidth() -> None:
    # nccl-tests doc/PERFORMANCE.md: busbw = algbw * 2 (n-1)/n for all-reduce, so 8 ranks at 100 GB/s show 175
    factor = bus_factor(Primitive.all_reduce, 8)
    assert factor is not None
    assert 100 * factor == pytest.approx(175)


def test_a_receive_has_a_bandwidth_although_it_sends_nothing() -> None:
    assert bus_factor(Primitive.recv, 2) == 1.0
    assert bus_factor(Primitive.send, 2) == 1.0


def test_every_recorded_name_is_lower_case_and_none_is_both_call_and_no_call() -> None:
    assert [name for name in RECORD_PRIMITIVES if name != name.lower()] == []
    assert NOT_CALLS & set(RECORD_PRIMITIVES) == set()


@pytest.mark.parametrize(
    ("scalar_type", "name", "size"),
    [("BFloat16", "bf16", 2), ("Float", "fp32", 4), ("Long", "int64", 8), ("Float8_e4m3fn", "fp8_e4m3", 1)],
)
def test_dtypes_by_their_c10_names(scalar_type: str, name: str, size: int) -> None:
    assert DTYPES[scalar_type] == (name, size)
    assert DTYPE_BYTES[name] == size
