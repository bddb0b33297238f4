"""What a convolution is for cuDNN: which product, by which kind of kernel, and what its operands' layout costs.

Not here: seconds (`vgpu.device.cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from vgpu.device.kernel_work import Product
from vgpu.device.pricing import DEPTHWISE, IMPLICIT, WINOGRAD
from vgpu.runtime.operations.layouts import is_planar


def forward(args: Sequence[Any], out: torch.Tensor) -> Product:
    """`convolution` as the product (images x pixels, input channels x window) @ (the same, output channels)."""
    inputs, weight, transposed = args[0], args[1], args[6]
    groups = max(int(args[8]), 1)
    spatial = (inputs if transposed else out).shape[2:]
    columns = weight.shape[0] if transposed else weight.shape[0] // groups
    reduced = weight.shape[1:].numel()
    batch = 1 if transposed else groups
    return Product(batch, inputs.shape[0] * prod(spatial), columns, reduced, kernel=_kind(args, weight, groups))


def backward(args: Sequence[Any], out: Any) -> Product:
    """`convolution_backward`: one such product for the gradient of the input, one for that of the weight."""
    gradient, inputs, weight, mask = args[0], args[1], args[2], args[10]
    count = float(bool(mask[0])) + float(bool(mask[1]))
    return forward([inputs, weight, None, *args[4:10]], gradient)._replace(times=count, backward=True)


def _kind(args: Sequence[Any], weight: torch.Tensor, groups: int) -> str:
    if groups > 1 and weight.shape[1] == 1:
        return DEPTHWISE
    plain = groups == 1 and weight.shape[2:] == (3, 3) and not args[6]
    return WINOGRAD if plain and all(step == 1 for step in (*args[3], *args[5])) else IMPLICIT


def layout_bytes(base: str, args: Sequence[Any], out: Any) -> int:
    """Bytes that cuDNN moves to bring operands and results to NHWC, the layout that tensor cores want, and back.

    Each transposition reads and writes a tensor once (NVIDIA, "Convolutional Layers User's Guide", section 2.3.1,
    "Tensor Layouts In Memory: NCHW vs NHWC"). The gradients of input and weight are two calls, each with its own.
    """
    calls, tensors = 1, (args[0], out)
    if base == "convolution_backward":
        calls, tensors = sum(map(bool, args[10][:2])), (args[0], args[1])
    planar: int = sum(tensor.nbytes for tensor in tensors if is_planar(tensor))
    return 2 * calls * planar


def operand_bytes(base: str, args: Sequence[Any], moved: int) -> int:
    """`moved`, and what the second kernel of a backward reads again: the gradient of the result."""
    return moved + args[0].nbytes if base == "convolution_backward" and all(args[10][:2]) else moved
