"""What follows an operation's kernel on the CPU: a card's error instead of the CPU's, memory, and time.

Not here: which kernel that is (`vgpu.torch_integration.dispatch.dispatch_mode`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.operations import cpu_gaps, cuda_values, scalar_ranges
from vgpu.runtime.operations.accumulation import is_accumulated
from vgpu.runtime.operations.operation import Operation
from vgpu.runtime.operations.waiting import waits
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.unsupported import unsupported
from vgpu.torch_integration.dispatch import device_asserts, device_rules, extensions

_Tensor = torch.Tensor
# Asking `isinstance` of what is no plain tensor is slow (PyTorch's metaclass answers): the common types come first.
PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_SCALARS = frozenset((int, float, bool, type(None), torch.dtype, str, torch.device))
_STRIDED = torch.strided


def recover(
    error: Exception,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: list[torch.Tensor],
    gpu: VirtualGPU,
) -> Any:
    """The result where the CPU's kernel has failed; raises if a card's fails, too."""
    if isinstance(error, NotImplementedError):
        # The CPU build lacks the kernel and CUDA has one: our limit, not the program's mistake.
        if str(error).startswith("Could not run") and extensions.has_cuda_kernel(operation.overload.name()):
            raise unsupported("kernels that the CPU underneath lacks", operation.name) from error
        return cpu_gaps.compute(operation, args, kwargs, inputs, error)
    # The CPU kernel says at once which value is wrong. On a card the kernel fails later.
    if cuda_values.is_division_by_zero(operation, error):
        return cuda_values.divide(operation, args, kwargs)
    if wide := scalar_ranges.wider(operation, error):
        return scalar_ranges.compute(operation, args, kwargs, wide)
    assertion = device_asserts.assertion_of(operation, error)
    if assertion is None:
        if isinstance(error, RuntimeError):
            device_rules.require_room_for_failed(gpu, error)
        return cpu_gaps.compute(operation, args, kwargs, inputs, error)
    gpu.fail(assertion, error)
    return device_asserts.outcome(operation, args, kwargs)


def settle(
    gpu: VirtualGPU,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: list[torch.Tensor],
    result: Any,
) -> list[torch.Tensor]:
    """Results become resident (in the order of CUDA: the output is allocated, then the kernel launched)."""
    results = outputs = [result] if type(result) is _Tensor else tensors_in((result,))
    if operation.library:
        gpu.prepare_library(operation)
    add, is_result = gpu.registry.add, not operation.is_factory
    stream = THREAD.streams.get(gpu.index, 0)  # `gpu.stream`, written out
    # If nobody else holds the first gradient, autograd on a card adds into it. Under a mode it adds out of
    # place, so the bytes are handed over here: no second block, no higher peak.
    if operation.is_sum and is_accumulated(args) and not gpu.registry.has(outputs[0]):
        gpu.registry.transfer_ownership(args[0], outputs[0], gpu)
    for tensor in outputs:
        add(tensor, gpu, stream, is_result=is_result)
    if operation.takes_scratch and _are_dense(inputs):
        gpu.workspaces.use(operation, args, inputs, outputs)
    if operation.may_resize:
        for tensor in inputs + outputs:
            gpu.registry.refresh(tensor, stream)
    if not operation.launches:
        gpu.charge_metadata(operation)
        return results
    if operation.mutates and not outputs:
        outputs = tensors_in([args[place] for place in operation.written if place < len(args)]) or inputs
    gpu.charge(operation, args, inputs, outputs)
    # A shape may depend on values (nonzero, a mask), and a factorisation may have failed. PyTorch reads that from
    # the device, so the host waits here without any `.item()` in the program.
    may_wait = operation.synchronises or operation.depends_on_data or operation.waits is not None
    if may_wait and waits(operation, args, kwargs):
        gpu.report_wait()
        gpu.synchronize(stream)
    return results


def _are_dense(tensors: list[torch.Tensor]) -> bool:
    for tensor in tensors:  # noqa: SIM110 - a generator would cost as much again
        if tensor.layout is not _STRIDED:
            return False
    return True


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among arguments, those in lists included."""
    tensors: list[torch.Tensor] = []
    for value in values:
        kind = type(value)
        if kind in PLAIN_TENSORS:
            tensors.append(value)
        elif kind in _SCALARS:
            continue
        elif isinstance(value, _Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
    return tensors
