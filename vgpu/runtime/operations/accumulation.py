"""When autograd's engine would add two gradients in place.

torch/csrc/autograd/input_buffer.cpp, `InputBuffer::accumulate`: it writes the sum into the first gradient if it holds
the last reference to it - but never while a dispatch mode is on, because a mode counts as a tensor subclass. The sum is
computed out of place here, which is safe, and the accounting follows CUDA. Not here: the accounting
(`Registry.transfer_ownership`).
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

# References to a tensor that only the engine's buffer holds, as seen here below the dispatch mode: in C++ (the
# buffer's, the Python object's, two of the call), to its Python object (the arguments, the mode's list of inputs,
# here), and to its storage (the tensor's, the Python object's). With any other number the sum is out of place.
_REFERENCES, _PYTHON_REFERENCES, _STORAGE_REFERENCES = 4, 5, 2


def is_accumulated(args: Sequence[Any]) -> bool:
    """Whether `aten::add.Tensor` with these arguments is such a sum."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or len(args) != 2:
        return False
    first, second = args
    if not isinstance(second, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first._use_count() != _REFERENCES or sys.getrefcount(first) != _PYTHON_REFERENCES:
        return False
    storage = first.untyped_storage()
    return storage.nbytes() == first.nbytes and torch._C._storage_Use_Count(storage._cdata) == _STORAGE_REFERENCES
