"""The simulated flash-attn: values and gradients against plain attention, refusals, memory, time.

Expectations: the README and docstrings of Dao-AILab/flash-attention (semantics), csrc/flash_attn/flash_api.cpp (memory,
words of refusals), and attention written out here, with all scores at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pytest
import torch

import vgpu
from tests.vgpu.conftest import rounded

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of 16-bit results of order 1."""
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def ampere() -> Iterator[vgpu.VirtualGPU]:
    with vgpu.attach("A100-80GB") as attached:
        yield attached


@pytest.fixture
def package(ampere: vgpu.VirtualGPU) -> Any:
    return importlib.import_module("flash_attn")


@dataclass
class Case:
    """A drawn call; lengths of queries and keys for each sequence."""

    lengths: list[tuple[int, int]]
    heads: int
    key_heads: int
    width: int
    dtype: torch.dtype
    options: dict[str, Any] = field(default_factory=dict)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Packed: (tokens, heads, width)."""
        queries, keys = (sum(pair[place] for pair in self.lengths) for place in (0, 1))
        shapes = (queries, self.heads), (keys, self.key_heads), (keys, self.key_heads)
        q, k, v = (
            torch.randn(*shape, self.width, device="cuda", dtype=self.dtype, requires_grad=True) for shape in shapes
        )
        return q, k, v

    def starts(self, place: int) -> torch.Tensor:
        lengths = torch.tensor([0, *(pair[place] for pair in self.lengths)])
        return lengths.cumsum(0).to(torch.int32).cuda()


def drawn(generator: random.Random, *, dense: bool) -> Case:
    """Options of all kinds; each is drawn by itself."""
    count = generator.choice([1, 2, 3])
    lengths = [(generator.randint(1, 70), generator.randint(1, 90)) for _ in range(count)]
    if dense:
        lengths = [lengths[0]] * count
    key_heads = generator.choice([1, 2])
    heads = key_heads * generator.choice([1, 2, 3])
    options: dict[str, Any] = {"causal": generator.random() < 0.5}
    if generator.random() < 0.5:
        options["window_size"] = generator.choice([(7, 0), (-1, 5), (11, 3), (4, -1), (200, 200)])
    if generator.random() < 0.4:
        options["softcap"] = generator.choice([1.5, 20.0])
    if generator.random() < 0.5:
        options["softmax_scale"] = 0.3
    if generator.random() < 0.4:
        shape = generator.choice([(heads,), (count, heads)])
        options["alibi_slopes"] = torch.rand(shape, device="cuda") * 0.5
    dtype = generator.choice([torch.float16, torch.bfloat16])
    return Case(lengths, heads, key_heads, generator.choice([8, 20, 64]), dtype, options)


def expected(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: Callable[[int], torch.Tensor] | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs (queries, heads, width) and log-sum-exps (heads, queries) of each sequence, differentiable."""
    outputs, sums = [], []
    splits = (
        x.float().split([pair[p] for pair in case.lengths]) for x, p in ((q, 0), (k, 1), (v, 1))
    )
    for index, (query, key, value) in enumerate(zip(*splits, strict=True)):
        groups = case.heads // case.key_heads
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        options, (rows, columns) = case.options, case.lengths[index]
        scores = torch.einsum("qhd,khd->hqk", query, key) * options.get("softmax_scale", case.width**-0.5)
        if options.get("softcap"):
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        i, j = torch.arange(rows, device=q.device)[:, None], torch.arange(columns, device=q.device)[None]
        away = i + columns - rows - j
        left, right = options.get("window_size", (-1, -1))
        if options.get("causal") and rows >= 1:
            right = 0
        slopes = options.get("alibi_slopes")
        if slopes is not None:
            slope = slopes if slopes.dim() == 1 else slopes[index]
            scores = scores - slope[:, None, None] * away.abs()
        hidden = torch.zeros_like(away, dtype=torch.bool)
        if left >= 0:
            hidden = hidden | (away > left)
        if right >= 0:
            hidden = hidden | (-away > right)
        blind = hidden.all(-1)
        scores = scores.masked_fill(hidden, -1e30)
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        if kept is not None:
            weights = weights * kept(index)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value))
        sums.append(scores.logsumexp(-1).masked_fill(blind, math.inf))
    return outputs, sums


def require_equal(actual: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    scale = max(1.0, float(reference.abs().max())) if reference.numel() else 1.0
    torch.testing.assert_close(
        actual.float(), reference.float(), rtol=0, atol=TOLERANCE[dtype] * scale, msg=lambda text: f"{what}: {text}"
    )


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_drawn_calls_equal_plain_attention(package: Any, seed: int) -> None:
    """Equally long sequences, and packed ones: outputs, log-sum-exps, gradients."""
    generator = random.Random(seed)
    torch.manual_seed(seed)
    for number in range(6):
        case = drawn(generator, dense=number % 2 == 0)
        q, k, v = case.operands()
        outputs, sums = expected(case, q, k, v)
        reference = torch.cat(outputs)
        what = f"{case}"
        if number % 2 == 0:
            parts = (x.unflatten(0, (len(case.lengths), -1)) for x in (q, k, v))
            whole, lse, _ = package.flash_attn_func(*parts, **case.options, return_attn_probs=True)
            output, lse = whole.flatten(0, 1), lse.transpose(0, 1).flatten(1)
        else:
            longest = [max(pair[place] for pair in case.lengths) for place in (0, 1)]
            output, lse, _ = package.flash_attn_varlen_func(
                q, k, v, case.starts(0), case.starts(1), *longest, **case.options, return_attn_probs=True
            )
        assert output.dtype == case.dtype
        require_equal(output, reference, case.dtype, f"output, {what}")
        if "alibi_slopes" not in case.options:  # the kernel for causal masks leaves a constant out
            require_equal(lse, torch.cat(sums, -1), case.dtype, f"log-sum-exp, {what}")
        gradient = torch.randn_like(output)
        actual = torch.autograd.grad(output, (q, k, v), gradient)
        for name, grad, wanted in zip("qkv", actual, torch.autograd.grad(reference, (q, k, v), gradient.float()), strict=True):
            require_equal(grad, wanted, case.dtype, f"gradient of {name}, {what}")
