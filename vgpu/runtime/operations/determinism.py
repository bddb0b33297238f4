"""`torch.use_deterministic_algorithms`: operations whose CUDA kernels have no deterministic implementation.

Not here: which operations those are (`vgpu.runtime.operations.table`), and CPU kernels, which check themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vgpu.runtime.operations.operation import Operation


def require(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError, or warn, as CUDA does where the program has asked for deterministic algorithms."""
    if operation.base == "median" and len(args) < 2:
        return  # without a dimension there are no indices
    if operation.base == "bincount" and (args[1] if len(args) > 1 else kwargs.get("weights")) is None:
        return
    start = f"{operation.nondeterministic} does not have a deterministic implementation, but you set "
    if torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(
            f"{start}'torch.use_deterministic_algorithms(True, warn_only=True)'. You can file an issue at "
            "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for this "
            "operation.",
            stacklevel=2,
        )
        return
    raise RuntimeError(
        f"{start}'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, or "
        "you can use the 'warn_only=True' option, if that's acceptable for your application. You can also file an "
        "issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic support for "
        "this operation."
    )
