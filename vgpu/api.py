"""`vgpu.attach`: puts a virtual GPU under PyTorch for the length of a `with` block.

Not here: what the modes and patches do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch
import torch.utils._device

from vgpu.dispatch_mode import DispatchMode
from vgpu.errors import AttachError
from vgpu.function_mode import FunctionMode
from vgpu.gpu import VirtualGPU
from vgpu.patches import (
    PatchSet,
    clocks,
    cuda,
    generators,
    nvml,
    profiling,
    python_calls,
    serialization,
    streams,
    threads,
)
from vgpu.spec import Spec, get_spec
from vgpu.state import THREAD, attached, set_attached


def current() -> VirtualGPU | None:
    """The virtual GPU that is attached now, or None."""
    return attached()


def prepare() -> None:
    """Do once what each first attach would do again: for a process that forks children which attach.

    Runs no operation, starts no thread and asks nothing of a real GPU.
    """
    with attach(values=False, force=True):
        pass


@contextlib.contextmanager
def attach(
    spec: str | os.PathLike[str] | Spec = "T4", *, values: bool = True, force: bool = False
) -> Iterator[VirtualGPU]:
    """Make `torch.device("cuda")` work on this machine, simulated.

    `spec` is a built-in GPU ("T4", "A100-80GB", "H100", ...), a TOML file, or a `Spec`. With `values=False` tensors on
    the GPU have shapes only: much faster, `.item()` returns 0 and `.cpu()` zeros. Raises SpecError for a bad spec,
    AttachError inside another attach, or where real CUDA is present and `force` is not given. On exit, also after an
    exception, every patch is undone; tensors that lived on the GPU are then ordinary CPU (or meta) tensors.
    """
    chosen = get_spec(spec)
    if attached() is not None:
        raise AttachError("a virtual GPU is attached already: leave that `with vgpu.attach(...)` block first")
    if not force and torch.cuda.is_available():
        raise AttachError("this machine has a real CUDA device; pass force=True to simulate one instead")
    gpu = VirtualGPU(chosen, values=values)
    function_mode, dispatch_mode = FunctionMode(gpu), DispatchMode(gpu)

    def enter_modes() -> Callable[[], None]:
        stack = contextlib.ExitStack()
        stack.enter_context(function_mode)
        stack.enter_context(dispatch_mode)
        return stack.close

    patches = PatchSet()
    try:
        set_attached(gpu)
        patches.on_undo(lambda: set_attached(None))
        _install(patches, gpu, function_mode, enter_modes)
        patches.on_undo(enter_modes())
        yield gpu
    finally:
        THREAD.target, THREAD.stream = None, 0
        patches.undo()
        gpu.registry.clear()


def _install(
    patches: PatchSet, gpu: VirtualGPU, function_mode: FunctionMode, enter_modes: Callable[[], Callable[[], None]]
) -> None:
    cuda.install(patches, gpu)
    streams.install(patches)
    generators.install(patches, gpu)
    serialization.install(patches, gpu)
    profiling.install(patches)
    nvml.install(patches, gpu)
    python_calls.install(patches, gpu, function_mode)
    patches.set(torch, "clear_autocast_cache", function_mode.weights.clear)
    threads.install(patches, enter_modes)
    clocks.install(patches)
    patches.rebind_everywhere()
    patches.on_undo(_forget_default_device)


def _forget_default_device() -> None:
    """A default device of "cuda" would outlive the GPU."""
    device = torch.utils._device.CURRENT_DEVICE
    if device is not None and device.type == "cuda":
        torch.set_default_device(None)
