"""What `attach` changes in other modules, by area, and how it is undone."""

from __future__ import annotations

from vgpu.runtime.patching import PatchSet

__all__ = ["PatchSet"]
