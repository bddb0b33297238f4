"""PyTorch's functions of functions (`torch.cond`, `flex_attention`), where they would see that the GPU is simulated.

Not here: which of their kernels runs (`vgpu.torch_integration.dispatch.extensions`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import functools
from types import ModuleType

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from vgpu.runtime.patching import PatchSet
from vgpu.torch_integration.patches.imports import when_imported

# Modules whose kernels refuse to run while any dispatch mode is on.
_ALONE = ("cond", "switch", "invoke_subgraph", "strict_mode", "base_hop", "scan", "while_loop")


def install(patches: PatchSet, own: type[TorchDispatchMode]) -> None:
    """Change those modules that are imported, and the others when they are; `own` is this library's dispatch mode."""

    def alone(module: ModuleType) -> None:
        patches.set_existing(module, "_get_current_dispatch_mode", functools.partial(_mode_of_the_program, own))

    when_imported(patches, {f"torch._higher_order_ops.{name}": alone for name in _ALONE})


def _mode_of_the_program(own: type[TorchDispatchMode]) -> TorchDispatchMode | None:
    mode: TorchDispatchMode | None = _get_current_dispatch_mode()
    return None if isinstance(mode, own) else mode
