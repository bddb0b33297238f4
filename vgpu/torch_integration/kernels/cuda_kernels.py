"""Operations that CUDA has as one kernel and the CPU has not, computed here: fused attention, RMSNorm, mixed softmax.

PyTorch's own autograd formulas (tools/autograd/derivatives.yaml) then save what they save on CUDA; attention with
dropout saves the seed of its mask. Not here: attention's arithmetic (`vgpu.torch_integration.kernels.fused_attention`),
which kernel is chosen (`vgpu.torch_integration.kernels.sdp_backends`), and what kernels cost.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vgpu.torch_integration.kernels import norm_kernels, recurrent, sync_batch_norm, wide_products
from vgpu.torch_integration.kernels.fused_attention import FusedAttention

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_Tensor = torch.Tensor
_aten = torch.ops.aten
# Rows of the memory-efficient kernel's log-sum-exp are padded to this (kernel_forward.h, kAlignLSE).
_ALIGN_LSE = 32


def _empty(gpu: VirtualGPU, shape: Sequence[int], dtype: torch.dtype) -> _Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cpu" if gpu.values else "meta")


def _like(gpu: VirtualGPU, tensor: _Tensor) -> _Tensor:
    """As flash attention allocates its output: the layout of the query (`empty_like`)."""
    return torch.empty_like(tensor)


def _seed(gpu: VirtualGPU, dropout: float) -> tuple[_Tensor, _Tensor]:
    """Philox seed and offset; drawn from the GPU's generator only where dropout needs them."""
    if not gpu.values or dropout <= 0.0:
        return _empty(gpu, (), torch.int64), _empty(gpu, (), torch.int64)
    return torch.tensor(gpu.generator.next_seed()), torch.zeros((), dtype=torch.int64)


