"""What is asked of a machine before it grades: does a small product come back right?"""

from __future__ import annotations

import sys

import numpy as np

from gradebox.sandbox.probe_loader import Student


def product(student: Student, *, left: list[list[float]], right: list[list[float]]) -> dict[str, list[list[float]]]:
    """The product of two matrices, as lists: with PyTorch on the device, with NumPy in a course without PyTorch."""
    if "torch" not in sys.modules:
        return {"product": (np.array(left) @ np.array(right)).tolist()}
    import torch

    return {"product": (torch.tensor(left).to(student.device) @ torch.tensor(right).to(student.device)).tolist()}
