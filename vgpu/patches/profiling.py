"""Puts the virtual profiler in the place of `torch.profiler`. Not here: the profiler (`vgpu.profiler`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.profiler
import torch.profiler

from vgpu import profiler
from vgpu.errors import Unsupported
from vgpu.patches.base import PatchSet


def install(patches: PatchSet) -> None:
    """Replace the classes wherever they are bound."""
    patches.rebind(torch.profiler.profile, profiler.profile)
    patches.rebind(torch.autograd.profiler.record_function, profiler.record_function)

    def legacy(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported("torch.autograd.profiler.profile", "use torch.profiler.profile")

    for name in ("profile", "emit_nvtx", "emit_itt"):
        patches.set(torch.autograd.profiler, name, legacy)
    for name in ("range_push", "range_pop", "mark"):
        patches.set(torch.cuda.nvtx, name, lambda *_: 0)
