"""Tensors as the CPU tensors that they are, to move values between processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Inside, there are no modes and no autograd."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        yield
