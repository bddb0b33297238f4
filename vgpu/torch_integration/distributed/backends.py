"""Stand-ins for ProcessGroupNCCL and its variants: gloo underneath, NCCL by name.

Not here: NCCL's behaviour (`vgpu.torch_integration.distributed.channel`, `vgpu.torch_integration.distributed.group`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch._C._distributed_c10d as c10d
from torch.distributed import ProcessGroupGloo

_real: Any = getattr(c10d, "ProcessGroupNCCL", None)


class _Options:
    """`ProcessGroupNCCL.Options` of a PyTorch without NCCL: its fields are kept, and have no effect."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)


class ProcessGroupNCCL(ProcessGroupGloo):
    """A gloo backend under NCCL's name."""

    Options: Any = _Options if _real is None else _real.Options
    plays_nccl = True
    supports_coalescing = True
    # Groups made from this one are new groups, not splits of a communicator.
    supports_splitting = False

    def __init__(self, store: Any, rank: int, size: int, options: Any = None, device: Any = None) -> None:
        timeout = options._timeout if options is not None else timedelta(minutes=10)
        super().__init__(store, rank, size, timeout=timeout)

    def name(self) -> str:
        """NCCL's name, which error messages use."""
        return "nccl"


NAMES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
