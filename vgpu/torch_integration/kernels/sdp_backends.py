"""Which kernel `scaled_dot_product_attention` would run on a GPU, and the warnings that say why one cannot.

The rules and texts of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h, in their order, for
dense tensors. Not here: the single checks (`vgpu.torch_integration.kernels.sdp_checks`), the kernels
(`vgpu.torch_integration.kernels.cuda_kernels`) and the call itself (`vgpu.torch_integration.kernels.attention`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.versions import torch_version
from vgpu.torch_integration.kernels import sdp_checks as checks
from vgpu.torch_integration.kernels.sdp_checks import Check, Problem

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # at::SDPBackend
# From this version on the memory-efficient kernel takes grouped heads, and is said to want aligned offsets
# (documentation of scaled_dot_product_attention in 2.15; sdp_utils.cpp).
_EFFICIENT_GROUPS_SINCE = (2, 15)
_CUDNN_FIRST = [CUDNN, FLASH, EFFICIENT, MATH]


def preferred_order(gpu: VirtualGPU) -> list[int] | None:
    """`check_prefer_cudnn_attention`: Hopper and Blackwell try cuDNN first; None leaves the order as it is."""
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "").lower() in ("1", "true", "on", "yes", "y")
    return list(_CUDNN_FIRST) if gpu.spec.compute_capability[0] in (9, 10) and not deprioritized else None


def choose(gpu: VirtualGPU, problem: Problem) -> int:
    """`select_sdp_backend`; raises RuntimeError, after warnings, where no kernel that is switched on can run."""
    cuda = torch.backends.cuda
    switched_on = cuda.math_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()
    if not any(switched_on) and not cuda.cudnn_sdp_enabled():
        raise RuntimeError("No viable backend for scaled_dot_product_attention was found.")
    able = {CUDNN: can_use_cudnn, FLASH: can_use_flash, EFFICIENT: can_use_efficient}
    for backend in torch._C._get_sdp_priority_order():
        if backend == MATH:
            if cuda.math_sdp_enabled():
                return MATH
        elif backend in able and able[backend](gpu, problem):
            return int(backend)
    for name, able_to in (
        ("Memory efficient kernel", can_use_efficient),
        ("Flash attention kernel", can_use_flash),
        ("cuDNN attention kernel", can_use_cudnn),
    ):
        warnings.warn(f"{name} not used because:", stacklevel=3)
        able_to(gpu, problem, debug=True)
    raise RuntimeError("No available kernel. Aborting execution.")


def _passes(gpu: VirtualGPU, problem: Problem, needed: Sequence[Check], debug: bool) -> bool:
    for check in needed:
        reason = check(gpu, problem)
        if reason is not None:
            if debug and reason:
                warnings.warn(reason, stacklevel=4)
            return False
    return True


def _switched_on(name: str) -> Check:
    enabled = {
        "Flash": torch.backends.cuda.flash_sdp_enabled,
        "Memory Efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cuDNN": torch.backends.cuda.cudnn_sdp_enabled,
    }[name]
    return lambda gpu, problem: None if enabled() else f"{name} attention has been runtime disabled."


_FLASH_CHECKS: tuple[Check, ...] = (
    _switched_on("Flash"), checks.on_device, checks.four_dimensions, checks.no_mask, checks.flash_head,
    checks.sm80("Flash attention only supports gpu architectures"), checks.flash_training_head, checks.square_causal,
    checks.low_precision, checks.heads(grouped=True), checks.not_empty, checks.last_stride(ignore_single=True),
)  # fmt: skip
_EFFICIENT_CHECKS: tuple[Check, ...] = (
    _switched_on("Memory Efficient"), checks.on_device, checks.four_dimensions, checks.efficient_head,
    checks.efficient_offsets, checks.not_empty, checks.last_stride(ignore_single=False),
    checks.heads(grouped=torch_version() >= _EFFICIENT_GROUPS_SINCE), checks.efficient_dtype,
)  # fmt: skip
_CUDNN_CHECKS: tuple[Check, ...] = (
    _switched_on("cuDNN"), checks.on_device, checks.four_dimensions, checks.deterministic, checks.low_precision,
    checks.mask_shape, checks.sm80("cuDNN MHA only supports gpu architectures"), checks.sixteenths, checks.not_empty,
    checks.last_stride(ignore_single=True), checks.heads(grouped=True), checks.cudnn_shapes,
    checks.cudnn_training_head,
)  # fmt: skip


def can_use_flash(gpu: VirtualGPU, problem: Problem, debug: bool = False) -> bool:
    """`can_use_flash_attention`; with `debug` it warns why not."""
    return _passes(gpu, problem, _FLASH_CHECKS, debug)


def can_use_efficient(gpu: VirtualGPU, problem: Problem, debug: bool = False) -> bool:
    """`can_use_mem_efficient_attention`; with `debug` it warns why not."""
    return _passes(gpu, problem, _EFFICIENT_CHECKS, debug)


def can_use_cudnn(gpu: VirtualGPU, problem: Problem, debug: bool = False) -> bool:
    """`can_use_cudnn_attention`; with `debug` it warns why not."""
    return _passes(gpu, problem, _CUDNN_CHECKS, debug)
