"""Tasks 6.4 and 6.5: flash attention in kernels of your own, forward and backward.

Q, K and V are [batch, heads, length, head_dim], of one dtype (float32 or float16), with as many queries as keys; scores
are Q K^T / sqrt(head_dim), their softmax over the keys weighs V. With `causal=True` query i sees the keys 0 to i.
Lengths may be odd; head_dim is 16, 32, 64 or 128.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)


def flash_attention(Q: Tensor, K: Tensor, V: Tensor, *, causal: bool = False) -> Tensor:  # noqa: N803
    """Attention in tiles: forward by one Triton kernel, backward by as few as you like, however long the inputs are.

    No tensor of length x length elements is made in forward or backward, and each program writes what no other one
    touches: the programs of a grid run in any order, or at once. (An atomic addition is one access; adding by a load
    and a store is two.) With `causal`, tiles that no query sees are left out, in forward and backward. No program
    reaches outside of its tensors. Sums and the softmax are computed in float32; float32 operands are multiplied in
    full precision, not in TF32. Scores may be large: no exponential overflows where the largest score so far is taken
    off first.

    Args:
        Q, K, V: see the module; on a GPU. They may be views with any strides, and are left as they are.
        causal: whether a query sees no later key.

    Returns:
        [batch, heads, length, head_dim] in the dtype of the inputs, differentiable. The gradient that comes to it may
        have any strides; that of a sum has strides of 0.

    Raises:
        ValueError: shapes or dtypes differ, there are not four sides, or head_dim or dtype is none of the module's.

    Source: T. Dao 2023, "FlashAttention-2" (arXiv:2307.08691), algorithms 1 and 2; Triton tutorials, "Fused Attention".
    """
    # TODO(task 6.4):
    # The lines belong into kernels and an autograd.Function next to this one.
    # 1. Refuse arguments that make no sense.
    # 2. Forward: a program for each tile of queries of each head, and a loop over tiles of keys: the largest score so
    #    far, the sum of exp(score - largest), the weighted sum of values, all three corrected by each further tile.
    # 3. Which keys lie beyond the end, and which are not seen? With a causal mask: where does the loop end?
    # 4. Keep the log of the sum for each query.
    # TODO(task 6.5):
    # 5. Backward: compute the weights of a tile again. A tile of keys collects its gradient from all queries, a tile of
    #    queries from all keys: how many kernels is that, if nobody writes into another one's tile?
    raise NotImplementedError(
        "Task 6.4 is open: write flash_attention "
        "in labs/kernels_exercise/flash_attention.py (about 140 lines)"
    )
