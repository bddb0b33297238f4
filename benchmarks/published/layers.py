"""Transformer layers as the measured programs had them: BERT, ViT and GPT-2 kernel by kernel, GPTs with fused ones."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class KeepsInput(torch.autograd.Function):
    """Softmax that keeps its input, too, as PyTorch's did before 1.11."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        scores, weights = ctx.saved_tensors
        return torch._softmax_backward_data(gradients[0], weights, -1, scores.dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, rows, width) as (batch, heads, rows, width of a head), without a copy."""
    batch, rows, width = x.shape
    return x.view(batch, rows, heads, width // heads).permute(0, 2, 1, 3)


def join_heads(x: Tensor) -> Tensor:
    """The way back, with a copy."""
    return x.permute(0, 2, 1, 3).flatten(2)


def python_gelu(x: Tensor) -> Tensor:
    """GELU's approximation by tanh out of eight kernels, as GPT-2's "new" one."""
    inner: Tensor = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class SelfAttention(nn.Module):
    """Three projections, and attention kernel by kernel."""

    def __init__(self, width: int, heads: int, dropout: float, *, keeps_input: bool) -> None:
        super().__init__()
        self.heads, self.keeps_input = heads, keeps_input
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores + mask
        weights = KeepsInput.apply(scores.float()) if self.keeps_input else functional.softmax(scores, dim=-1)
        return join_heads(torch.matmul(self.dropout(weights), value))


class Output(nn.Module):
    """A projection, dropout, what came in added, and a norm where norms come after."""

    def __init__(self, wide: int, width: int, dropout: float, *, norm: bool) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(wide, width), nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if norm else None

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        x = self.dropout(self.dense(x)) + before
        return x if self.norm is None else self.norm(x)


class Attention(nn.Module):
    """Attention and the projection after it."""

    def __init__(self, width: int, heads: int, dropout: float, *, norm: bool, keeps_input: bool) -> None:
        super().__init__()
        self.attend = SelfAttention(width, heads, dropout, keeps_input=keeps_input)
        self.output = Output(width, width, dropout, norm=norm)

    def forward(self, x: Tensor, before: Tensor, mask: Tensor | None) -> Tensor:
        out: Tensor = self.output(self.attend(x, mask), before)
        return out


class Intermediate(nn.Module):
    """The wide projection and GELU, a module of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.gelu = nn.Linear(width, 4 * width), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gelu(self.dense(x))
        return out


class EncoderLayer(nn.Module):
    """A layer of BERT (norms after, dropout) or ViT (norms before), in as many modules as transformers has."""

    def __init__(self, width: int, heads: int, dropout: float, *, norm_first: bool, keeps_input: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)) if norm_first else None
        self.attention = Attention(width, heads, dropout, norm=not norm_first, keeps_input=keeps_input)
        self.intermediate, self.output = Intermediate(width), Output(4 * width, width, dropout, norm=not norm_first)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.attention(self.norms[0](x) if self.norms is not None else x, x, mask)
        out: Tensor = self.output(self.intermediate(self.norms[1](x) if self.norms is not None else x), x)
        return out


class Gpt2Layer(nn.Module):
    """A block of transformers' GPT-2 of 2022: `where` for the mask, GELU in Python, dropout."""

    def __init__(self, width: int, heads: int, longest: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("seen", torch.ones(1, 1, longest, longest, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        rows, width = x.shape[1:]
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        lowest = torch.full((), torch.finfo(torch.float16).min, dtype=scores.dtype, device=scores.device)
        scores = torch.where(self.seen[:, :, :rows, :rows], scores, lowest)  # type: ignore[index]
        weights = self.dropout(functional.softmax(scores, dim=-1).to(value.dtype))
        x = self.dropout(self.out(join_heads(torch.matmul(weights, value)))) + x
        out: Tensor = self.dropout(self.down(python_gelu(self.up(self.norm2(x))))) + x
        return out


class DecoderLayer(nn.Module):
    """A block of nanoGPT and of llm-foundry's MPT, attention fused or kernel by kernel."""

    def __init__(self, width: int, heads: int, longest: int, *, bias: bool, fused: bool, gelu_in_python: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.gelu = heads, fused, python_gelu if gelu_in_python else functional.gelu
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        if not fused:
            self.register_buffer("seen", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.fused:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = query.shape[-2]
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(query.shape[-1]))
        scores = scores.masked_fill(self.seen[:, :, :rows, :rows] == 0, -math.inf)  # type: ignore[index]
        return functional.dropout(functional.softmax(scores, dim=-1), 0.0) @ value

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        query, key, value = (split_heads(part, self.heads) for part in self.qkv(self.norm1(x)).split(width, dim=2))
        x = x + self.out(join_heads(self._attend(query, key, value)))
        out: Tensor = x + self.down(self.gelu(self.up(self.norm2(x))))
        return out
