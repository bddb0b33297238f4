"""Where tensors are, of each machine that is attached: what operations ask, without PyTorch and without the machine."""

from __future__ import annotations

from typing import Any

registries: list[Any] = []
"""The last one is in use. `vgpu.runtime.attachment` keeps the list."""
