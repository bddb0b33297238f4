"""`torch.use_deterministic_algorithms`: operations whose CUDA kernels have no deterministic implementation.

Names of operations from the documentation of that function, the kernels' names from the calls of
`globalContext().alertNotDeterministic` in aten/src/ATen/native/cuda. Not here: CPU kernels, which check themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

KERNELS = {
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "adaptive_max_pool3d_backward": "adaptive_max_pool3d_backward_cuda",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad2d_backward": "reflection_pad2d_backward_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "histc": "_histc_cuda",
    "bincount": "_bincount_cuda",
    "median": "median CUDA with indices output",
}


def require(base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError, or warn, as CUDA does where the program has asked for deterministic algorithms."""
    if base == "median" and len(args) < 2:
        return  # without a dimension there are no indices
    if base == "bincount" and (args[1] if len(args) > 1 else kwargs.get("weights")) is None:
        return
    start = f"{KERNELS[base]} does not have a deterministic implementation, but you set "
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(
            f"{start}'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
            "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
            "operation.",
            stacklevel=2,
        )
        return
    raise RuntimeError(
        f"{start}'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or "
        "you can use the 'warn_only=True' option, if that's acceptable for your application. You can also file an "
        "issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
        "this operation."
    )
