"""How people look at what a GPU has done: what `VirtualGPU.summary`, `save_picture` and `save_trace` stand for.

Not here: how each of them is made (`vgpu.runtime.views.report`, `vgpu.runtime.views.picture`,
`vgpu.runtime.views.trace`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgpu.runtime.gpu import VirtualGPU
from vgpu.runtime.views import picture, trace
from vgpu.runtime.views.report import summary_text


class Views:
    """All of them; without any state."""

    def summary(self, gpu: VirtualGPU, count: int) -> str:
        """Where time and memory went."""
        return summary_text(gpu, count)

    def save_picture(self, gpu: VirtualGPU, path: Path, **window: Any) -> Path:
        """The timeline as a picture."""
        return picture.save(gpu, path, **window)

    def save_trace(self, gpu: VirtualGPU, path: Path, **window: Any) -> Path:
        """The timeline as a trace."""
        return trace.save(gpu, path, **window)
