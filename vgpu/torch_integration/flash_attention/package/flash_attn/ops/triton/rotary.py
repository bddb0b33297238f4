"""The kernel of rotary embeddings."""

from __future__ import annotations

from vgpu.torch_integration.flash_attention.rotary import apply_rotary

__all__ = ["apply_rotary"]
