"""Why a fused attention kernel cannot run: the checks of sdp_utils.cpp and sdp_utils_cpp.h, for dense tensors.

Each returns None where the kernel can run, else the text of PyTorch's warning ("" where PyTorch says nothing). Not
here: the choice among kernels (`vgpu.torch_integration.kernels.sdp_backends`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.versions import torch_version

_LOW = (torch.float16, torch.bfloat16)
# What came between 2.11 and 2.15 (the texts are in the one library and not in the other).
_WIDE_CUDNN_SINCE = _OFFSETS_SINCE = (2, 15)
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


@dataclass(frozen=True)
class Problem:
    """What the choice depends on (`sdp_params`)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    resident: bool = True

    @property
    def trains(self) -> bool:
        """`input_requires_grad`."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


# A check returns None where it passes, else the warning.
Check = Callable[[VirtualGPU, Problem], str | None]


def on_device(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_all_tensors_on_device`."""
    if problem.resident:
        return None
    return (
        f"All tensors need to be on cuda device. Got query on device: {problem.query.device}, key on device: "
        f"{problem.key.device}, value on device: {problem.value.device}"
    )


def four_dimensions(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_tensor_shapes`."""
    dimensions = [tensor.dim() for tensor in (problem.query, problem.key, problem.value)]
    if dimensions == [4, 4, 4]:
        return None
    return (
        "All fused kernels requires query, key and value to be 4 dimensional, but got Query dim: "
        f"{dimensions[0]}, Key dim: {dimensions[1]}, Value dim: {dimensions[2]} instead."
    )


def no_mask(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_for_attn_mask`."""
    return None if problem.mask is None else "Flash Attention does not support non-null attn_mask."


def flash_head(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_head_dim_size_flash`."""
    widths = [tensor.shape[-1] for tensor in (problem.query, problem.key, problem.value)]
    if len(set(widths)) == 1 and widths[0] <= 256:
        return None
    return (
        "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. "
        f"Got Query.size(-1): {widths[0]}, Key.size(-1): {widths[1]}, Value.size(-1): {widths[2]} instead."
    )


def sm80(prefix: str) -> Check:
    """`check_flash_attention_hardware_support`, `check_cudnn_hardware_support`."""

    def check(gpu: VirtualGPU, problem: Problem) -> str | None:
        major, minor = gpu.spec.compute_capability
        if (8, 0) <= (major, minor) <= (12, 1):
            return None
        return f"{prefix} in the range [sm80, sm121]. Attempting to run on a sm {major}.{minor} gpu."

    return check


def flash_training_head(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`."""
    major, minor = capability = gpu.spec.compute_capability
    if not problem.trains or not ((8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)):
        return None
    width = problem.query.shape[-1]
    if width <= 192 or (problem.dropout == 0.0 and width > 224):
        return None
    return (
        "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or (head_dim ∈ (224, 256] and "
        "dropout > 0.0) on gpu architectures in the range[sm86, sm89].Attempting to run with dropout set to: "
        f"{problem.dropout}and head_dim: {width} on a sm {major}.{minor} gpu."
    )


def square_causal(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_flash_causal_non_square_seqlens`."""
    rows, columns = problem.query.shape[-2], problem.key.shape[-2]
    if not problem.causal or rows == columns:
        return None
    return (
        "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. "
        f"Got seqlen_q: {rows} seqlen_k: {columns}. If you would like to use causal attention with non-square masks, "
        "please see CausalAttnMask."
    )


def _dtypes(problem: Problem, allowed: tuple[torch.dtype, ...]) -> str | None:
    dtypes = [tensor.dtype for tensor in (problem.query, problem.key, problem.value)]
    if len(set(dtypes)) == 1 and dtypes[0] in allowed:
        return None
    shown = [_NAMES.get(dtype, str(dtype).removeprefix("torch.")) for dtype in (*allowed, *dtypes)]
    names, (query, key, value) = shown[: len(allowed)], shown[len(allowed) :]
    return (
        f"Expected query, key and value to all be of dtype: {{{', '.join(names)}}}. Got Query dtype: {query}, "
        f"Key dtype: {key}, and Value dtype: {value} instead."
    )


def low_precision(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_dtypes_low_precision`."""
    return _dtypes(problem, _LOW if gpu.spec.compute_capability[0] >= 8 else (torch.float16,))


def efficient_dtype(gpu: VirtualGPU, problem: Problem) -> str | None:
    """The dtypes at the end of can_use_mem_efficient_attention."""
    new = gpu.spec.compute_capability[0] >= 8
    return _dtypes(problem, (torch.float16, torch.float32, *([torch.bfloat16] if new else [])))


def _alignment(gpu: VirtualGPU, problem: Problem) -> int:
    """`minimum_gemm_alignment`, in elements."""
    major, low = gpu.spec.compute_capability[0], problem.query.dtype in _LOW
    tensor_cores = major >= 8 or (major == 7 and low)
    least = 4 if major >= 8 else 1
    return max(least, 128 // (16 if low else 32)) if tensor_cores else least


def efficient_head(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_head_dim_size_mem_efficient`."""
    alignment = _alignment(gpu, problem)
    query, key, value = (tensor.shape[-1] for tensor in (problem.query, problem.key, problem.value))
    if query == key and query > 0 and value > 0 and query % alignment == 0 and value % alignment == 0:
        return None
    return (
        f"Mem efficient attention requires last dimension of inputs to be divisible by {alignment}. "
        f"Got Query.size(-1): {query}, Key.size(-1): {key}, Value.size(-1): {value} instead."
    )


def efficient_offsets(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_data_ptr_alignment_mem_efficient` (from PyTorch 2.15 on)."""
    if gpu.spec.compute_capability[0] < 8 or torch_version() < _OFFSETS_SINCE:
        return None
    tensors = problem.query, problem.key, problem.value
    alignment = _alignment(gpu, problem) * problem.query.element_size()
    rests = [tensor.storage_offset() * tensor.element_size() % alignment for tensor in tensors]
    if not any(rest for rest, tensor in zip(rests, tensors, strict=True) if tensor.numel()):
        return None
    return (
        "Mem efficient attention on sm80 or newer requires q, k, and v storage offsets * element_size to be aligned to "
        f"{alignment} bytes. Got query.storage_offset() * element_size % alignment_bytes: {rests[0]}, "
        f"key.storage_offset() * element_size % alignment_bytes: {rests[1]}, "
        f"value.storage_offset() * element_size % alignment_bytes: {rests[2]}."
    )


def not_empty(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_nonzero_sequence_lengths_dense`."""
    if problem.query.shape[-2] and problem.key.shape[-2]:
        return None
    return "All fused kernels do not support zero seq_len_q or seq_len_kv."


def last_stride(*, ignore_single: bool) -> Check:
    """`check_last_dim_stride_equals_1_dense`."""

    def check(gpu: VirtualGPU, problem: Problem) -> str | None:
        strides = [tensor.stride(-1) for tensor in (problem.query, problem.key, problem.value)]
        fine = strides == [1, 1, 1] or (ignore_single and problem.query.shape[-1] == 1)
        if fine and (problem.mask is None or problem.mask.stride(-1) == 1):
            return None
        text = (
            "All fused kernels require the last dimension of the input to have stride 1. "
            f"Got Query.stride(-1): {strides[0]}, Key.stride(-1): {strides[1]}, Value.stride(-1): {strides[2]}"
        )
        if problem.mask is not None:
            text += (
                f", Attn_mask.stride(-1): {problem.mask.stride(-1)} (GPU backends require attn_mask's last dimension "
                "to have stride 1 while the CPU does not)."
            )
        return text

    return check


def heads(*, grouped: bool) -> Check:
    """`check_batch_size_and_num_heads_dense`."""

    def check(gpu: VirtualGPU, problem: Problem) -> str | None:
        tensors = problem.query, problem.key, problem.value
        batches, heads = [tensor.shape[0] for tensor in tensors], [tensor.shape[-3] for tensor in tensors]
        advice = "To broadcast dense inputs, try using unsqueeze and expand_to before passing them into the kernel."
        if len(set(batches)) > 1:
            return (
                "For dense inputs, both fused kernels require query, key and value to have the same batch_size. Got "
                f"Query batch_size: {batches[0]}, Key batch_size: {batches[1]}, Value batch_size: {batches[2]} "
                f"instead. {advice}"
            )
        if problem.grouped and grouped:
            if heads[1] == heads[2] and heads[1] > 0 and heads[0] % heads[1] == 0:
                return None
            return (
                "The number of heads in key/value must divide number of heads in query.Got Key num_heads: "
                f"{heads[1]}, Value num_heads: {heads[2]}, Query num_heads: {heads[0]} instead."
            )
        if len(set(heads)) > 1:
            return (
                "For dense input, both fused kernels require query, key and value to have the same num_heads. Got "
                f"Query num_heads: {heads[0]}, Key num_heads: {heads[1]}, Value num_heads: {heads[2]} instead. "
                + advice
            )
        return None

    return check


def mask_shape(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_attn_mask_shape`."""
    mask = problem.mask
    if mask is None:
        return None
    if mask.requires_grad:
        return ""
    full_shape = (problem.query.shape[0], problem.query.shape[1], problem.query.shape[2], problem.key.shape[2])
    pairs = zip(reversed(mask.shape), reversed(full_shape), strict=False)
    if mask.dim() in (2, 4) and all(size in (1, edge) for size, edge in pairs):
        return None
    return (
        "Please use the following attn mask shapes: 2d - ({Q_seq_len, 1}  x {KV_seq_len, 1}); "
        "4d - ({Batch, 1} x {Num_heads, 1} x {Q_seq_len, 1}  x {KV_seq_len, 1})"
    )


def deterministic(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_cudnn_deterministic`."""
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return "cuDNN SDPA is not deterministic." if strict else None


def sixteenths(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_cudnn_dropout`."""
    if problem.dropout * 16.0 == math.floor(problem.dropout * 16.0):
        return None
    return (
        "cuDNN dropout probability resolution is limited to 1/16."
        "Use a dropout probability that is a multiple of 1/16 to select the cuDNN backend"
    )


def cudnn_shapes(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_cudnn_tensor_shapes` with the cuDNN of PyTorch's wheels: 9.19 in 2.11, 9.26 in 2.15."""
    width, values = problem.query.shape[3], problem.value.shape[3]
    limit = 128
    if gpu.spec.compute_capability[0] in (9, 10):
        if torch_version() >= _WIDE_CUDNN_SINCE:
            limit = 256
        elif (width, values) == (192, 128):
            limit = 192
    if width > limit or values > limit:
        return f"head_dim should be no more than {limit}"
    if width % 8 or values % 8:
        return "head_dim should be a multiple of 8"
    if problem.key.shape[2] == 1:
        return "cudnn SDPA does not support key/value sequence length 1."
    if problem.dropout != 0.0 and problem.query.shape[2] == 1:
        return "cudnn SDPA does not support query sequence length 1 with dropout."
    return None


def cudnn_training_head(gpu: VirtualGPU, problem: Problem) -> str | None:
    """`check_cudnn_d256_bprop_head_dim`."""
    width, values = problem.query.shape[3], problem.value.shape[3]
    wide = gpu.spec.compute_capability[0] in (9, 10) and torch_version() >= _WIDE_CUDNN_SINCE
    if not problem.trains or not wide or (width <= 128 and values <= 128):
        return None
    if (width, values) in ((192, 128), (256, 256)):
        return None
    return (
        "cuDNN SDPA on SM 9.0/10.x does not support backward with these head dimensions. "
        f"Got d_qk: {width}, d_v: {values}"
    )
