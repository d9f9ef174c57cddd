"""Which GPU kernels communicate: one table, read from top to bottom, first match wins.

A kernel's name tells that it communicates, seldom what it does: RCCL has one generic kernel, NCCL before 2.19
calls nearly everything SendRecv, and NCCL's own names give neither algorithm nor protocol (src/device/generate.py
instantiates one kernel for many). So a primitive is given only where the name can be trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelens.collectives import Primitive
from tracelens.errors import InputError

P = Primitive


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one library that do the same thing.

    Attributes:
        library: whose kernels these are, for reports.
        pattern: searched in the kernel's name, case ignored.
        primitive: what the name proves the kernel to do; None when it proves nothing.
    """

    library: str
    pattern: re.Pattern[str]
    primitive: Primitive | None


def _family(library: str, pattern: str, primitive: Primitive | None = None) -> Family:
    return Family(library, re.compile(pattern, re.IGNORECASE), primitive)


# NCCL up to 2.7 `ncclAllReduceRingLLKernel_sum_f32`, 2.8 to 2.18 `ncclKernel_AllReduce_RING_LL_Sum_float`, since
# 2.19 `ncclDevKernel_...`, symmetric since 2.27 `ncclSymDevKernel_...`, since 2.28 `ncclSymkDevKernel_...`.
_NCCL = r"nccl(?:Sym[a-z]*)?(?:Dev)?(?:Kernel)?(?:Debug)?_?"

_CUSTOM = r"cross_device_reduce|(?:quick|custom)_?all_?reduce|aiter::.*all_?reduce"
# `deep_ep::[legacy::]internode_ll::dispatch`, and DeepSeek's own `dpsk::ep::internode::dispatch`.
_DEEP_EP = r"\b(?:deep_)?ep::(?:legacy::)?(?:intranode|internode|internode_ll|elastic|layout)::"

FAMILIES: tuple[Family, ...] = (
    _family("NCCL", _NCCL + r"All_?Reduce", P.all_reduce),
    _family("NCCL", _NCCL + r"All_?Gather", P.all_gather),
    _family("NCCL", _NCCL + r"Reduce_?Scatter", P.reduce_scatter),
    _family("NCCL", _NCCL + r"Broadcast", P.broadcast),
    _family("NCCL", _NCCL + r"Reduce(?=[_R])", P.reduce),
    _family("NCCL", r"nccl(?:Dev)?Kernel|ncclSym|ncclLauncher|rcclGenericKernel|^nccl[A-Z]\w*Kernel"),
    _family("DeepEP", _DEEP_EP + r"(?:dispatch|combine)(?:_impl)?\b", P.all_to_all),
    _family("DeepEP", _DEEP_EP + r"(?:notify|cached_notify|clean_low_latency_buffer|barrier)"),
    _family("HybridEP", r"hybrid_ep::.*(?:dispatch|combine)", P.all_to_all),
    _family("vLLM / SGLang / aiter all-reduce", _CUSTOM, P.all_reduce),
    _family("FlashInfer / TensorRT-LLM all-reduce", r"all_?reduce_fusion|(?:one|two)_?shot_?all_?reduce", P.all_reduce),
    _family("PyTorch symmetric memory", r"multimem_(?:one_shot_)?all_reduce", P.all_reduce),
    _family("PyTorch symmetric memory", r"multimem_all_gather|symm_mem.*all_gather", P.all_gather),
    _family("PyTorch symmetric memory", r"reduce_scatter_(?:out_)?kernel|symm_mem.*reduce_scatter", P.reduce_scatter),
    _family("PyTorch symmetric memory", r"symm_mem.*barrier|all_to_all_vdev"),
    _family("Triton expert all-to-all", r"(?:on_device_)?all_to_all(?:_v)?_?\w*kernel|expert_all_to_all", P.all_to_all),
    _family("Transformer Engine userbuffers", r"userbuffers_\w*(?:_ag|all_?gather)", P.all_gather),
    _family("Transformer Engine userbuffers", r"userbuffers_\w*(?:_rs|reduce_?scatter)", P.reduce_scatter),
    _family("Transformer Engine userbuffers", r"userbuffers_\w*all_?reduce", P.all_reduce),
    _family("Transformer Engine userbuffers", r"userbuffers_"),
    _family("NVSHMEM", r"nvshmem"),
    _family("MSCCL++", r"mscclpp|msccl"),
    _family("oneCCL", r"oneccl|\bccl::|xccl"),
    _family("HCCL", r"hccl|^hcom_"),
)  # fmt: skip


def find_family(name: str, extra: tuple[Family, ...] = ()) -> Family | None:
    """The family that a kernel's name belongs to, those of the user first; None for a kernel that computes."""
    for family in (*extra, *FAMILIES):
        if family.pattern.search(name):
            return family
    return None


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    library: str
    primitive: Primitive | None = None


class _KernelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernel: list[_Entry]


def read_families(path: Path) -> tuple[Family, ...]:
    """Communication kernels that a user knows: a TOML file of `[[kernel]]` with pattern, library and primitive.

    Raises:
        InputError: the file can't be read, has other keys, or a pattern is no regular expression.
    """
    hint = 'write [[kernel]] with pattern = "...", library = "..." and, where it is sure, primitive = "all_reduce"'
    try:
        entries = msgspec.toml.decode(path.read_bytes(), type=_KernelFile).kernel
        return tuple(_family(entry.library, entry.pattern, entry.primitive) for entry in entries)
    except OSError as error:
        raise InputError(f"can't read `{path}`: {error.strerror or error}", hint=hint) from error
    except (msgspec.DecodeError, re.error) as error:
        raise InputError(f"`{path}` is no table of kernels: {error}", hint=hint) from error


_GEMM = re.compile(
    r"gemm|cutlass|cublas|xmma|wgmma|\bmm_|_mm_|matmul|Cijk_|nvjet|s\d+cudnn|flash|fmha|attention|conv", re.I
)


def is_matmul(name: str) -> bool:
    """Whether a kernel is a matrix product, an attention or a convolution, by its name."""
    return _GEMM.search(name) is not None
