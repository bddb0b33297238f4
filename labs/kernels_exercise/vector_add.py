"""Task 6.1: the sum of two vectors in a kernel of your own: programs, offsets, and a mask for the last program."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def vector_add(x: Tensor, y: Tensor) -> Tensor:
    """x + y by one launch of one Triton kernel.

    Each element of `x` and `y` is read once and each of the result is written once, neighbours by the same program; no
    program reaches outside of the three tensors, whatever their length.

    Args:
        x, y: of one shape and one dtype (float32 or float16), on one GPU, contiguous; any number of elements,
            also none. They may be views that begin anywhere in a larger tensor.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError: shapes or dtypes differ, or one of the two is not contiguous.

    Source: Triton tutorials, "Vector Addition".
    """
    # TODO(task 6.1):
    # 1. Refuse arguments that make no sense.
    # 2. Next to this function, write a kernel (@triton.jit): which elements are those of program tl.program_id(0)?
    # 3. Its mask: which of them are there at all? Loads need it as much as the store does.
    # 4. Here: allocate the result, and launch as many programs as cover all elements.
    raise NotImplementedError(
        "Task 6.1 is open: write vector_add "
        "in labs/kernels_exercise/vector_add.py (about 14 lines)"
    )
