"""The simulated flash-attn: values and gradients against plain attention, refusals, memory, time.

Expectations: the README and docstrings of Dao-AILab/flash-attention (semantics), csrc/flash_attn/flash_api.cpp (memory,
words of refusals), and attention written out here, with all scores at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import pytest
import torch
from torch.nn import functional

import vgpu
from tests.vgpu.conftest import rounded

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of 16-bit results of order 1."""
MEBIBYTE = 2**20


@pytest.fixture
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
    splits = (x.float().split([pair[p] for pair in case.lengths]) for x, p in ((q, 0), (k, 1), (v, 1)))
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
    finite = reference.detach().float().nan_to_num(posinf=0.0)
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
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
        wanted = torch.autograd.grad(reference, (q, k, v), gradient.float())
        for name, grad, right in zip("qkv", actual, wanted, strict=True):
            require_equal(grad, right, case.dtype, f"gradient of {name}, {what}")


def test_packed_operands_equal_separate_ones(package: Any) -> None:
    """qkv and kv in one tensor, also packed sequences: the same outputs, and one gradient."""
    torch.manual_seed(1)
    qkv = torch.randn(2, 33, 3, 4, 24, device="cuda", dtype=torch.float16, requires_grad=True)
    q, k, v = (part.detach().clone().requires_grad_() for part in qkv.unbind(2))
    kv = torch.stack([k.detach(), v.detach()], 2).requires_grad_()
    separate = package.flash_attn_func(q, k, v, causal=True)
    gradient = torch.randn_like(separate)
    wanted = torch.stack(torch.autograd.grad(separate, (q, k, v), gradient), 2)
    starts = torch.tensor([0, 33, 66], dtype=torch.int32, device="cuda")
    lengths = (starts, starts, 33, 33)

    def flat(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten(0, 1)

    calls = {
        "qkv": (package.flash_attn_qkvpacked_func(qkv, causal=True), [qkv]),
        "kv": (package.flash_attn_kvpacked_func(q, kv, causal=True), [q, kv]),
        "packed qkv": (package.flash_attn_varlen_qkvpacked_func(flat(qkv), starts, 33, causal=True), [qkv]),
        "packed kv": (package.flash_attn_varlen_kvpacked_func(flat(q), flat(kv), *lengths, causal=True), [q, kv]),
    }
    for name, (output, operands) in calls.items():
        assert torch.equal(output.view_as(separate), separate), name
        grads = torch.autograd.grad(output, operands, gradient.view_as(output))
        joined = grads[0] if len(grads) == 1 else torch.cat([grads[0][:, :, None], grads[1]], 2)
        assert torch.equal(joined, wanted), name


def test_nothing_to_attend_to_gives_zeros(package: Any) -> None:
    """No queries, no keys, or rows that a mask hides: zeros, and an infinite log-sum-exp (flash_api.cpp, softmax.h)."""
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.float16, "requires_grad": True}
    for queries, keys, blind in ((0, 4, 0), (4, 0, 4), (5, 2, 3)):
        q, k = torch.randn(2, queries, 2, 16, **like), torch.randn(2, keys, 2, 16, **like)
        output, lse, _ = package.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
        assert output.shape == q.shape
        assert not output[:, :blind].any()
        assert torch.isinf(lse).sum() == 2 * 2 * blind
        grads = torch.autograd.grad(output, (q, k), torch.ones_like(output))
        assert not grads[0][:, :blind].any()
        assert bool(grads[1].any()) == (queries > 0 and keys > 0)


def test_the_operators_are_functions_with_defaults(package: Any) -> None:
    """Ring attention calls them with the defaults that `inspect` finds."""
    interface = importlib.import_module("flash_attn.flash_attn_interface")
    parameters = inspect.signature(interface._flash_attn_varlen_forward).parameters
    defaults = {name: item.default for name, item in parameters.items() if item.default is not inspect.Parameter.empty}
    assert list(parameters)[:5] == ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"]
    assert (defaults["window_size_left"], defaults["softcap"], defaults["block_table"]) == (-1, 0.0, None)
    q = torch.randn(1, 8, 2, 16, device="cuda").half()
    given = {"dropout_p": 0.0, "softmax_scale": 0.25, "causal": True, "window_size_left": -1, "window_size_right": -1}
    output, *_ = interface._flash_attn_forward(q, q, q, **given, softcap=0.0, alibi_slopes=None, return_softmax=False)
    assert torch.equal(output, package.flash_attn_func(q, q, q, causal=True))


