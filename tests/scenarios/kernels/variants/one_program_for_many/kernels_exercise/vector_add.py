"""A fixed number of programs, each of which goes on to blocks further away; and any number of sides as one."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(a_ptr, b_ptr, c_ptr, count: int, SIZE: tl.constexpr):
    for block in range(tl.program_id(0), tl.cdiv(count, SIZE), tl.num_programs(0)):
        i = block * SIZE + tl.arange(0, SIZE)
        a = tl.load(a_ptr + i, i < count, 0)
        b = tl.load(b_ptr + i, i < count, 0)
        tl.store(c_ptr + i, a + b, i < count)


def vector_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    same = x.shape == y.shape and x.dtype is y.dtype
    if not same or not all(t.is_contiguous() for t in (x, y)):
        raise ValueError("two contiguous tensors of one shape and dtype")
    result = x.new_empty(x.shape)
    _kernel[(7,)](x, y, result, result.numel(), SIZE=2048)
    return result
