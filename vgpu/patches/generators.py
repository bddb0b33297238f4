"""`torch.Generator(device="cuda")` and the GPU's default generator.

The numbers come from PyTorch's CPU generator, so they are not those of a real GPU's Philox; they are a separate stream
that `torch.manual_seed` seeds too. Not here: which operations draw from it (`vgpu.dispatch_mode`).
"""

from __future__ import annotations

from typing import Any

import torch

from vgpu.gpu import VirtualGPU
from vgpu.patches.base import PatchSet
from vgpu.residency import CUDA_DEVICE

_plain = torch.Generator


class CudaGenerator(_plain):
    """A generator whose device is the GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the program asked for."""
        return CUDA_DEVICE

    def clone_state(self) -> CudaGenerator:
        """A generator that continues from the same state."""
        copy = CudaGenerator()
        copy.set_state(self.get_state())
        return copy


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _plain)


class Generator(metaclass=_Kind):
    """Stands for `torch.Generator` while a GPU is attached."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return CudaGenerator() if torch.device(device).type == "cuda" else _plain(device)


def install(patches: PatchSet, gpu: VirtualGPU) -> None:
    """Give the GPU its own generator."""
    seed = gpu.generator.initial_seed()
    gpu.generator = CudaGenerator()
    gpu.generator.manual_seed(seed)
    patches.set(torch.cuda, "default_generators", (gpu.generator,))
    patches.rebind(_plain, Generator)
