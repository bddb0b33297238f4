"""What FlashAttention-2 refuses, in its words and its order (csrc/flash_attn/flash_api.cpp).

Not here: tensors on the CPU, for which PyTorch's dispatcher has no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from vgpu.runtime.machine import Machine

_Tensor = torch.Tensor
_LOW = (torch.float16, torch.bfloat16)
_SAME_DTYPE = (
    "query and key must have the same dtype", "query and value must have the same dtype",
    "query and out must have the same dtype", "query and dout must have the same dtype",
)  # fmt: skip
_LAST = "Input tensor must have contiguous last dimension"
_DIVISIBLE = "Number of heads in key/value must divide number of heads in query"
_PAGE_ROWS = 256
_ROTARY_STEP = 16


class Sizes(NamedTuple):
    """Of a call; `queries` and `keys` are the longest ones of a batch."""

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    width: int

    @property
    def groups(self) -> int:
        """Heads of the queries that share one of the keys."""
        return self.heads // self.key_heads


class Checks:
    """Checks tensors of a machine. Every method raises RuntimeError with the package's words."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def device(self, query: _Tensor) -> None:
        """The guard that comes before all else, and the architecture."""
        gpu = self._machine.registry.gpu_of(query)
        if gpu is None:
            raise RuntimeError(f"Expected a CUDA device, but got {query.device}")
        require(gpu.spec.compute_capability >= (8, 0), "FlashAttention only supports Ampere GPUs or newer.")

    def operands(
        self, query: _Tensor, key: _Tensor, value: _Tensor, *, names: Sequence[str] = ("q", "k", "v"), **more: _Tensor
    ) -> None:
        """Dtype, device and layout; `more` are `out`, `dout` and the lengths of a batch (`cu_...`)."""
        self.device(query)
        require(query.dtype in _LOW, "FlashAttention only support fp16 and bf16 data type")
        others = (key, value, *(more[name] for name in ("out", "dout") if name in more))
        for tensor, text in zip(others, _SAME_DTYPE, strict=False):
            require(tensor.dtype == query.dtype, text)
        lengths = {name: tensor for name, tensor in more.items() if name.startswith("cu_")}
        for name, tensor in lengths.items():
            require(tensor.dtype == torch.int32, f"{name} must have dtype int32")
        self.on_device(**dict(zip(names, (query, key, value), strict=True)), **more)
        for tensor in (query, key, value):
            require(_is_dense(tensor), _LAST)
        for name in ("out", "dout"):
            if name in more:
                require(_is_dense(more[name]), f"{name} tensor must have contiguous last dimension")
        for name, tensor in lengths.items():
            require(tensor.is_contiguous(), f"{name} must be contiguous")

    def on_device(self, **tensors: _Tensor) -> None:
        """All on a GPU."""
        for name, tensor in tensors.items():
            require(self._machine.registry.gpu_of(tensor) is not None, f"{name} must be on CUDA")

    def integers(self, name: str, tensor: _Tensor, label: str, size: int) -> None:
        """One int32 for each sequence."""
        require(tensor.dtype == torch.int32, f"{name} must have dtype int32")
        self.on_device(**{name: tensor})
        require(tensor.is_contiguous(), f"{name} must be contiguous")
        shape(name, tensor, label, size)

    def block_table(self, table: _Tensor) -> None:
        """The pages of each sequence."""
        self.on_device(block_table=table)
        require(table.dtype == torch.int32, "block_table must have dtype torch.int32")
        require(_is_dense(table), "block_table must have contiguous last dimension")

    def slopes(self, slopes: _Tensor | None, sizes: Sizes) -> None:
        """Of ALiBi, a number per head, or per sequence and head."""
        if slopes is None:
            return
        require(slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
        self.on_device(alibi_slopes=slopes)
        require(_is_dense(slopes), "ALiBi slopes tensor must have contiguous last dimension")
        fits = tuple(slopes.shape) in ((sizes.heads,), (sizes.batch, sizes.heads))
        require(
            fits,
            _expected(
                "alibi_slopes.sizes() == torch::IntArrayRef({num_heads}) || "
                "alibi_slopes.sizes() == torch::IntArrayRef({batch_size, num_heads})"
            ),
        )

    def new_keys(self, query: _Tensor, key: _Tensor, value: _Tensor | None, lengths: _Tensor | None) -> _Tensor:
        """Keys that are appended to a cache, and their values; returns these."""
        if value is None:
            raise RuntimeError("If key is supplied, value must also be passed in")
        require(lengths is not None, "If key is supplied, seqlens_k must also be passed in")
        for name, tensor in (("Key", key), ("Value", value)):
            require(tensor.dtype == query.dtype, f"{name} must have the same dtype as query")
        self.on_device(k=key, v=value)
        for name, tensor in (("Key", key), ("Value", value)):
            require(_is_dense(tensor), f"{name} tensor must have contiguous last dimension")
        return value

    def rotary(
        self, query: _Tensor, cosines: _Tensor, sines: _Tensor | None, sizes: Sizes, *, has_keys: bool
    ) -> tuple[_Tensor, _Tensor]:
        """The tables of a rotary embedding (positions, rotated width / 2); returns them."""
        require(
            has_keys,
            "If rotary cos/sin are provided, new key / value to be appended to KV cache must also be provided",
        )
        self.on_device(rotary_cos=cosines)
        rows, width = cosines.shape[0], 2 * cosines.shape[1]
        require(width <= -(-sizes.width // 8) * 8, "rotary_dim must be <= headdim")
        require(width % _ROTARY_STEP == 0, "Only rotary dimensions divisible by 16 are currently supported")
        require(rows >= sizes.keys, "cos/sin seqlen must be at least the seqlen of KV cache")
        require(cosines.is_contiguous(), "rotary_cos must be contiguous")
        require(cosines.dtype == query.dtype, "rotary_cos must have the same dtype as query")
        if sines is None:
            raise RuntimeError("If rotary cos is provided, rotary sin must also be provided")
        self.on_device(rotary_sin=sines)
        shape("rotary_sin", sines, "seqlen_ro, params.rotary_dim / 2", rows, width // 2)
        require(sines.is_contiguous(), "rotary_sin must be contiguous")
        require(sines.dtype == query.dtype, "rotary_cos must have the same dtype as query")
        return cosines, sines


def sizes_of_call(sizes: Sizes, *, backward: bool = False, padded: bool = True) -> None:
    """Numbers of sequences and heads, and the width of a head; `padded` to a multiple of 8 by the caller."""
    require(sizes.batch > 0, "batch size must be positive")
    divisible = sizes.width % 8 == 0 or not padded
    if backward:
        require(divisible, "head_size should be a multiple of 8")
        require(sizes.width <= 256, "FlashAttention backward only supports head dimension at most 256")
    else:
        require(sizes.width <= 256, "FlashAttention forward only supports head dimension at most 256")
        require(divisible, "query, key, value, and out_ must have a head_size that is a multiple of 8")
    require(sizes.heads % sizes.key_heads == 0, _DIVISIBLE)


def options(softcap: float, dropout: float, *, returns_softmax: bool = False) -> None:
    """What does not go together."""
    require(softcap <= 0.0 or dropout == 0.0, "Softcapping does not support dropout for now")
    require(not returns_softmax or dropout > 0.0, "return_softmax is only supported when p_dropout > 0.0")
    require(dropout < 1.0, _expected("p_dropout < 1.f"))


def page(rows: int) -> None:
    """Rows of a page of a cache."""
    require(rows % _PAGE_ROWS == 0, "Paged KV cache block size must be divisible by 256")


def shape(name: str, tensor: _Tensor, label: str, *expected: int) -> None:
    """The macro CHECK_SHAPE, which prints the names of the sizes."""
    require(tuple(tensor.shape) == expected, f"{name} must have shape ({label})")


def require(condition: bool, text: str) -> None:
    """The macro TORCH_CHECK."""
    if not condition:
        raise RuntimeError(text)


def _expected(condition: str) -> str:
    """What TORCH_CHECK says where no text is given (c10/util/Exception.h)."""
    return (
        f"Expected {condition} to be true, but got false.  (Could this error message be improved?  If so, please "
        "report an enhancement request to PyTorch.)"
    )


def _is_dense(tensor: _Tensor) -> bool:
    return tensor.stride(-1) == 1
