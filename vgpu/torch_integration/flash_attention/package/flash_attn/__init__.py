"""flash-attn 2, simulated by vgpu: its documented functions, for tensors of a virtual GPU.

A program gets this package by `import flash_attn` if the real one is not installed. Modules that are not here
(`flash_attn.losses`, most of `flash_attn.ops`) raise ModuleNotFoundError. Source of names, arguments and semantics:
Dao-AILab/flash-attention 2.8.
"""

from __future__ import annotations

from vgpu.torch_integration.flash_attention import VERSION

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
__version__ = VERSION
