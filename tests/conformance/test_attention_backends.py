"""Scaled dot-product attention: the kernels one may choose, their conditions, values and memory."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conformance.machine import Gpu
from tests.conformance.measure import bytes_of
from tests.conformance.programs import program

SDPA = "torch docs: nn.functional.scaled_dot_product_attention"
KERNELS = "torch docs: torch.nn.attention.sdpa_kernel"
UTILITIES = "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
BATCH, HEADS, LENGTH, WIDTH = 1, 2, 1024, 32
SCORES = BATCH * HEADS * LENGTH * LENGTH  # elements of the matrix that fused kernels never make


def inputs(dtype: torch.dtype = torch.float32, length: int = LENGTH, *, learns: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape = BATCH, HEADS, length, WIDTH
    return [torch.randn(shape, device="cuda").to(dtype).requires_grad_(learns) for _ in range(3)]


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
    """The definition in the documentation, in float64 on the CPU."""
    query, key, value = (tensor.detach().cpu().double() for tensor in (query, key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ value


@program(f"{SDPA}: the definition")
def test_attention_is_what_its_definition_says(cuda: Gpu) -> None:
    q, k, v = inputs(length=65)
    for causal in (False, True):
        result = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        assert torch.allclose(result.cpu().double(), by_hand(q, k, v, causal=causal), atol=1e-4)
    scaled = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert torch.allclose(scaled.cpu().double(), by_hand(q * math.sqrt(WIDTH), k, v), atol=1e-4)


@program(KERNELS)
def test_backends_that_take_float32_agree(cuda: Gpu) -> None:
    results, gradients = [], []
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        q, k, v = inputs(length=100, learns=True)
        with sdpa_kernel(backend):
            result = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result.square().sum().backward()
        results.append(result.detach())
        gradients.append(q.grad)
    assert torch.allclose(results[0], results[1], atol=1e-4)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-3)


@program(f"{KERNELS}; {UTILITIES}: check_flash_attention_hardware_support", capability=(8, 0))
def test_flash_attention_in_sixteen_bits(cuda: Gpu) -> None:
    for dtype, tolerance in ((torch.float16, 5e-3), (torch.bfloat16, 4e-2)):
        q, k, v = inputs(dtype, length=129)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            result = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert result.dtype == dtype
        assert torch.allclose(result.cpu().double(), by_hand(q, k, v, causal=True), atol=tolerance)


@program(f"{UTILITIES}: flash attention takes float16 and bfloat16 only")
def test_flash_attention_refuses_float32(cuda: Gpu) -> None:
    q, k, v = inputs(length=64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, k, v)


@program(f"{UTILITIES}: check_flash_attention_hardware_support: sm80 or later", below_capability=(8, 0))
def test_flash_attention_needs_ampere(cuda: Gpu) -> None:
    q, k, v = inputs(torch.float16, length=64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, k, v)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert F.scaled_dot_product_attention(q, k, v).dtype == torch.float16


@program(f"{UTILITIES}: check_for_attn_mask: flash attention takes no mask", capability=(8, 0))
def test_flash_attention_refuses_a_mask(cuda: Gpu) -> None:
    q, k, v = inputs(torch.float16, length=64)
    mask = torch.ones(64, 64, device="cuda", dtype=torch.bool).tril()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(result.cpu().double(), by_hand(q, k, v, causal=True), atol=5e-3)


@program(f"{UTILITIES}: only the math kernel takes float64")
def test_fused_kernels_refuse_float64(cuda: Gpu) -> None:
    q, k, v = inputs(torch.float64, length=64)
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    with sdpa_kernel(fused), pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, k, v)
    result = F.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(result.cpu(), by_hand(q, k, v), atol=1e-10)


@program(f"{SDPA}: attn_mask, is_causal")
def test_masks_and_their_errors(cuda: Gpu) -> None:
    q, k, v = inputs(length=40)
    allowed = torch.ones(40, 40, device="cuda", dtype=torch.bool).tril()
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed), causal, atol=1e-5)
    added = torch.zeros(40, 40, device="cuda").masked_fill(~allowed, -math.inf)
    assert torch.allclose(F.scaled_dot_product_attention(q, k, v, attn_mask=added), causal, atol=1e-5)
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
        F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=True)
    near = allowed & allowed.t().roll(3, 1)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        both = F.scaled_dot_product_attention(q, k, v, attn_mask=near | allowed.t(), is_causal=True)
        assert torch.allclose(both, F.scaled_dot_product_attention(q, k, v, attn_mask=(near | allowed.t()) & allowed))
    with pytest.raises(RuntimeError, match="Expected query, key, and value to have the same dtype"):
        F.scaled_dot_product_attention(q, k.half(), v)


@program(f"{SDPA}: the causal mask is torch.ones(L, S).tril(diagonal=0)")
def test_a_causal_mask_starts_at_the_upper_left(cuda: Gpu) -> None:
    q, k, v = inputs(length=40)
    result = F.scaled_dot_product_attention(q[:, :, :8], k, v, is_causal=True)
    assert torch.allclose(result.cpu().double(), by_hand(q[:, :, :8], k, v, causal=True), atol=1e-4)
    assert torch.allclose(result[:, :, 0], v[:, :, 0], atol=1e-5)
    longer = F.scaled_dot_product_attention(q, k[:, :, :8], v[:, :, :8])
    assert torch.allclose(longer.cpu().double(), by_hand(q, k[:, :, :8], v[:, :, :8]), atol=1e-4)


@program(f"{SDPA}: enable_gqa")
def test_heads_may_share_keys(cuda: Gpu) -> None:
    q = torch.randn(2, 8, 16, WIDTH, device="cuda")
    k, v = (torch.randn(2, 2, 16, WIDTH, device="cuda") for _ in range(2))
    result = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    spread = F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
    assert torch.allclose(result, spread, atol=1e-5)


@program(f"{KERNELS}: the math kernel makes the scores, fused kernels do not")
def test_only_the_math_kernel_makes_the_scores(cuda: Gpu) -> None:
    q, k, v = inputs()
    with torch.no_grad():
        with sdpa_kernel(SDPBackend.MATH):
            assert bytes_of(lambda: F.scaled_dot_product_attention(q, k, v)).peak >= SCORES * 4
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            fused = bytes_of(lambda: F.scaled_dot_product_attention(q, k, v))
        assert fused.peak < SCORES  # the result, and at most a copy of it
        chosen = bytes_of(lambda: F.scaled_dot_product_attention(q, k, v))
        assert chosen.peak < SCORES


@program("aten/src/ATen/native/transformers/cuda/attention.cu: logsumexp is kept instead of the scores")
def test_fused_training_needs_no_scores_either(cuda: Gpu) -> None:
    def step() -> None:
        q, k, v = inputs(learns=True)
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert bytes_of(step).peak < SCORES * 4
    with sdpa_kernel(SDPBackend.MATH):
        assert bytes_of(step).peak > 2 * SCORES * 4


@program(f"{SDPA}; flash attention keeps logsumexp and a generator state", capability=(8, 0))
def test_memory_of_flash_attention_grows_linearly(cuda: Gpu) -> None:
    def kept(length: int) -> int:
        q, k, v = inputs(torch.float16, length, learns=True)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return bytes_of(lambda: F.scaled_dot_product_attention(q, k, v)).kept

    output = BATCH * HEADS * LENGTH * WIDTH * 2
    assert output < kept(LENGTH) <= output + BATCH * HEADS * LENGTH * 4 + 4096
    assert 1.8 < kept(2 * LENGTH) / kept(LENGTH) < 2.2


@program(f"{SDPA}: dropout_p; {UTILITIES}: fused kernels take dropout")
def test_attention_with_dropout_makes_no_scores(cuda: Gpu) -> None:
    q, k, v = inputs(learns=True)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]):
        measured = bytes_of(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2))
        torch.manual_seed(5)
        first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
        torch.manual_seed(5)
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, dropout_p=0.2), first)
    assert measured.peak < SCORES
    ones = torch.ones_like(v)
    spread = F.scaled_dot_product_attention(q, k, ones, dropout_p=0.2)
    assert abs(spread.mean().item() - 1.0) < 0.05


@program(f"{KERNELS}: the previous state is restored")
def test_the_choice_of_kernels_is_a_context(cuda: Gpu) -> None:
    cuda_backends = torch.backends.cuda

    def enabled() -> tuple[bool, bool, bool]:
        return (cuda_backends.flash_sdp_enabled(), cuda_backends.mem_efficient_sdp_enabled(),
                cuda_backends.math_sdp_enabled())  # fmt: skip

    assert enabled() == (True, True, True)
    with sdpa_kernel(SDPBackend.MATH):
        assert enabled() == (False, False, True)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
            assert enabled() == (True, True, False)
        assert enabled() == (False, False, True)
    assert enabled() == (True, True, True)
    cuda_backends.enable_math_sdp(False)
    assert enabled() == (True, True, False)
    with pytest.raises(AssertionError, match="Backend must be an instance of SDPBackend"):
        sdpa_kernel("flash").__enter__()


@program("torch docs: nn.MultiheadAttention, nn.TransformerEncoderLayer: train and eval agree without dropout")
def test_attention_modules_agree_with_the_cpu(cuda: Gpu) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 7, 32)
    expected = layer(x)
    layer.cuda()
    assert torch.allclose(layer(x.cuda()).cpu(), expected, atol=1e-4)
    layer.eval()
    with torch.no_grad():
        assert torch.allclose(layer(x.cuda()).cpu(), expected, atol=1e-4)
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).cuda()
    with_weights, weights = attention(x.cuda(), x.cuda(), x.cuda())
    without, none = attention(x.cuda(), x.cuda(), x.cuda(), need_weights=False)
    assert torch.allclose(with_weights, without, atol=1e-4)
    assert none is None
    assert torch.allclose(weights.sum(-1), torch.ones(2, 7, device="cuda"), atol=1e-5)
