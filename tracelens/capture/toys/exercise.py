"""What an exercise is: a step that checks itself, and what the step must send, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh

from tracelens.collectives import DTYPE_BYTES, Primitive, wire_bytes

WORLD_SIZE = 4
"""Every exercise runs on four processes, as in the article."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One number of an exercise beside the number that it must be."""

    name: str
    value: str
    expected: str
    passed: bool


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sends in a step, worked out by hand; the truth beside a trace."""

    group: tuple[int, ...]
    primitive: Primitive
    dtype: str = "fp32"
    calls: int
    payload_bytes: int
    """Of all calls together; the full buffer of each."""
    wire_bytes: int

    @classmethod
    def of(cls, group: list[int], primitive: Primitive, *, calls: int, elements: int, dtype: str = "fp32") -> Sent:
        """Equal calls with `elements` in the full buffer of each."""
        return cls.total(group, primitive, calls=calls, elements=calls * elements, dtype=dtype)

    @classmethod
    def total(cls, group: list[int], primitive: Primitive, *, calls: int, elements: int, dtype: str = "fp32") -> Sent:
        """Calls with `elements` in the full buffers of all of them together."""
        payload = elements * DTYPE_BYTES[dtype]
        return cls(
            group=tuple(group),
            primitive=primitive,
            dtype=dtype,
            calls=calls,
            payload_bytes=payload,
            wire_bytes=round(wire_bytes(primitive, len(group), payload) or 0),
        )


class Exercise:
    """A parallel algorithm on four processes and its single-process reference.

    The constructor builds groups, weights and the reference; `step` runs the algorithm once and compares.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    layout: ClassVar[dict[str, int | str | bool]]
    """Degrees of the four processes, in the words of the layout options."""

    mesh: DeviceMesh | None = None

    def step(self) -> Iterator[Check]:
        """Run forward and backward once; yield every number to compare."""
        raise NotImplementedError

    def sent(self) -> list[Sent]:
        """What this rank sends in one step."""
        raise NotImplementedError


def check_values(name: str, value: torch.Tensor | list[Any], expected: torch.Tensor | list[Any]) -> Check:
    """Equal in every cell, as numbers worked out on paper must be."""
    value, expected = _as_list(value), _as_list(expected)
    return Check(name=name, value=str(value), expected=str(expected), passed=value == expected)


def _as_list(cells: torch.Tensor | list[Any]) -> list[Any]:
    return cells.tolist() if isinstance(cells, torch.Tensor) else cells


def check_close(name: str, value: torch.Tensor, reference: torch.Tensor, *, tolerance: float) -> Check:
    """Largest difference from a reference, cell by cell, as a share of the reference's largest cell."""
    error = float("inf")
    if value.shape == reference.shape:
        error = ((value - reference).abs().max() / reference.abs().max()).item()
    return Check(name=name, value=f"{error:.1e}", expected=f"below {tolerance:.0e}", passed=error < tolerance)
