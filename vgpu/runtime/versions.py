"""Which PyTorch this is, where its versions differ in what they do."""

from __future__ import annotations

import torch


def torch_version() -> tuple[int, int]:
    """Major and minor version of PyTorch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
