"""What a convolution is for cuDNN: which product, of which images, and how its operands lie.

Not here: seconds (`vgpu.device.convolution_cost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from vgpu.device.kernel_work import Convolution, Product
from vgpu.runtime.operations.layouts import is_planar

_OF_TRANSPOSED = {"forward": "input", "input": "forward", "weight": "weight"}


def forward(args: Sequence[Any], out: torch.Tensor) -> Product:
    """`convolution` as the product (images x pixels, input channels x window) @ (the same, output channels)."""
    return _product(args, out, ("forward",))


def backward(args: Sequence[Any], out: Any) -> Product:
    """`convolution_backward`: one such product for the gradient of the input, one for that of the weight."""
    gradient, inputs, weight, mask = args[0], args[1], args[2], args[10]
    passes = tuple(name for name, wanted in zip(("input", "weight"), mask[:2], strict=True) if wanted)
    product = _product([inputs, weight, None, *args[4:10]], gradient, passes)
    return product._replace(times=float(len(passes)), backward=True)


def _product(args: Sequence[Any], out: torch.Tensor, passes: tuple[str, ...]) -> Product:
    inputs, weight, transposed = args[0], args[1], args[6]
    groups = max(int(args[8]), 1)
    spatial = (inputs if transposed else out).shape[2:]
    columns = weight.shape[0] if transposed else weight.shape[0] // groups
    reduced = weight.shape[1:].numel()
    images = inputs.shape[0] if inputs.dim() > 2 else 1
    batch = 1 if transposed else groups
    source, result = (out, inputs) if transposed else (inputs, out)
    convolution = Convolution(
        tuple(_OF_TRANSPOSED[name] for name in passes) if transposed else passes,
        images,
        weight.shape[1] * groups,
        weight.shape[0],
        source.shape[2:].numel(),
        result.shape[2:].numel(),
        weight.shape[2:].numel(),
        groups,
        any(step != 1 for step in (*args[3], *args[5])),
        is_planar(source),
        is_planar(result),
    )
    return Product(batch, inputs.shape[0] * prod(spatial), columns, reduced, convolution=convolution)


def operand_bytes(base: str, args: Sequence[Any], moved: int) -> int:
    """`moved`, and what the second kernel of a backward reads again: the gradient of the result."""
    return moved + args[0].nbytes if base == "convolution_backward" and all(args[10][:2]) else moved
