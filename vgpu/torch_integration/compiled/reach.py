"""Which memory the programs of a Triton kernel can reach: that of the tensors on the virtual GPUs, and no other.

On a card an access elsewhere is an error of the device, or reads what lies there. The interpreter would read and write
the memory of the process. Not for what a kernel may touch of that (`watching.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vgpu.runtime.memory.residency import Resident


class Reach:
    """The memory on all virtual GPUs as it is when a kernel is launched, and that of its arguments."""

    def __init__(self, entries: Iterable[Resident], arguments: Iterable[torch.Tensor]) -> None:
        storages = [storage for entry in list(entries) if (storage := entry()) is not None]
        storages += [tensor.untyped_storage() for tensor in arguments]
        spans = sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})
        self._begins = np.array([begin for begin, _ in spans], dtype=np.int64)
        # Storages can share memory: what ends last of those that begin before counts.
        self._ends = np.maximum.accumulate(np.array([end for _, end in spans], dtype=np.int64))

    def within(self, addresses: NDArray[Any], mask: NDArray[Any], width: int) -> NDArray[Any]:
        """The mask without those elements of `width` bytes that lie elsewhere."""
        places = np.asarray(addresses).astype(np.int64)
        chosen = np.broadcast_to(np.asarray(mask, dtype=bool), places.shape)
        if not self._begins.size:
            return np.zeros_like(chosen)
        before = np.searchsorted(self._begins, places, side="right") - 1
        inside: NDArray[Any] = (before >= 0) & (places + width <= self._ends[before])
        inside &= chosen
        return inside
