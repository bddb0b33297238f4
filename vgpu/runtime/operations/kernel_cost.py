"""What an operation asks of the device: its product or its traffic, its precision, its launches, as one `KernelWork`.

From shapes, dtypes and layouts alone, so that it is the same for every card. Not here: which product an operation is
(`vgpu.runtime.operations.products`), what passes through memory (`vgpu.runtime.operations.traffic`), seconds
(`vgpu.device.pricing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vgpu.device import cost
from vgpu.device.kernel_work import PRODUCT, KernelWork
from vgpu.runtime.operations import convolutions, precision, products, traffic
from vgpu.runtime.operations.operation import Operation, number_of

DTYPE_NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in cost.BYTES_PER_ELEMENT}
_STRIDED, _FLOAT32 = torch.strided, torch.float32
_FLOATING = {
    dtype: DTYPE_NAMES.get(dtype, "float32")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point
}
# How many tensors one launch of a foreach kernel takes, by the number of tensor lists (MultiTensorApply.cuh).
_TENSORS_PER_LAUNCH = (110, 110, 64, 48, 36, 30)
# Products of dense matrices, by operation, shapes, precisions and settings: programs repeat theirs at every step.
_known_products: dict[Any, KernelWork] = {}
# Small elementwise kernels of dense tensors, likewise: below this size, strides decide nothing.
_known_elementwise: dict[Any, KernelWork] = {}
_MOST_KNOWN = 20_000
_MOST_SHAPES = 8
"""That a kernel's entry shows."""
# Kinds of calls next to those of `vgpu.runtime.operations.table`'s rows: what autograd's engine calls, by the row's
# kind.
_FOREACH, _BACKWARD = "foreach", "backward"
_IN_BACKWARD = {
    "product": "product_backward", "convolution_backward": "convolution_backward", "norm_backward": "norm_backward",
}  # fmt: skip
CALLS_OF_NO_ROW = {_FOREACH, _BACKWARD, *_IN_BACKWARD.values()}
# A convolution with the algorithm that `cudnn.benchmark` found, against the one of cuDNN's heuristic: modelled.
_TUNED_RATIO = 0.9


def of_operation(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    *,
    with_elements: bool,
) -> KernelWork:
    """The kernel of an operation on tensors of a GPU.

    `with_elements` asks for what decides whether it leaves room next to itself.
    """
    # Plain tuples: the garbage collector would look at each torch.Size that is kept again and again.
    shapes = tuple([tuple(tensor.shape) for tensor in inputs[:_MOST_SHAPES]])
    elements = max([tensor.numel() for tensor in outputs or inputs], default=0) if with_elements else 0
    if operation.product is not None:
        if operation.library == "blas":
            return _known_product(operation, args, inputs, outputs, shapes, elements)
        return _product(operation, args, inputs, outputs, shapes, elements)
    if operation.repeats:
        return _known(operation, args, inputs, outputs, shapes, elements)
    return _moving(operation, args, inputs, outputs, shapes, elements)


