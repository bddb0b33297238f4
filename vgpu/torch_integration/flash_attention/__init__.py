"""FlashAttention-2 without a card: what `import flash_attn` gives on the virtual GPU if the package is not installed.

`package/flash_attn` is what a program imports; the other modules compute its kernels, refuse what they refuse, and
price them. Source of the behaviour: Dao-AILab/flash-attention 2.8 (csrc/flash_attn/flash_api.cpp,
flash_attn/flash_attn_interface.py). Not here: how an import gets there
(`vgpu.torch_integration.patches.flash_attn`).
"""

from __future__ import annotations

VERSION = "2.8.3+vgpu"
"""The version whose functions and arguments these are; the label says that it is simulated."""
