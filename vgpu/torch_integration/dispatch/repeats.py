"""The short way of an operation: for views, and for kernels that were launched before with such tensors.

`DispatchMode` asks about all that may be special in a call, one thing after the other. For most calls nothing is:
plain tensors of one GPU, and nobody who captures, joins, profiles or watches kernels. Then shapes and dtypes decide
what the kernel is, and it is known from the last time. With shapes only, so is what the result looks like. The short
way asks the same questions at once. Every call for which one has another answer, and the first one of each kind, goes
the long way. Values, times and memory are the same on both (a test compares). Not here: the long way
(`vgpu.torch_integration.dispatch.dispatch_mode`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.audit_events import UNKNOWN
from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.machine import Machine
from vgpu.runtime.memory.categories import ACTIVATIONS
from vgpu.runtime.memory.device_memory import OTHER
from vgpu.runtime.operations import cuda_values, kernel_cost, precision, shapes_only
from vgpu.runtime.operations.operation import Operation, number_of
from vgpu.runtime.thread_state import THREAD
from vgpu.torch_integration.dispatch.outcomes import PLAIN_TENSORS, recover, settle

_NUMBERS = frozenset((int, float, bool, type(None)))
_FLOAT32 = torch.float32
# Bound here: each look-up of a name in a module is part of every operation.
_storage_of = torch.Tensor.untyped_storage
_graph_task, _is_grad_enabled = torch._C._current_graph_task_id, torch.is_grad_enabled
_precision_of = torch._C._get_fp32_precision_getter
_empty_strided, _META = torch.empty_strided, torch.device("meta")

Repeat = tuple[KernelWork, float, torch.dtype, Any]
"""What a kernel is, how long its launch takes the host, the dtype of its result, and with shapes only the result's
number among the inputs, or its shape and strides."""


class Mode(Protocol):
    """The dispatch mode, which knows the long way."""

    machine: Machine

    def run(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The long way."""


