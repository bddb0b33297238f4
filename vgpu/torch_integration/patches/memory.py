"""`torch.cuda.memory`'s snapshots and options, sizes of workspaces, `record_stream`, checks of attention's kernels.

Not here: the figures of `torch.cuda.memory_stats` (`vgpu.torch_integration.patches.cuda`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vgpu.runtime.attachment import attached
from vgpu.runtime.memory import allocator_settings
from vgpu.runtime.memory.workspaces import blas_bytes, lt_bytes
from vgpu.runtime.patching import PatchSet
from vgpu.runtime.thread_state import THREAD
from vgpu.runtime.views import snapshot
from vgpu.torch_integration.kernels import sdp_backends
from vgpu.torch_integration.kernels.sdp_checks import Problem

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.runtime.machine import Machine


def install(patches: PatchSet, machine: Machine) -> None:
    """Replace the functions of `torch._C` beneath."""
    history = snapshot.History()
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_memorySnapshot": lambda *_: snapshot.take(machine, history),
        "_cuda_record_memory_history": functools.partial(history.record, machine),
        "_cuda_isHistoryEnabled": lambda: history.enabled,
        "_cuda_attach_out_of_memory_observer": lambda observer: _observe(machine, observer),
        "_cuda_cudaCachingAllocator_set_allocator_settings": lambda text: _configure(machine, text),
        "_accelerator_setAllocatorSettings": lambda text: _configure(machine, text),
    }
    functions |= _workspace_sizes(machine)
    for name, function in functions.items():
        patches.set(torch._C, name, function)
    cuda = torch.backends.cuda
    for name, check in (
        ("can_use_flash_attention", sdp_backends.can_use_flash),
        ("can_use_efficient_attention", sdp_backends.can_use_efficient),
        ("can_use_cudnn_attention", sdp_backends.can_use_cudnn),
    ):
        patches.rebind(getattr(cuda, name), _able(machine, check))
    patches.set(cuda, "is_flash_attention_available", lambda: True)
    cudnn = torch.backends.cudnn

    def is_acceptable(tensor: torch.Tensor) -> bool:
        """cuDNN is there: what is on a GPU and of its dtypes is for it, unless the program has switched it off."""
        return cudnn.enabled and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES and machine.registry.has(tensor)

    patches.set(cudnn, "is_acceptable", is_acceptable)
    patches.set(torch.Tensor, "record_stream", _record_stream(machine))
    patches.at_begin(lambda: _order_attention(patches, machine))


def _order_attention(patches: PatchSet, machine: Machine) -> None:
    order = sdp_backends.preferred_order(machine.gpus[0])
    if order is not None:
        before = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(order)
        patches.on_undo(lambda: torch._C._set_sdp_priority_order(before))


def _observe(machine: Machine, observer: Callable[[int, int, int, int], None]) -> None:
    for gpu in machine.gpus:
        gpu.memory.observers.append(observer)


def _configure(machine: Machine, text: str) -> None:
    settings = allocator_settings.parse(text)
    for gpu in machine.gpus:
        gpu.memory.options = text
        gpu.memory.configure(settings)


_NO_RECORD_STREAM = (
    "Could not run 'aten::record_stream' with arguments from the '{}' backend. 'aten::record_stream' is only available "
    "for these backends: [CUDA, Meta]. [simulated by vgpu]"
)


def _record_stream(machine: Machine) -> Callable[..., None]:
    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        """The tensor is used on `stream`: its memory is not reused before that stream has passed its release."""
        if not hasattr(stream, "stream_id"):
            raise RuntimeError("unknown parameter type")
        gpu = machine.registry.gpu_of(tensor)
        if gpu is None:
            raise NotImplementedError(_NO_RECORD_STREAM.format(tensor.device.type.upper()))
        block = machine.registry.block_of(tensor)
        if block is not None:
            gpu.memory.record_stream(block, int(stream.stream_id))

    return record_stream


def _able(machine: Machine, check: Callable[..., bool]) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        gpu: VirtualGPU = attached() or machine.gpus[0]
        problem = Problem(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.is_causal,
            params.enable_gqa, machine.registry.has(params.query),
        )  # fmt: skip
        return check(gpu, problem, debug)

    return can_use


def _workspace_sizes(machine: Machine) -> dict[str, Callable[..., Any]]:
    """`torch.backends.cuda.cublas_workspace_size` and its sisters (from PyTorch 2.12 on)."""

    def current() -> VirtualGPU:
        return machine.gpus[THREAD.device]

    def set_blas(size: int) -> None:
        for gpu in machine.gpus:
            gpu.workspaces.blas_bytes = size

    def set_lt(size: int) -> None:
        for gpu in machine.gpus:
            gpu.workspaces.lt_bytes = size

    return {
        "_cuda_getCublasWorkspaceSize": lambda: current().workspaces.blas_bytes,
        "_cuda_setCublasWorkspaceSize": set_blas,
        "_cuda_resetCublasWorkspaceSize": lambda: set_blas(blas_bytes(machine.spec.blas_workspace_bytes)),
        "_cuda_getCublasLtWorkspaceSize": lambda: current().workspaces.lt_bytes,
        "_cuda_setCublasLtWorkspaceSize": set_lt,
        "_cuda_resetCublasLtWorkspaceSize": lambda: set_lt(lt_bytes()),
    }
