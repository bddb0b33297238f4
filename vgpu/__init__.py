"""A simulated NVIDIA GPU for PyTorch, for machines that have none. Everything it reports is simulated.

`import vgpu` does not import torch; `vgpu.device.spec` and `vgpu.device.cost` never do. `vgpu.attach` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpu.device import cost
from vgpu.device.errors import AttachError, SpecError, StreamHazard, Unsupported
from vgpu.device.spec import HostSpec, Interconnect, Spec, get_interconnect, get_spec, list_interconnects, list_specs

if TYPE_CHECKING:
    from vgpu.device.kernel_work import Race
    from vgpu.device.queue import Kernel
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.torch_integration.attach import attach, current, prepare
    from vgpu.torch_integration.compiled.watching import KernelRun, watch_kernels

__all__ = [
    "AttachError",
    "HostSpec",
    "Interconnect",
    "Kernel",
    "KernelRun",
    "Race",
    "Spec",
    "SpecError",
    "StreamHazard",
    "Unsupported",
    "VirtualGPU",
    "attach",
    "cost",
    "current",
    "get_interconnect",
    "get_spec",
    "list_interconnects",
    "list_specs",
    "prepare",
    "watch_kernels",
]

_LAZY = {
    "attach": "vgpu.torch_integration.attach",
    "current": "vgpu.torch_integration.attach",
    "prepare": "vgpu.torch_integration.attach",
    "VirtualGPU": "vgpu.runtime.gpu",
    "Kernel": "vgpu.device.queue",
    "KernelRun": "vgpu.torch_integration.compiled.watching",
    "Race": "vgpu.device.kernel_work",
    "watch_kernels": "vgpu.torch_integration.compiled.watching",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'vgpu' has no attribute {name!r}")
