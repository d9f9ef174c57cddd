"""Communication kernels are told by their names, in every spelling that libraries use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.collectives import Primitive
from tracelens.errors import InputError
from tracelens.trace.kernels import find_family, is_matmul, read_families

P = Primitive

# Names as they stand in traces and in the libraries' sources.
COMMUNICATION = [
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "NCCL", P.all_reduce),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "NCCL", P.all_reduce),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", P.all_reduce),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", P.all_gather),
    ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", P.reduce_scatter),
    ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", P.broadcast),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL", P.reduce),
    ("ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16", "NCCL", P.all_reduce),
    ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", "NCCL", P.all_gather),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "NCCL", None),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "NCCL", None),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "NCCL", None),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "NCCL", None),
    ("ncclDevKernelDebug_Generic(ncclDevKernelArgsStorage<4096ul>)", "NCCL", None),
    ("void rcclGenericKernel<4, true>(ncclDevComm*, unsigned long, ncclWork*)", "NCCL", None),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "DeepEP", P.all_to_all),
    ("void deep_ep::legacy::internode_ll::combine<true, 7168, 9>(void*)", "DeepEP", P.all_to_all),
    ("void deep_ep::internode::notify_dispatch<false, 8>(int const*)", "DeepEP", None),
    ("void dpsk::ep::internode::cached_notify<false>(int)", "DeepEP", None),
    ("void dpsk::ep::internode::dispatch<false, 8, true>(int4*)", "DeepEP", P.all_to_all),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all-reduce", P.all_reduce),
    ("void sglang::cross_device_reduce_2stage<half, 4>(RankData*)", "all-reduce", P.all_reduce),
    ("void aiter::allreduce_fusion_kernel<__hip_bfloat16>()", "all-reduce", P.all_reduce),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "symmetric memory", P.all_reduce),
    ("void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", "all-reduce", P.all_reduce),
    ("_on_device_all_to_all_v_kernel", "Triton expert all-to-all", P.all_to_all),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>", "Transformer Engine userbuffers", P.reduce_scatter),
    ("kuserbuffers_pushrecv(int, int, int*)", "Transformer Engine userbuffers", None),
    ("void nvshmemi_transfer_rma_nbi<NVSHMEMI_OP_PUT>", "NVSHMEM", None),
    ("mscclpp::allreduce6<__half>", "MSCCL++", None),
    ("oneccl_allreduce_small<float>", "oneCCL", None),
    ("hcom_allReduce__123", "HCCL", None),
]  # fmt: skip

COMPUTE = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
    "void cutlass::Kernel<cutlass_80_tensorop_s16816gemm_bf16>",
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT",
    "triton_poi_fused_all_reduce_wait_tensor_0",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<128>>",
    "void dispatch_index_kernel<float>(float*)",
    "void sleep_and_step::embedding_bag_kernel",
]


@pytest.mark.parametrize(("name", "library", "primitive"), COMMUNICATION)
def test_communication_is_told_by_name(name: str, library: str, primitive: Primitive | None) -> None:
    family = find_family(name)
    assert family is not None
    assert family.primitive == primitive
    assert library in family.library


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_is_not_taken_for_communication(name: str) -> None:
    assert find_family(name) is None


@pytest.mark.parametrize("name", ["nvjet_tst_256x128", "Cijk_Ailk_Bljk_BBS_BH", "void cutlass::Kernel<gemm>"])
def test_matrix_products_are_told_by_name(name: str) -> None:
    assert is_matmul(name)


def test_users_add_patterns_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text('[[kernel]]\npattern = "^our_ring_"\nlibrary = "ours"\nprimitive = "all_gather"\n')
    families = read_families(file)
    found = find_family("our_ring_step<4>", families)
    assert found is not None
    assert (found.library, found.primitive) == ("ours", P.all_gather)
    assert find_family("our_ring_step<4>") is None


@pytest.mark.parametrize(
    "text",
    ["[[kernel]]\npattern = '('\nlibrary = 'x'\n", "[[kernels]]\n", "[[kernel]]\npattern = 'a'\n", "not toml ["],
)
def test_a_broken_table_of_kernels_is_an_error_that_says_how_to_write_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kernels.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_families(file)
    assert "kernels.toml" in error.value.message
    assert "[[kernel]]" in str(error.value.hint)