def _named(names: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, None where the caller gave none."""
    listed = names.split()
    return dict.fromkeys(listed) | dict(zip(listed, args, strict=False)) | dict(kwargs)


def _forward(
    gpu: VirtualGPU, arguments: Mapping[str, Any], bias: _Tensor | None
) -> tuple[_Tensor, _Tensor | None, _Tensor, _Tensor]:
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    dropout, causal = float(arguments["dropout_p"] or 0.0), bool(arguments["is_causal"])
    seed, offset = _seed(gpu, dropout)
    batch, heads, rows = query.shape[:3]
    if arguments.get("compute_log_sumexp") is None or "return_debug_mask" in arguments:
        # flash_api.cpp, MHA.cpp: the layout of the query.
        same = query.shape[-1] == value.shape[-1]
        output = torch.empty_like(query) if same else _empty(gpu, (batch, heads, rows, value.shape[-1]), query.dtype)
    else:
        # attention.cu, `_efficient_attention_forward`: rows before heads.
        output = _empty(gpu, (batch, rows, heads, value.shape[-1]), query.dtype).transpose(1, 2)
    if not gpu.values:
        return output, None, seed, offset
    result, sums = FusedAttention(query, key, value, bias, dropout, causal, arguments["scale"], seed).forward()
    return output.copy_(result), sums, seed, offset


def _flash_forward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named("query key value dropout_p is_causal return_debug_mask scale", args, kwargs)
    output, sums, seed, offset = _forward(gpu, arguments, None)
    query, key = arguments["query"], arguments["key"]
    if sums is None:
        sums = _empty(gpu, query.shape[:3], torch.float32)
    debug = _empty(gpu, (0,), query.dtype)
    return output, sums, None, None, query.shape[2], key.shape[2], seed, offset, debug


def _efficient_forward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = _named("query key value attn_bias compute_log_sumexp dropout_p is_causal scale", args, kwargs)
    output, sums, seed, offset = _forward(gpu, arguments, arguments["attn_bias"])
    batch, heads, rows = arguments["query"].shape[:3]
    padded = -(-rows // _ALIGN_LSE) * _ALIGN_LSE if arguments["compute_log_sumexp"] else 0
    kept = _empty(gpu, (batch, heads, padded), torch.float32)
    if sums is not None and padded:
        kept[..., :rows] = sums
    return output, kept, seed, offset


def _cudnn_forward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    names = "query key value attn_bias compute_log_sumexp dropout_p is_causal return_debug_mask scale"
    arguments = _named(names, args, kwargs)
    output, sums, seed, offset = _forward(gpu, arguments, arguments["attn_bias"])
    query, key = arguments["query"], arguments["key"]
    kept = _empty(gpu, (*query.shape[:3], 1) if arguments["compute_log_sumexp"] else (0,), torch.float32)
    if sums is not None and kept.numel():
        kept.copy_(sums[..., None])
    return output, kept, None, None, query.shape[2], key.shape[2], seed, offset, None


def _backward(
    gpu: VirtualGPU, arguments: Mapping[str, Any], bias: _Tensor | None, mask: Sequence[bool]
) -> list[_Tensor | None]:
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    grads: list[_Tensor | None] = [torch.empty_like(tensor) for tensor in (query, key, value)]
    if bias is not None and len(mask) > 3 and mask[3]:
        shape = (*query.shape[:3], key.shape[2])
        grads.append(_empty(gpu, shape, bias.dtype))
    if not gpu.values:
        return grads
    rows = query.shape[2]
    sums = arguments["logsumexp"].reshape(*query.shape[:2], -1)[..., :rows]
    dropout = float(arguments["dropout_p"])
    problem = FusedAttention(
        query, key, value, bias, dropout, bool(arguments["is_causal"]), arguments["scale"], arguments["philox_seed"]
    )
    computed = problem.backward(arguments["grad_out"], arguments["out"], sums, bias=len(grads) > 3)
    for target, source in zip(grads, computed, strict=False):
        if target is not None and source is not None:
            target.copy_(source)
    return grads


def _flash_backwards(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal philox_seed "
        "philox_offset scale"
    )
    return tuple(_backward(gpu, _named(names, args, kwargs), None, (True, True, True)))


def _efficient_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (
        "grad_out query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask "
        "is_causal scale"
    )
    arguments = _named(names, args, kwargs)
    grads = _backward(gpu, arguments, arguments["attn_bias"], arguments["grad_input_mask"])
    return (*grads, None)[:4]


def _cudnn_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (
        "grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k "
        "dropout_p is_causal scale"
    )
    arguments = _named(names, args, kwargs)
    return tuple(_backward(gpu, arguments, arguments["attn_bias"], (True, True, True)))


def _softmax(name: str) -> Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]:
    """SoftMax.cu: `_softmax` and `_log_softmax` read FP16 and write FP32 in one kernel (half_to_float)."""
    forward = getattr(_aten, name).default

    def compute(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Tensor:
        tensor, axis, to_float = args
        if not gpu.values:
            return torch.empty_like(tensor, dtype=torch.float32 if to_float else None)
        result: _Tensor = forward(tensor.float() if to_float else tensor, axis, False)
        return result

    return compute


def _softmax_backward(name: str) -> Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]:
    backward = getattr(_aten, name).default

    def compute(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Tensor:
        gradient, output, axis, dtype = args
        if not gpu.values:
            return torch.empty_like(gradient, dtype=dtype)
        result: _Tensor = backward(gradient, output, axis, gradient.dtype)
        return result.to(dtype)

    return compute


def _log_sigmoid(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_Tensor, _Tensor]:
    """Activation.cpp, `log_sigmoid_forward_cuda`: no buffer, which the CPU's kernel keeps for backward."""
    (tensor,) = args
    result = torch.empty_like(tensor)
    if gpu.values:
        result.copy_(_aten.log_sigmoid_forward.default(tensor)[0])
    return result, _empty(gpu, (0,), tensor.dtype)


def _log_sigmoid_backward(gpu: VirtualGPU, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Tensor:
    gradient, tensor = args[:2]
    return gradient * torch.sigmoid(-tensor) if gpu.values else torch.empty_like(gradient)


KERNELS: dict[str, Callable[[VirtualGPU, Sequence[Any], Mapping[str, Any]], Any]] = {
    "_scaled_dot_product_flash_attention": _flash_forward,
    "_scaled_dot_product_flash_attention_backward": _flash_backwards,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn_forward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "log_sigmoid_forward": _log_sigmoid,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "_softmax": _softmax("_softmax"),
    "_log_softmax": _softmax("_log_softmax"),
    "_softmax_backward_data": _softmax_backward("_softmax_backward_data"),
    "_log_softmax_backward_data": _softmax_backward("_log_softmax_backward_data"),
    **norm_kernels.KERNELS,
    **wide_products.KERNELS,
    **sync_batch_norm.KERNELS,
    **recurrent.KERNELS,
}
