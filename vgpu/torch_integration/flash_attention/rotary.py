"""Rotary embeddings of FlashAttention-2: in its kernel for caches, and as the kernel `apply_rotary` of its own.

Sources: csrc/flash_attn/src/rotary.h; flash_attn/ops/triton/rotary.py (arguments and refusals). Rotated in FP32 and
rounded.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import torch

from vgpu.device.kernel_work import KernelWork
from vgpu.runtime.operations import kernel_cost
from vgpu.torch_integration.flash_attention import launching
from vgpu.torch_integration.flash_attention.launching import Launch

_Tensor = torch.Tensor


def rotated(
    values: _Tensor, cosines: _Tensor, sines: _Tensor, first: int, *, interleaved: bool, moves: bool = True
) -> _Tensor:
    """(rows, heads, width), whose first row is at place `first` of the tables; all are if it does not move.

    Pairs are neighbours if `interleaved`, else an element of the first half with one of the second. Beyond the tables'
    twice the width nothing is rotated.
    """
    rows = range(first, first + (values.shape[0] if moves else 1))
    cosine, sine = (table[rows.start : rows.stop].float()[:, None] for table in (cosines, sines))
    half = cosines.shape[1]
    part = values[..., : 2 * half].float()
    left, right = (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    turned = left * cosine - right * sine, left * sine + right * cosine
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat([joined.to(values.dtype), values[..., 2 * half :]], -1)


def apply_rotary(
    x: _Tensor,
    cos: _Tensor,
    sin: _Tensor,
    seqlen_offsets: int | _Tensor = 0,
    cu_seqlens: _Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> _Tensor:
    """Rotate x (batch, places, heads, width), or with `cu_seqlens` (tokens, heads, width), in one kernel.

    cos, sin (places, rotated width / 2). `seqlen_offsets` is the first place, of each sequence perhaps; `conjugate`
    turns back. Returns a new tensor, or x. Raises AssertionError where the package does.
    """
    assert cu_seqlens is None or max_seqlen is not None, "If cu_seqlens is passed in, then max_seqlen must be passed"
    longest = x.shape[1] if cu_seqlens is None else max_seqlen
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    assert longest is not None
    assert sin.shape == cos.shape
    rows, half = cos.shape
    assert 2 * half <= x.shape[-1], "rotary_dim must be <= headdim"
    assert x.shape[-1] <= 256, "Only support headdim <= 256"
    assert rows >= longest, "seqlen_ro must be >= seqlen"
    cos, sin = cos.contiguous(), sin.contiguous()
    if isinstance(seqlen_offsets, _Tensor):
        assert seqlen_offsets.shape == (batch,)
        assert seqlen_offsets.dtype in (torch.int32, torch.int64)
    else:
        assert seqlen_offsets + longest <= rows
    machine = launching.machine()
    for place, tensor in enumerate((x, cos, sin)):
        if machine.registry.gpu_of(tensor) is None:
            raise ValueError(f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)")
    gpu = launching.gpu_of(x)
    output = x if inplace else torch.empty_like(x)
    if 2 * half < x.shape[-1] and not inplace:
        output[..., 2 * half :].copy_(x[..., 2 * half :])

    def compute() -> None:
        sines = -sin if conjugate else sin
        bounds = None if cu_seqlens is None else cu_seqlens.tolist()
        for index in range(batch):
            part: int | slice = index if bounds is None else slice(bounds[index], bounds[index + 1])
            first = int(seqlen_offsets[index]) if isinstance(seqlen_offsets, _Tensor) else seqlen_offsets
            # A kernel's writes are not counted, so autograd takes no notice of x that comes back.
            output.data[part].copy_(rotated(x[part], cos, sines, first, interleaved=interleaved))

    tokens = x.shape[:-2].numel()
    moved = 4 * tokens * x.shape[-2] * half * x.element_size() + cos.nbytes + sin.nbytes
    work = KernelWork("rotary_kernel", moved, kernel_cost.dtype_name([x]), (tuple(x.shape),))
    optional = [tensor for tensor in (cu_seqlens, seqlen_offsets) if isinstance(tensor, _Tensor)]
    Launch(work, compute, (x, cos, sin, *optional), (output,)).run(gpu)
    return output