# ---- dropout -----------------------------------------------------------------------------------------------------


def philox(seed: int, subsequence: int, offset: int) -> list[int]:
    """Sixteen bytes of Philox 4x32-7, computed with whole numbers (J. Salmon et al. 2011)."""
    words = [offset & 0xFFFFFFFF, offset >> 32, subsequence & 0xFFFFFFFF, subsequence >> 32]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(7):
        low, high = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (high >> 32) ^ words[1] ^ key[0], high & 0xFFFFFFFF, (low >> 32) ^ words[3] ^ key[1], low & 0xFFFFFFFF,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [word >> shift & 0xFF for word in words for shift in (0, 8, 16, 24)]


def test_dropout_drops_what_a_card_drops_and_backward_the_same(package: Any) -> None:
    """Byte n of a thread is element n % 4 of its fragment in the n // 4-th 8 columns (dropout.h; PTX, m16n8k16)."""
    torch.manual_seed(77)
    batch, length, heads, probability = 2, 40, 2, 0.3
    case = Case([(length, length)] * batch, heads, heads, 32, torch.float16)
    q, k, v = case.operands()
    offset = torch.cuda.default_generators[0].get_offset()
    parts = [x.unflatten(0, (batch, length)) for x in (q, k, v)]
    output, _, probabilities = package.flash_attn_func(*parts, dropout_p=probability, return_attn_probs=True)
    assert torch.cuda.default_generators[0].get_offset() == offset + 32 * batch * heads
    assert probabilities.shape == (batch, heads, 128, 128)  # whole blocks
    kept = probabilities[:, :, :length, :length] > 0
    second = torch.zeros(heads, 48, 64, dtype=torch.bool)
    for head in range(heads):
        for row in range(3):
            for column in range(2):
                for lane in range(32):
                    at = offset + (heads + head) * 32 + lane
                    for n, byte in enumerate(philox(77, column << 32 | row, at)):
                        i = 16 * row + lane // 4 + 8 * (n % 4 // 2)
                        j = 32 * column + 8 * (n // 4) + lane % 4 * 2 + n % 2
                        second[head, i, j] = byte <= math.floor((1 - probability) * 255)
    assert torch.equal(kept[1].cpu(), second[:, :length, :length])
    weights = kept / (1 - probability)
    reference = torch.stack(expected(case, q, k, v, lambda index: weights[index])[0])
    require_equal(output, reference, torch.float16, "output")
    gradient = torch.randn_like(output)
    grads = torch.autograd.grad(output, (q, k, v), gradient)
    for grad, wanted in zip(grads, torch.autograd.grad(reference, (q, k, v), gradient.float()), strict=True):
        require_equal(grad, wanted, torch.float16, "gradient")


# ---- caches ------------------------------------------------------------------------------------------------------


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, places: torch.Tensor, *, pairs: bool) -> torch.Tensor:
    """Rotary embedding of (rows, heads, width) by complex numbers, rounded as the cache is."""
    half = cos.shape[1]
    part, angle = x[..., : 2 * half].float(), torch.complex(cos[places].float(), sin[places].float())[:, None]
    values = part.unflatten(-1, (half, 2)) if pairs else part.unflatten(-1, (2, half)).transpose(-1, -2)
    result = torch.view_as_real(torch.view_as_complex(values.contiguous()) * angle)
    joined = result.flatten(-2) if pairs else result.transpose(-1, -2).flatten(-2)
    return torch.cat([joined.to(x.dtype), x[..., 2 * half :]], -1)


