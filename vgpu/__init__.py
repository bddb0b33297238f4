"""A simulated NVIDIA GPU for PyTorch, for machines that have none. Everything it reports is simulated.

`import vgpu` does not import torch; `vgpu.spec` and `vgpu.cost` never do. `vgpu.attach` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vgpu import cost
from vgpu.errors import AttachError, SpecError, Unsupported
from vgpu.spec import HostSpec, Interconnect, Spec, get_interconnect, get_spec, list_interconnects, list_specs

if TYPE_CHECKING:
    from vgpu.api import attach, current, prepare
    from vgpu.compiled.watching import KernelRun, Race, watch_kernels
    from vgpu.device.queue import Kernel
    from vgpu.gpu import VirtualGPU

__all__ = [
    "AttachError",
    "HostSpec",
    "Interconnect",
    "Kernel",
    "KernelRun",
    "Race",
    "Spec",
    "SpecError",
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
    "attach": "vgpu.api",
    "current": "vgpu.api",
    "prepare": "vgpu.api",
    "VirtualGPU": "vgpu.gpu",
    "Kernel": "vgpu.device.queue",
    "KernelRun": "vgpu.compiled.watching",
    "Race": "vgpu.compiled.watching",
    "watch_kernels": "vgpu.compiled.watching",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'vgpu' has no attribute {name!r}")
