"""What time needs to know of the machines: links and arithmetic, as data."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec

from tracelens.errors import InputError, UsageError
from tracelens.fields import explain_fault
from tracelens.ledger.results import Link

_PRESETS = resources.files("tracelens.ledger") / "clusters"


class LinkSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of link, one direction, as one GPU sees it."""

    bytes_per_s: float
    """What the data sheet says."""
    efficiency: float
    """Share of it that large collectives reach (bus bandwidth of nccl-tests over the data sheet)."""
    latency_s: float
    """Time of a call without payload, per step of the ring's logarithm."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster of equal nodes."""

    name: str
    peak_flop_per_s: float
    """Dense bf16."""
    gemm_efficiency: float
    """Share of the peak that large matrix products reach."""
    attention_efficiency: float
    """Share of the peak that fused attention reaches (FlashAttention-2, arXiv 2307.08691; -3, arXiv 2407.08608)."""
    memory_bytes_per_s: float
    memory_efficiency: float
    memory_bytes: int | None = None
    """Memory of a GPU; null is unknown, and whether a layout fits too."""
    nvlink: LinkSpeed
    ib: LinkSpeed

    def link(self, link: Link) -> LinkSpeed:
        """The speed of a link."""
        return self.nvlink if link is Link.nvlink else self.ib


def list_clusters() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    names = (entry.name for entry in _PRESETS.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


@lru_cache(maxsize=32)
def load_cluster(source: str) -> Cluster:
    """The cluster of that name, or that a TOML file describes.

    Raises:
        UsageError: for a name that is none.
        InputError: for a file that can't be read or describes none.
    """
    preset = _PRESETS / f"{source}.toml"
    if preset.is_file():
        text = preset.read_text(encoding="utf-8")
    elif source.endswith(".toml"):
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read cluster file {source}: {error}") from error
    else:
        raise UsageError(f"no cluster `{source}`", hint=f"one of: {', '.join(list_clusters())}; or a TOML file")
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is no TOML file: {error}", hint="docs/predict.md shows a cluster") from error
    try:
        return msgspec.convert(fields, Cluster)
    except msgspec.ValidationError as error:
        fault = explain_fault(error, Cluster, fields)
        raise InputError(f"{source} describes no cluster: {fault.told}", hint=fault.hint) from error
