"""What is known of ATen's operations beyond their schemas, once for each: a row says all that any part asks.

A name is an operator's, without the last underscore of in-place ones where both are alike. No name stands twice, and
each is an operator of `torch.ops.aten` (a test asks). Sources: the files named next to the rows, below aten/src/ATen.
Not here: what the columns mean (`vgpu.runtime.operations.operation`), and what anything costs (`vgpu.device.cost`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from vgpu.runtime.operations import (
    convolutions,
    cuda_arithmetic,
    determinism,
    dimensions,
    operand_dtypes,
    products,
    result_layouts,
    scalar_checks,
    sparse_dtypes,
    traffic,
    waiting,
)
from vgpu.runtime.operations.operation import Known

_rows: dict[str, Known] = {}
TABLE = MappingProxyType(_rows)


def _row(names: str, **columns: Any) -> None:
    """One operation, or several of which the same is known."""
    for name in names.split():
        if name in _rows:
            raise ValueError(f"vgpu.runtime.operations.table: {name} has two rows; write all of it into one")
        _rows[name] = Known(**columns)


# ---- matrix products: cuBLAS -----------------------------------------------------------------------------------------
# FP32 sums of 16-bit operands (NVIDIA A100 whitepaper); TF32 for every GEMM that may (notes/cuda, "TensorFloat-32").

_GEMM: dict[str, Any] = {"library": "blas", "call": "product", "takes_scratch": True}
_SUMS: dict[str, Any] = {"in_float32": True, "one_dtype": True}
_TF32: dict[str, Any] = {**_SUMS, "tf32_switch": "matmul", "tf32_operands": (0, 1)}
_TF32_ADDED: dict[str, Any] = {**_TF32, "tf32_operands": (1, 2)}

_row("mm", check=sparse_dtypes.require_addmm, product=products.mm, **_GEMM, **_TF32)
_row("_scaled_mm", product=products.mm, **_GEMM)
_row("addmm", check=sparse_dtypes.require_addmm, product=products.addmm, **_GEMM, **_TF32_ADDED)
_row("_addmm_activation", product=products.addmm, **_GEMM, **_TF32_ADDED)
_row("bmm", check=sparse_dtypes.require_bmm, product=products.bmm, **_GEMM, **_TF32)
_row("baddbmm", product=products.baddbmm, **_GEMM, **_TF32_ADDED)
_row("addbmm", **_TF32_ADDED)
_row("_sparse_mm_reduce_impl", check=sparse_dtypes.require_no_reduction)
_row("_sparse_softmax _sparse_log_softmax", check=sparse_dtypes.require_softmax)
_row("_sparse_addmm", check=sparse_dtypes.require_addmm)
_row("quantize_per_tensor quantize_per_channel", check=sparse_dtypes.require_whole_bytes)
_row("_int_mm", check=products.check_int_mm)
_row("mv", product=products.vector, **_GEMM, **_SUMS, strict_devices=True, wrapper="addmv_out_out")
_row("addmv", check=scalar_checks.addmv, product=products.vector, **_GEMM, **_SUMS)
_row("dot", product=products.vector, **_GEMM, **_SUMS)
_row("vdot", product=products.vector, **_GEMM, **_SUMS)

# ---- convolutions and recurrent layers: cuDNN ------------------------------------------------------------------------

_CONVOLUTION: dict[str, Any] = {
    "library": "cudnn", "is_convolution": True, "takes_scratch": True, **_SUMS, "tf32_switch": "conv",
}  # fmt: skip
_FORWARD: dict[str, Any] = {
    **_CONVOLUTION, "product": convolutions.forward, "call": "convolution", "tf32_operands": (0, 1),
}  # fmt: skip

_row("convolution", **_FORWARD, strict_devices=True, wrapper="_cudnn_convolution")
_row("convolution_overrideable", **_FORWARD)
_row("convolution_backward", **_CONVOLUTION, product=convolutions.backward, call="convolution_backward",
     tf32_operands=(0, 1, 2))  # fmt: skip
_row("_cudnn_rnn", product=products.recurrent, library="cudnn", tf32_switch="rnn", is_cuda_kernel=True)
_row("_cudnn_rnn_flatten_weight", library="cudnn", is_cuda_kernel=True)
_row("_cudnn_rnn_backward", product=products.recurrent_backward, library="cudnn", tf32_switch="rnn",
     is_cuda_kernel=True)  # fmt: skip

# ---- attention: native/transformers/cuda -----------------------------------------------------------------------------
# The second number is the place of `is_causal` among the arguments; the CPU's kernel is charged without.

for _kernel, _causal, _causal_backward in (("flash", 4, 11), ("efficient", 6, 11), ("cudnn", 6, 14)):
    _row(f"_scaled_dot_product_{_kernel}_attention", product=products.attention(_kernel, _causal), is_cuda_kernel=True,
         call="product")  # fmt: skip
    _row(f"_scaled_dot_product_{_kernel}_attention_backward", is_cuda_kernel=True, takes_scratch=True,
         product=products.attention_backward(_kernel, _causal_backward))  # fmt: skip
_row("_scaled_dot_product_flash_attention_for_cpu", product=products.attention("", None), in_float32=True)
_row("_scaled_dot_product_flash_attention_for_cpu_backward", product=products.attention_backward("", None),
     in_float32=True)  # fmt: skip

# ---- norms: native/cuda/Normalization.cuh, group_norm_kernel.cu, layer_norm_kernel.cu --------------------------------
# Batch norm: training reads once for mean and variance and once to normalise. Of its backward, both
# `batch_norm_backward_reduce` and `batch_norm_backward_elemt` read gradient and input. Group norm: moments, then an
# elementwise kernel; backward sums over both, then the gradient. Layer norm: a row stays in registers; backward has a
# second kernel for weight and bias.

_row("native_batch_norm", check=operand_dtypes.batch_norm, library="cudnn", call="norm", is_cuda_kernel=True,
     traffic=traffic.batch_norm(5))  # fmt: skip
_row("cudnn_batch_norm", library="cudnn", call="norm", traffic=traffic.batch_norm(5))
_row("_native_batch_norm_legit _native_batch_norm_legit_no_training", check=operand_dtypes.batch_norm, call="norm",
     is_cuda_kernel=True, traffic=traffic.batch_norm(5))  # fmt: skip
_row("_batch_norm_with_update", check=operand_dtypes.batch_norm, library="cudnn", call="norm", is_cuda_kernel=True,
     traffic=traffic.batch_norm(None))  # fmt: skip
_row(
    "native_batch_norm_backward",
    call="norm_backward",
    check=operand_dtypes.batch_norm_backward,
    is_cuda_kernel=True,
    traffic=traffic.batch_norm_backward,
)
_row("cudnn_batch_norm_backward batch_norm_backward", call="norm_backward", traffic=traffic.batch_norm_backward)
_row("sort", traffic=traffic.sort)
_row("topk", traffic=traffic.topk)
_row("native_group_norm", call="norm", check=operand_dtypes.alike(1, 2),
     traffic=traffic.group_norm)  # fmt: skip
_row("native_group_norm_backward", call="norm_backward", traffic=traffic.group_norm_backward)
_row("native_layer_norm", call="norm", is_cuda_kernel=True, check=operand_dtypes.alike(2, 3),
     traffic=traffic.layer_norm)  # fmt: skip
_row("native_layer_norm_backward _fused_rms_norm_backward", call="norm_backward", is_cuda_kernel=True,
     traffic=traffic.layer_norm_backward)  # fmt: skip
_row("_fused_rms_norm", is_cuda_kernel=True, traffic=traffic.layer_norm)
_row("batch_norm_stats batch_norm_gather_stats_with_counts batch_norm_elemt batch_norm_backward_reduce "
     "batch_norm_backward_elemt", is_cuda_kernel=True)  # fmt: skip

# ---- activations, softmax, dropout, pooling --------------------------------------------------------------------------

_row("log_sigmoid_forward log_sigmoid_backward", is_cuda_kernel=True)
_row("native_dropout", traffic=traffic.dropout)
_row("gelu gelu_backward", cycles=0.26)
_row("_softmax _log_softmax", is_cuda_kernel=True, traffic=traffic.softmax)
_row("_softmax_backward_data", is_cuda_kernel=True, traffic=traffic.softmax_backward)
_row("_log_softmax_backward_data", is_cuda_kernel=True, traffic=traffic.log_softmax_backward)
_row("_safe_softmax", takes_scratch=True, traffic=traffic.softmax)
_row("max_pool2d_with_indices max_pool3d_with_indices", traffic=traffic.max_pool)
_row("max_pool2d_with_indices_backward", traffic=traffic.max_pool_backward)
_row(
    "max_pool3d_with_indices_backward",
    traffic=traffic.max_pool_backward,
    nondeterministic=determinism.always("max_pool3d_with_indices_backward_cuda"),
)
_row("poisson", check=operand_dtypes.rates)
_row("fractional_max_pool2d", check=dimensions.fractional_pool(2))
_row("fractional_max_pool3d", check=dimensions.fractional_pool(3))

# ---- indices and embeddings ------------------------------------------------------------------------------------------

_row("embedding", strict_devices=True, wrapper="_index_select", gathers=True, traffic=traffic.selected_rows(None))
_row("embedding_dense_backward", in_float32=True, takes_scratch=True)  # EmbeddingBackwardKernel.cu (opmath)
_row("_embedding_bag_dense_backward", in_float32=True, nondeterministic=determinism.embedding_bag_backward(7))
_row("_embedding_bag_backward", nondeterministic=determinism.embedding_bag_backward(8))
_row("slice take", gathers=True)
_row("_embedding_bag", gathers=True, arithmetic=cuda_arithmetic.bags)
_row("_embedding_bag_forward_only", arithmetic=cuda_arithmetic.bags)
_row("index", gathers=True, indexes=True, mixed_devices=True)
_row("index_put index_put_ _index_put_impl_", indexes=True, mixed_devices=True)
_row("index_select", gathers=True, traffic=traffic.selected_rows(1))
_row("gather", gathers=True)
_row("nonzero masked_select _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive "
     "_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc _coalesce", synchronises=True)  # fmt: skip

# ---- 16-bit operands that the CPU sums in 16 bits, or has no kernel for ----------------------------------------------
# CUDA accumulates in FP32: NLLLoss.cu and NLLLoss2d.cu (accscalar_t), ReduceSumProdKernel.cu, UnaryGeometric and Logit
# kernels. Missing on the CPU: `dtypes` against `dtypesIfCUDA` in torch/testing/_internal/common_methods_invocations.py.

_row("nll_loss_forward", check=operand_dtypes.alike(2), in_float32=True, gathers=True, traffic=traffic.nll_loss)
_row("nll_loss_backward", in_float32=True, traffic=traffic.nll_loss_backward)
_row("nll_loss2d_backward", in_float32=True, traffic=traffic.nll_loss2d_backward)
_row("prod logit logit_backward erfinv", in_float32=True)
_row(
    "nll_loss2d_forward",
    check=operand_dtypes.alike(2),
    in_float32=True,
    nondeterministic=determinism.loss_per_pixel,
)
for _name in ("_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"):
    _row(_name, in_float32=True, nondeterministic=determinism.always(f"{_name[1:]}_out_cuda"))
_row("avg_pool3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa multilabel_margin_loss_forward "
     "multilabel_margin_loss_backward polygamma", in_float32=True)  # fmt: skip
_row("_fft_r2c _fft_c2c _fft_c2r", check=operand_dtypes.transformed, in_float32=True,
     arithmetic=result_layouts.transform)  # fmt: skip
_row("multi_margin_loss", check=operand_dtypes.alike(4), in_float32=True)
_row("multi_margin_loss_backward", check=operand_dtypes.alike(1, 5), in_float32=True)
_row("avg_pool3d_backward", in_float32=True, nondeterministic=determinism.always("avg_pool3d_backward_cuda"))

# ---- results that the CPU's kernels lay out otherwise ----------------------------------------------------------------

_row("reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d max_unpool2d max_unpool3d",
     arithmetic=result_layouts.contiguous)  # fmt: skip
_row("pixel_shuffle pixel_unshuffle", arithmetic=result_layouts.composite)
_row("channel_shuffle native_channel_shuffle", arithmetic=result_layouts.shuffled_channels)
_row("native_dropout_backward", arithmetic=result_layouts.suggested)

# ---- copies and fills ------------------------------------------------------------------------------------------------

_row("copy_", copies=True, overwrites=True, mixed_devices=True)
_row("pow", check=scalar_checks.power)
_row("threshold", check=scalar_checks.threshold)
_row("randperm", check=scalar_checks.permutation)
_row("clamp clamp_min", check=operand_dtypes.clamp, arithmetic=cuda_arithmetic.positive_zero)
_row("clamp_max", check=operand_dtypes.clamp)
_row("hardtanh", arithmetic=cuda_arithmetic.positive_zero)
_row("relu", arithmetic=cuda_arithmetic.rectified)
_row("maximum minimum", arithmetic=cuda_arithmetic.extreme)
_row("__lshift__ __ilshift__ bitwise_left_shift", check=operand_dtypes.no_bool("lshift_cuda"))
_row("__rshift__ __irshift__ bitwise_right_shift", check=operand_dtypes.no_bool("rshift_cuda"))
_row("remainder", check=operand_dtypes.no_bool("remainder_cuda"))
_row("fmod", check=operand_dtypes.no_bool("fmod_cuda"))
_row("searchsorted bucketize", check=operand_dtypes.no_bool("searchsorted_out_cuda"))
_row("_foreach_add _foreach_sub _foreach_mul", check=scalar_checks.foreach_integers)
_row("_foreach_addcmul _foreach_addcdiv", check=scalar_checks.scalars_on_cpu)
_row("div", arithmetic=cuda_arithmetic.quotient)
_row("_foreach_div", arithmetic=cuda_arithmetic.list_quotient)
_row("_foreach_copy_", overwrites=True, mixed_devices=True)
_row("_to_copy _copy_from", copies=True, mixed_devices=True)
_row("clone", copies=True)
_row("normal", overwrites=True, waits=waiting.checks_deviations)
_row("fill", check=scalar_checks.fill, overwrites=True)
_row("stack", strict_devices=True, wrapper="cat")
_row("zero _foreach_zero uniform bernoulli random exponential log_normal cauchy geometric", overwrites=True)

# ---- numbers in tensors on the CPU: elementwise kernels take them, except these --------------------------------------
# PointwiseOps.cpp, Lerp.cu, BinaryOps.cpp, `masked_scatter__cuda` and others, tried on PyTorch's CUDA host code.

_row("addcmul lerp", cpu_scalars=(2,))
_row("logical_and logical_or logical_xor", cpu_scalars=(1,))
_row("addcdiv mse_loss smooth_l1_loss binary_cross_entropy complex polar masked_scatter", cpu_scalars=())
_row("binary_cross_entropy_with_logits", cpu_scalars=(0,))

# ---- factories and descriptions --------------------------------------------------------------------------------------
# `_unsafe_view` and friends are not marked as views in their schemas although they share the storage.

_row("empty empty_strided empty_permuted empty_quantized", allocates_only=True)
_row("empty_like new_empty new_empty_strided", allocates_only=True, is_like=True)
_row("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full", is_like=True)
_row("_unsafe_view _reshape_alias lift_fresh lift resize_ is_same_size sym_size sym_stride sym_numel "
     "sym_storage_offset is_pinned result_type can_cast _nested_tensor_size is_contiguous stride size numel dim "
     "_version _has_same_storage_numel _backward requires_grad_ retain_grad set_data _fw_primal _make_dual "
     "is_coalesced resolve_conj resolve_neg _fused_sdp_choice", is_metadata=True)  # fmt: skip
_row("set_", is_metadata=True, mixed_devices=True)
_row("resize_as_", mixed_devices=True)  # it asks for the sizes alone

# ---- what the host waits for, and what takes tensors of the host -----------------------------------------------------

_row("_local_scalar_dense item equal is_nonzero allclose", reads=True)
_row(
    "histc",
    check=scalar_checks.histogram,
    arithmetic=cuda_arithmetic.histogram,
    waits=waiting.finds_its_range,
    nondeterministic=determinism.histogram,
)
_row("_pack_padded_sequence _pack_padded_sequence_backward _pad_packed_sequence _ctc_loss", mixed_devices=True)
_row("_ctc_loss_backward", mixed_devices=True, nondeterministic=determinism.always("ctc_loss_backward_gpu"))

# ---- linear algebra: documentation of torch.linalg; native/BatchLinearAlgebra.cpp ------------------------------------
# Whether a factorisation failed is read on the host, by an operation of its own or inside of these. `matrix_exp` asks
# how many matrices have a small norm (native/LinearAlgebra.cpp, `mexp_impl`).

_row("_linalg_eigh", check=operand_dtypes.no_16_bits("linalg_eigh_cuda"), synchronises=True)
_row("linalg_eig linalg_eigvals", check=operand_dtypes.no_16_bits("linalg_eig_cuda"), synchronises=True)
_row("_linalg_eigvals", check=operand_dtypes.no_16_bits("linalg_eig_cuda"))
_row("_linalg_det", check=operand_dtypes.no_16_bits("lu_factor_cusolver"))
_row("geqrf linalg_qr", check=operand_dtypes.no_16_bits("geqrf_cuda"))
_row("cholesky_inverse cholesky_solve _cholesky_solve_helper", check=operand_dtypes.no_16_bits("cholesky_cuda_potrs"))
_row("triangular_solve", check=operand_dtypes.no_16_bits("triangular_solve_cuda"))
_row("_linalg_svd", arithmetic=result_layouts.singular_vectors, synchronises=True)
_row("_linalg_check_errors linalg_pinv linalg_matrix_exp", synchronises=True)
_row("linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex",
     waits=waiting.checks_errors)  # fmt: skip

# ---- what takes fewer dimensions than tensors may have: native/cuda/Sorting.cpp --------------------------------------

_row("median", few_dimensions=True, nondeterministic=determinism.median)
_row("nanmedian", few_dimensions=True, nondeterministic=determinism.median)
_row("kthvalue", few_dimensions=True)

# ---- no deterministic kernel: PyTorch's host code (the documentation lists others) ---------------------------

for _name, _kernel in {
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "index_reduce": "index_reduce_cuda",
}.items():
    _row(_name, nondeterministic=determinism.always(_kernel))
_row("bincount", nondeterministic=determinism.bincount)
_row("scatter_reduce", nondeterministic=determinism.scatter_reduce)
_row("scatter", nondeterministic=determinism.scatter)
_row("put", nondeterministic=determinism.put)