def run(mode: Mode, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an `operation.may_be_short`, or NotImplemented where it has to go the long way.

    No torch function mode may be on.
    """
    machine = mode.machine
    if machine.watch is not None or machine.host_slowdowns:
        return NotImplemented
    if THREAD.capture is not None or THREAD.fusion is not None or THREAD.scripted is not None:
        return NotImplemented
    backward = _graph_task() != -1
    # Autograd's engine calls what it differentiates itself without gradients, and what is recomputed with them.
    inner = backward and not _is_grad_enabled()
    if inner and operation.is_sum:
        return NotImplemented  # perhaps a sum of gradients, which a card adds up in place
    resident, values = machine.registry.entries, machine.values
    gpu: Any = None
    inputs: list[torch.Tensor] = []
    kind: list[Any] = [number_of(operation), inner]
    try:
        for value in args:
            of = type(value)
            if of in PLAIN_TENSORS:
                entry = resident.get(_storage_of(value)._cdata)
                if entry is None:
                    return NotImplemented
                if entry.gpu is not gpu:
                    if gpu is not None:
                        return NotImplemented
                    gpu = entry.gpu
                kind += (value.shape, value.dtype)
                if not values:
                    kind += (value.stride(), value.is_meta)
                if inputs:
                    kind.append(value is inputs[0])
                inputs.append(value)
            elif of in _NUMBERS:
                if not values:
                    kind.append(_sign(operation, of, value))
            elif not operation.is_view:
                return NotImplemented
    except NotImplementedError:  # sparse and other tensors without a storage
        return NotImplemented
    for name, value in kwargs.items():
        of = type(value)
        if of not in _NUMBERS:
            return NotImplemented
        if not values:
            kind += (name, _sign(operation, of, value))
    # It has to run, must not have failed, and nobody may look at single kernels, of which one stream has them all.
    if gpu is None or not gpu.started or gpu.fault is not None or gpu.recorder is not None or gpu.is_blocking:
        return NotImplemented
    queue = gpu.queue
    if queue.observer is not None or queue.has_several_streams:
        return NotImplemented
    if operation.is_view:
        return _view(mode, gpu, operation, args, kwargs, inputs)
    if operation.tf32_switch and inputs[0].dtype is _FLOAT32 and _precision_of("cuda", operation.tf32_switch) == "tf32":
        return NotImplemented
    try:
        repeat: Repeat | None = gpu.repeats(tuple(kind))
    except ValueError:  # a signal's handler, a finalizer or a thread that has interrupted it
        return NotImplemented
    if repeat is UNKNOWN:
        return _first(mode, gpu, operation, args, kwargs, inputs, kind)
    if repeat is None:
        return NotImplemented
    if operation.check is not None and not operation.checks_layouts:
        operation.check(args, kwargs)
    try:
        result: Any = NotImplemented
        like = repeat[3]
        if like is not None:
            result = inputs[like] if type(like) is int else _empty_strided(*like, dtype=repeat[2], device=_META)
        elif operation.arithmetic is not None:
            result = operation.arithmetic(operation.overload, args, kwargs)
        if result is NotImplemented:
            result = (operation.direct or operation.overload)(*args, **kwargs)
    except (NotImplementedError, IndexError, RuntimeError) as error:
        result = recover(error, operation, args, kwargs, inputs, gpu)
        settle(gpu, operation, args, kwargs, inputs, result)
        return result
    work, host_seconds, dtype, _ = repeat
    if type(result) not in PLAIN_TENSORS or result.dtype is not dtype:  # by the type of a number, say
        settle(gpu, operation, args, kwargs, inputs, result)
        return result
    stream = THREAD.streams.get(gpu.index, 0)
    if operation.library and (operation.library, backward) not in gpu.handles:
        gpu.prepare_library(operation)
    storage = _storage_of(result)
    if storage._cdata not in resident:
        # As `Registry.add`.
        size = storage.nbytes() if result.dim() else result.element_size()
        machine.registry.add_storage(storage, gpu, stream, category=OTHER if inner else ACTIVATIONS, size=size)
    if operation.takes_scratch:
        gpu.workspaces.use(operation, args, inputs, (result,))
    gpu.launch_again(work, host_seconds, stream)
    return result


def _sign(operation: Operation, of: type, value: Any) -> Any:
    """What the shape of a result may depend on, as in `vgpu.runtime.operations.shapes_only`."""
    return of if of is float and not operation.shaped_by_floats else (of, value)


def _view(
    mode: Mode,
    gpu: VirtualGPU,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: list[torch.Tensor],
) -> Any:
    """Another description of the same memory: host time, and nothing else."""
    try:
        if mode.machine.values:
            result = (operation.direct or operation.overload)(*args, **kwargs)
        else:
            result = shapes_only.compute(operation, args, kwargs)
    except (NotImplementedError, IndexError, RuntimeError) as error:
        result = recover(error, operation, args, kwargs, inputs, gpu)
    if type(result) in PLAIN_TENSORS and _storage_of(result)._cdata in mode.machine.registry.entries:
        gpu.charge_metadata(operation)
    else:
        settle(gpu, operation, args, kwargs, inputs, result)
    return result


def _first(
    mode: Mode,
    gpu: VirtualGPU,
    operation: Operation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: list[torch.Tensor],
    kind: list[Any],
) -> Any:
    """The long way, after which it is known whether shapes and dtypes decide all of the kernel, and which it is."""
    result = mode.run(operation, args, kwargs)
    if type(result) not in PLAIN_TENSORS or not (mode.machine.values or result.is_meta):
        return result
    repeat: Repeat | None = None
    if _is_plain(operation, args, inputs, values=mode.machine.values):
        work = kernel_cost.repeated(operation, args, inputs, [result])
        if work is not None:
            like: Any = None
            if not mode.machine.values:
                numbers = [number for number, tensor in enumerate(inputs) if tensor is result]
                like = numbers[0] if numbers else (tuple(result.shape), result.stride())
            repeat = work, gpu.queue.pricing.launch_seconds(work), result.dtype, like
    # Plain tuples: the garbage collector would look at each torch.Size that is kept again and again.
    key = tuple([tuple(part) if type(part) is torch.Size else part for part in kind])
    with contextlib.suppress(ValueError):
        gpu.repeats([key, repeat])
    return result


def _is_plain(operation: Operation, args: Sequence[Any], inputs: Sequence[torch.Tensor], *, values: bool) -> bool:
    """Whether nothing but the CPU's kernel, or nothing at all, computes the result, whatever the values are."""
    if any(tensor.dtype in operation.refused for tensor in inputs):
        return False
    if not values:
        return True
    if operation.in_float32 and precision.low_dtype(inputs) is not None:
        return False
    return not operation.copies or cuda_values.conversion(operation, args, {}) is None