def repeated(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> KernelWork | None:
    """The kernel, if it is kept: that of every call with tensors of these shapes and dtypes; else None."""
    work = of_operation(operation, args, inputs, outputs, with_elements=False)
    return work if of_operation(operation, args, inputs, outputs, with_elements=False) is work else None


def _known(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    shapes: tuple[tuple[int, ...], ...],
    elements: int,
) -> KernelWork:
    """The same object for the same small elementwise kernel: shapes, dtypes and which tensor is which decide it."""
    key: list[Any] = [number_of(operation), shapes, elements, _call_of(operation)]
    first, last = (inputs[0], inputs[-1]) if inputs else (None, None)
    for tensor in inputs:
        if tensor.layout is not _STRIDED:
            return _moving(operation, args, inputs, outputs, shapes, elements)
        key.append(tensor.dtype)
        key.append(tensor is first)
    for tensor in outputs:
        key.append(tensor.dtype)
        key.append(tuple(tensor.shape))
        key.append(tensor is first)
        key.append(tensor is last)
    identity = tuple(key)
    known = _known_elementwise.get(identity)
    if known is None:
        known = _moving(operation, args, inputs, outputs, shapes, elements)
        is_small = traffic.bytes_of(operation, inputs, outputs) <= traffic.SMALL_BYTES
        if is_small and len(inputs) <= _MOST_SHAPES and len(_known_elementwise) < _MOST_KNOWN:
            _known_elementwise[identity] = known
    return known


def _moving(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    shapes: tuple[tuple[int, ...], ...],
    elements: int,
) -> KernelWork:
    moving = traffic.of_kernel(operation, args, inputs, outputs)
    launches = _launches_of(args) if operation.is_foreach else 1
    dtype = dtype_name(inputs or outputs)
    return KernelWork(
        operation.name, moving.bytes, dtype, shapes, moving.share, launches, _call_of(operation), elements,
        cached=operation.elementwise or moving.share == 1.0, cycles=moving.cycles, phases=moving.phases,
        blocks=moving.blocks, again=moving.again,
    )  # fmt: skip


def _call_of(operation: Operation) -> str:
    """The kind of call: autograd's engine calls what it differentiates itself, and what is recomputed as in forward."""
    if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
        return _IN_BACKWARD.get(operation.call, _BACKWARD)
    return operation.call or (_FOREACH if operation.is_foreach else "")


def _known_product(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    shapes: tuple[tuple[int, ...], ...],
    elements: int,
) -> KernelWork:
    """The same object for the same product: shapes and precisions decide all of it, where the operands are dense."""
    kinds = []
    for tensor in inputs:
        if tensor.layout is not _STRIDED:
            return _product(operation, args, inputs, outputs, shapes, elements)
        kinds.append(tensor.dtype)
    for tensor in outputs:
        kinds.append(tensor.dtype)
    first = kinds[0]
    tf32 = first is _FLOAT32 and precision.may_use_tf32(operation, first)
    # Operations are made once and kept: their identity says which one it is.
    key = number_of(operation), shapes, tuple(kinds), elements, tf32, _call_of(operation)
    known = _known_products.get(key)
    if known is None:
        known = _product(operation, args, inputs, outputs, shapes, elements)
        if len(_known_products) < _MOST_KNOWN:
            _known_products[key] = known
    return known


def _product(
    operation: Operation,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    shapes: tuple[tuple[int, ...], ...],
    elements: int,
) -> KernelWork:
    base, out = operation.base, outputs[0] if outputs else None
    assert operation.product is not None
    moved, ratio = traffic.bytes_of(operation, inputs, outputs), 1.0
    if operation.is_convolution:
        moved = convolutions.operand_bytes(base, args, moved)
        if torch.backends.cudnn.benchmark:
            ratio = _TUNED_RATIO
    product = operation.product(args, out)
    for tensor in inputs:
        if tensor.layout is not torch.strided:  # as many multiplications as there are values (cuSPARSE)
            product = product._replace(times=product.times * products.filled(tensor))
    return KernelWork(
        operation.name, moved, dtype_name(inputs or outputs), shapes, call=_call_of(operation), elements=elements,
        kind=PRODUCT, product=product, tf32=precision.may_use_tf32(operation, inputs[0].dtype),
        ratio=ratio,
    )  # fmt: skip


def dtype_name(tensors: Sequence[torch.Tensor]) -> str:
    """The precision that decides an operation's rate: that of the first floating-point tensor."""
    for tensor in tensors:
        name = _FLOATING.get(tensor.dtype)
        if name is not None:
            return name
    return DTYPE_NAMES.get(tensors[0].dtype, "float32") if tensors else "float32"


def _launches_of(args: Sequence[Any]) -> int:
    """Kernels that one foreach or fused operation launches."""
    lists = [item for item in args if isinstance(item, (list, tuple)) and item and isinstance(item[0], torch.Tensor)]
    if not lists:
        return 1
    return -(-len(lists[0]) // _TENSORS_PER_LAUNCH[min(len(lists), 5)])