@pytest.mark.parametrize("seed", range(3))
def test_a_cache_is_appended_to_and_attended_to(package: Any, seed: int) -> None:
    """Against the same cache kept by hand: places, pages, rotation, left padding, few or many queries."""
    generator = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(8):
        batch, key_heads, width = generator.randint(1, 3), generator.choice([1, 2]), generator.choice([20, 32])
        heads, queries = key_heads * generator.choice([1, 3]), generator.choice([1, 4])
        paged, rotates, pairs = generator.random() < 0.4, generator.random() < 0.5, generator.random() < 0.5
        appends, causal = rotates or generator.random() < 0.6, generator.random() < 0.5
        like: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
        q = torch.randn(batch, queries, heads, width, **like)
        options: dict[str, Any] = {"causal": causal, "window_size": generator.choice([(-1, -1), (9, 2)])}
        lengths = [generator.randint(8, 40) for _ in range(batch)]
        rows, left = 64, [0] * batch
        if paged:
            count, rows = 2 * batch + 1, 256
            table = torch.tensor(generator.sample(range(count), 2 * batch), device="cuda").view(batch, 2).int()
            options["block_table"], shape = table, (count, rows)
            lengths = [generator.randint(230, 300) for _ in range(batch)]
        else:
            shape = (batch + 2, rows)
            places = torch.tensor(generator.sample(range(batch + 2), batch), dtype=torch.int32, device="cuda")
            options["cache_batch_idx"] = places
            if generator.random() < 0.5:
                left = [generator.randint(0, 5) for _ in range(batch)]
                options["cache_leftpad"] = torch.tensor(left, dtype=torch.int32, device="cuda")
        caches = [torch.randn(*shape, key_heads, width, **like) for _ in range(2)]
        new = [torch.randn(batch, queries, key_heads, width, **like) for _ in range(2)] if appends else []
        cos, sin = (torch.randn(600, 8, **like) for _ in range(2))
        if rotates:
            options.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=pairs)
        # What must be in the cache, and what a query sees of it.
        after, seen, rotated_queries = [cache.clone() for cache in caches], [], []
        for index, length in enumerate(lengths):
            at = torch.arange(length, length + (queries if appends else 0), device="cuda")
            if paged:
                spots = [(int(table[index, place // rows]), place % rows) for place in range(int(length + len(at)))]
            else:
                spots = [(int(places[index]), place) for place in range(int(length + len(at)))]
            for kind, values in enumerate(new):
                value = values[index]
                if kind == 0 and rotates:
                    value = turned(value, cos, sin, at, pairs=pairs)
                for row, (block, place) in zip(value, spots[length:], strict=True):
                    after[kind][block, place] = row
            seen.append([torch.stack([kept[spot] for spot in spots[left[index] :]]) for kept in after])
            query = q[index]
            if rotates:
                moves = (causal and queries > 1) or options["window_size"] != (-1, -1)
                spread = torch.arange(queries, device="cuda") * int(moves) + length
                query = turned(query, cos, sin, spread, pairs=pairs)
            rotated_queries.append(query)
        pairs_of_lengths = [(queries, len(keys)) for keys, _ in seen]
        known = {name: options[name] for name in ("causal", "window_size")}
        case = Case(pairs_of_lengths, heads, key_heads, width, torch.float16, known)
        keys, values = (torch.cat([part[kind] for part in seen]) for kind in (0, 1))
        outputs, sums = expected(case, torch.cat(rotated_queries), keys, values)
        given = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        output, lse = package.flash_attn_with_kvcache(
            q, *caches, *new, cache_seqlens=given, **options, return_softmax_lse=True
        )
        what = f"{batch=} {queries=} {paged=} {rotates=} {appends=} {options}"
        require_equal(output, torch.stack(outputs), torch.float16, what)
        require_equal(lse, torch.stack(sums), torch.float16, what)
        for actual, wanted in zip(caches, after, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=2e-3, atol=2e-3)
        assert not output.requires_grad


def test_pages_of_packed_keys_equal_the_keys(package: Any) -> None:
    torch.manual_seed(5)
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    pages, table = torch.randn(2, 5, 256, 2, 16, **like), torch.tensor([[3, 1], [4, 0]], device="cuda").int()
    q, lengths = torch.randn(7, 2, 16, **like), [300, 40]
    starts = torch.tensor([0, 3, 7], dtype=torch.int32, device="cuda")
    of_keys = torch.tensor([0, 300, 340], dtype=torch.int32, device="cuda")
    k, v = (torch.cat([kind[table[i].long()].flatten(0, 1)[:n] for i, n in enumerate(lengths)]) for kind in pages)
    plain = package.flash_attn_varlen_func(q, k, v, starts, of_keys, 4, 300, causal=True)
    paged = package.flash_attn_varlen_func(q, *pages, starts, of_keys, 4, 300, causal=True, block_table=table)
    assert torch.equal(paged, plain)


def test_an_operator_leaves_keys_out_in_front_and_at_the_end(package: Any) -> None:
    """`leftpad_k` keys in front of a sequence, and all beyond `seqused_k` (block_info.h)."""
    torch.manual_seed(6)
    q, k, v = (torch.randn(20, 2, 16, device="cuda").half() for _ in range(3))
    starts, left, used = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 8, 20], [2, 3], [7, 10]))
    forward = torch.ops.flash_attn._flash_attn_varlen_forward
    output, *_ = forward(q, k, v, starts, starts, 12, 12, 0.0, 0.25, True, leftpad_k=left, seqused_k=used)
    kept = torch.tensor([*range(2, 7), *range(11, 18)], device="cuda")
    of_keys = torch.tensor([0, 5, 12], dtype=torch.int32, device="cuda")
    expected_output = package.flash_attn_varlen_func(q, k[kept], v[kept], starts, of_keys, 12, 7, causal=True)
    assert torch.equal(output, expected_output)


# ---- refusals ----------------------------------------------------------------------------------------------------


def tensors(**changes: Any) -> list[torch.Tensor]:
    """q, k, v of 2 sequences, with something changed."""
    made = {"dtype": torch.float16, "heads": 4, "key_heads": 4, "width": 32, "keys": 16, "device": "cuda", **changes}
    shapes = (2, 16, made["heads"]), (2, made["keys"], made["key_heads"]), (2, made["keys"], made["key_heads"])
    return [torch.zeros(*shape, made["width"], device=made["device"], dtype=made["dtype"]) for shape in shapes]


REFUSED = {
    "FlashAttention only support fp16 and bf16 data type": (lambda f: f(*tensors(dtype=torch.float32))),
    "query and key must have the same dtype": (lambda f: f(*tensors()[:1], *tensors(dtype=torch.bfloat16)[1:])),
    "query and value must have the same dtype": (lambda f: f(*tensors()[:2], *tensors(dtype=torch.float32)[2:])),
    "FlashAttention forward only supports head dimension at most 256": (lambda f: f(*tensors(width=264))),
    "Number of heads in key/value must divide number of heads in query": (lambda f: f(*tensors(key_heads=3))),
    "k must be on CUDA": (lambda f: f(*tensors()[:1], *tensors(device="cpu")[1:])),
    "k must have shape (batch_size, seqlen_k, num_heads_k, head_size)": (
        lambda f: f(*tensors()[:1], *tensors(width=16)[1:])
    ),
    "v must have shape (batch_size, seqlen_k, num_heads_k, head_size)": (
        lambda f: f(*tensors()[:2], *tensors(keys=8)[2:])
    ),
    "Softcapping does not support dropout for now": (lambda f: f(*tensors(), softcap=2.0, dropout_p=0.1)),
    "Expected p_dropout < 1.f to be true": (lambda f: f(*tensors(), dropout_p=1.0)),
    "ALiBi slopes must have dtype fp32": (
        lambda f: f(*tensors(), alibi_slopes=torch.ones(4, device="cuda", dtype=torch.float16))
    ),
    "alibi_slopes must be on CUDA": (lambda f: f(*tensors(), alibi_slopes=torch.ones(4))),
    "Expected alibi_slopes.sizes()": (lambda f: f(*tensors(), alibi_slopes=torch.ones(3, device="cuda"))),
    "Could not run 'flash_attn::_flash_attn_forward' with arguments from the 'CPU' backend": (
        lambda f: f(*tensors(device="cpu"))
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_package_refuses_in_its_words(package: Any, text: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        REFUSED[text](package.flash_attn_func)
    assert text in str(caught.value)


def test_refusals_of_packed_sequences_and_caches(package: Any) -> None:
    q, k, v = (x[0] for x in tensors())
    starts = torch.tensor([0, 16], dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match="cu_seqlens_q must have dtype int32"):
        package.flash_attn_varlen_func(q, k, v, starts.long(), starts, 16, 16)
    with pytest.raises(RuntimeError, match="cu_seqlens_k must be on CUDA"):
        package.flash_attn_varlen_func(q, k, v, starts, starts.cpu(), 16, 16)
    with pytest.raises(RuntimeError, match=r"cu_seqlens_k must have shape \(batch_size \+ 1\)"):
        package.flash_attn_varlen_func(q, k, v, starts, torch.cat([starts, starts]), 16, 16)
    query, *cache = tensors()
    length = torch.full((2,), 3, dtype=torch.int32, device="cuda")
    table = torch.zeros(2, 1, dtype=torch.int32, device="cuda")
    kvcache = package.flash_attn_with_kvcache
    refused: dict[str, Callable[[], Any]] = {
        "Expected a CUDA device, but got cpu": lambda: kvcache(*tensors(device="cpu")),
        "If key is supplied, value must also be passed in": lambda: kvcache(query, *cache, query),
        "If key is supplied, seqlens_k must also be passed in": lambda: kvcache(query, *cache, query, query),
        "seqlens_k must have dtype int32": lambda: kvcache(query, *cache, cache_seqlens=length.long()),
        "Paged KV cache block size must be divisible by 256": lambda: kvcache(query, *cache, block_table=table),
        "If rotary cos/sin are provided, new key": lambda: kvcache(query, *cache, rotary_cos=query[0, :, 0, :8]),
    }
    for text, call in refused.items():
        with pytest.raises(RuntimeError, match=text):
            call()


def test_a_card_before_ampere_is_refused() -> None:
    text = r"FlashAttention only supports Ampere GPUs or newer\."
    with vgpu.attach("T4"), pytest.raises(RuntimeError, match=text):
        importlib.import_module("flash_attn").flash_attn_func(*tensors())


@pytest.mark.parametrize("kind", ["packed", "cache"])
def test_a_kernel_that_leaves_its_tensors_fails_at_the_next_wait(kind: str) -> None:
    with vgpu.attach("A100-80GB"):
        package = importlib.import_module("flash_attn")
        q, k, v = tensors()
        if kind == "packed":
            starts = torch.tensor([0, 40], dtype=torch.int32, device="cuda")
            package.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 40, 40)
        else:
            package.flash_attn_with_kvcache(q, k, v, q, q, cache_seqlens=8)
        with pytest.raises(torch.AcceleratorError, match="an illegal memory access was encountered"):
            torch.cuda.synchronize()


# ---- memory and time ---------------------------------------------------------------------------------------------


def allocated(function: Callable[[], Any]) -> tuple[Any, int, int]:
    """Result, bytes that stay, and bytes at the peak, beyond those before."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    return result, torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(("deterministic", "key_heads"), [(False, 16), (False, 4), (True, 16)])
def test_memory_grows_with_the_length_and_is_that_of_the_package(deterministic: bool, key_heads: int) -> None:
    """Output and log-sum-exp stay; backward has FP32 sums of dQ, and dK and dV for each head of the queries."""
    with vgpu.attach("A100-80GB", values=False) as gpu:
        package = importlib.import_module("flash_attn")
        length, heads, width = 8192, 16, 64
        q = torch.empty(1, length, heads, width, device="cuda", dtype=torch.float16, requires_grad=True)
        k, v = (
            torch.empty(1, length, key_heads, width, device="cuda", dtype=torch.float16, requires_grad=True)
            for _ in range(2)
        )
        sums, state = 4 * heads * length, 512
        output, stays, _ = allocated(lambda: package.flash_attn_func(q, k, v, causal=True, deterministic=deterministic))
        assert stays == q.nbytes + sums + state
        gradient = torch.empty_like(output)
        _, grads, peak = allocated(lambda: output.backward(gradient))
        parts = -(-gpu.spec.multiprocessors // heads) if deterministic else 1
        wide = 2 * q.nbytes if key_heads < heads else 0
        made = q.nbytes + k.nbytes + v.nbytes
        assert peak == rounded(made, sums, 4 * parts * length * heads * width, wide)
        assert grads == made - (stays - rounded(q.nbytes))  # the output is held by this test
        # The matrix of all scores would take 2 GiB.
        assert peak < length * length * heads


def test_few_queries_split_the_keys() -> None:
    """8 heads of one sequence fill 8 of 216 places. 64 blocks of keys, at most 3 for a part: 22 parts fill 176 places;
    fewer parts fill too little (flash_api.cpp, `num_splits_heuristic`).
    """
    with vgpu.attach("A100-80GB", values=False) as gpu:
        package = importlib.import_module("flash_attn")
        q = torch.empty(1, 1, 8, 128, device="cuda", dtype=torch.float16)
        cache = torch.empty(1, 8192, 8, 128, device="cuda", dtype=torch.float16)
        for chosen, parts in ((0, 22), (1, 1), (5, 5)):
            begin = len(gpu.timeline)
            _, _, peak = allocated(lambda n=chosen: package.flash_attn_with_kvcache(q, cache, cache, num_splits=n))
            scratch = [4 * parts * 8, 4 * parts * 8 * 128] if parts > 1 else []
            assert peak == rounded(q.nbytes, 4 * 8, *scratch)
            kernels = gpu.timeline[begin:]
            assert len(kernels) == (2 if parts > 1 else 1)
            assert kernels[0].bytes == 2 * q.nbytes + 2 * cache.nbytes + 4 * 8


def seconds(gpu: vgpu.VirtualGPU, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, float, int]:
    """Result, and device time and bytes of attention's kernels."""
    begin = len(gpu.timeline)
    result = function(*args, **kwargs)
    kernels = [kernel for kernel in gpu.timeline[begin:] if "attention" in kernel.name or "flash" in kernel.name]
    return result, sum(kernel.seconds for kernel in kernels), sum(kernel.bytes for kernel in kernels)


def test_time_is_that_of_pytorchs_flash_kernel_and_less_is_faster() -> None:
    with vgpu.attach("A100-80GB", values=False) as gpu:
        flash = importlib.import_module("flash_attn").flash_attn_func

        def operands(length: int) -> list[torch.Tensor]:
            shape = 4, length, 16, 64
            return [torch.empty(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

        for causal in (False, True):
            separate = operands(4096)
            heads = [x.detach().transpose(1, 2).requires_grad_() for x in separate]
            output, *own = seconds(gpu, flash, *separate, causal=causal)
            fused, *other = seconds(gpu, functional.scaled_dot_product_attention, *heads, is_causal=causal)
            assert own == pytest.approx(other, rel=0.01)
            own, other = (list(seconds(gpu, result.backward, result)[1:]) for result in (output, fused))
            assert own == pytest.approx(other, rel=0.01)
        longest = operands(8192)
        windows = [seconds(gpu, flash, *longest, causal=True, window_size=(left, 0))[1] for left in (512, 2048, -1)]
        lengths = [seconds(gpu, flash, *operands(length), causal=True)[1] for length in (1024, 2048, 4096, 8192)]
        assert windows == sorted(set(windows))
        assert lengths == sorted(set(lengths))
        assert windows[-1] == lengths[-1]


def test_packed_sequences_cost_by_their_own_lengths(package: Any, ampere: vgpu.VirtualGPU) -> None:
    """Eight short sequences take less than one with as many tokens."""
    q, k, v = (torch.zeros(512, 2, 32, device="cuda", dtype=torch.float16) for _ in range(3))
    flops = []
    for step in (512, 64):
        starts = torch.arange(0, 513, step, dtype=torch.int32, device="cuda")
        package.flash_attn_varlen_func(q, k, v, starts, starts, step, step)
        flops.append(ampere.timeline[-1].flops)
        assert ampere.timeline[-1].bytes == 4 * q.nbytes + 4 * 2 * 512
    assert flops == [4 * 512 * 512 * 2 * 32, 4 * 8 * 64 * 64 * 2 * 32]


# ---- how it is found ---------------------------------------------------------------------------------------------


def test_the_package_is_there_while_the_gpu_is_attached_only() -> None:
    assert importlib.util.find_spec("flash_attn") is None
    with vgpu.attach("A100-80GB"):
        package = importlib.import_module("flash_attn")
        assert package.__version__ == metadata.version("flash_attn") == metadata.version("flash-attn")
        assert package.__version__.endswith("+vgpu")
        assert metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("flash_attn.losses")
    assert importlib.util.find_spec("flash_attn") is None
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("flash_attn")
    with pytest.raises(ImportError):
        importlib.import_module("flash_attn.bert_padding")


def test_an_installed_package_comes_first(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("__version__ = '2.9'")
    monkeypatch.syspath_prepend(tmp_path)
    with vgpu.attach("A100-80GB"):
        package = importlib.import_module("flash_attn")
        assert package.__version__ == "2.9"
        with pytest.raises(metadata.PackageNotFoundError):
            metadata.version("flash_attn")
    del sys.modules["flash_attn"]
