"""How tensors of convolutions lie in memory: an image's channels after each other (NCHW), or its pixels (NHWC).

PyTorch calls the second `channels_last`. Not here: what a layout costs (`vgpu.runtime.operations.convolutions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether `suggest_memory_format` would say so: by the strides, so that windows of 1 x 1 count as well."""
    channels = tensor.shape[1] if tensor.dim() > 3 else 1
    return channels > 1 and tensor.stride(1) == 1 and tensor.stride(-1) == channels


def is_planar(tensor: torch.Tensor) -> bool:
    """Whether the pixels of images, more than one of each, lie in memory channel after channel."""
    return tensor.dim() > 3 and tensor.stride(1) != 1 and tensor.shape[2:].numel() > 1


def of_results(base: str, args: Sequence[Any], results: Any) -> Any:
    """Meta results of a convolution as CUDA lays them out: NHWC where the input or the weight is.

    `cudnn_conv_suggest_memory_format` (aten/src/ATen/native/ConvUtils.h); PyTorch's rules for meta tensors do not ask.
    """
    inputs, weight = args[1:3] if base == "convolution_backward" else args[:2]
    if not (is_channels_last(inputs) or is_channels_last(weight)):
        return results
    if isinstance(results, torch.Tensor):
        return _channels_last(results)
    return tuple(_channels_last(item) for item in results)


def _channels_last(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or tensor.dim() not in _FORMATS:
        return tensor
    return torch.empty_like(tensor, memory_format=_FORMATS[tensor.dim()])
