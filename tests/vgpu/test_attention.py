"""`scaled_dot_product_attention`: the choice of a kernel, its values, its bytes and its time.

Expectations: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (choice), transformers/attention.cpp (inputs, math),
tools/autograd/derivatives.yaml (what is saved), torch.nn.attention (switches).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends.cuda import SDPAParams
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.memory import workspaces

sdpa = functional.scaled_dot_product_attention
FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
CUDNN = "aten::_scaled_dot_product_cudnn_attention"
MATH = "aten::_safe_softmax"


@pytest.fixture
def hopper() -> Iterator[vgpu.VirtualGPU]:
    with vgpu.attach("H100", values=False) as attached:
        yield attached


@pytest.fixture
def turing() -> Iterator[vgpu.VirtualGPU]:
    with vgpu.attach("T4", values=False) as attached:
        yield attached


def _qkv(
    dtype: torch.dtype = torch.float16, *, batch: int = 2, heads: int = 4, length: int = 64, width: int = 64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = [torch.randn(batch, heads, length, width, device="cuda", dtype=dtype) for _ in range(3)]
    return made[0], made[1], made[2]


def _kernel(gpu: vgpu.VirtualGPU, *args: Any, **kwargs: Any) -> str:
    begin = len(gpu.timeline)
    sdpa(*args, **kwargs)
    names = [kernel.name for kernel in gpu.timeline[begin:]]
    return next(name for name in names if name in (FLASH, EFFICIENT, CUDNN, MATH))


# ---- which kernel -----------------------------------------------------------------------------------------------


def test_flash_needs_compute_capability_8(shapes: vgpu.VirtualGPU) -> None:
    assert _kernel(shapes, *_qkv()) == FLASH
    assert _kernel(shapes, *_qkv(torch.bfloat16)) == FLASH


def test_a_t4_takes_the_memory_efficient_kernel(turing: vgpu.VirtualGPU) -> None:
    assert _kernel(turing, *_qkv()) == EFFICIENT
    assert _kernel(turing, *_qkv(torch.float32)) == EFFICIENT
    # Turing's memory-efficient kernel has no BF16.
    assert _kernel(turing, *_qkv(torch.bfloat16)) == MATH


def test_hopper_prefers_cudnn(hopper: vgpu.VirtualGPU) -> None:  # check_prefer_cudnn_attention
    assert _kernel(hopper, *_qkv()) == CUDNN
    assert _kernel(hopper, *_qkv(torch.float32)) == EFFICIENT
    assert _kernel(hopper, *_qkv(), dropout_p=0.125) == CUDNN
    # cuDNN's dropout comes in sixteenths (check_cudnn_dropout).
    assert _kernel(hopper, *_qkv(), dropout_p=0.1) == FLASH
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        assert _kernel(hopper, *_qkv()) == FLASH


def test_fp32_never_runs_on_flash(shapes: vgpu.VirtualGPU) -> None:
    assert _kernel(shapes, *_qkv(torch.float32)) == EFFICIENT
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        sdpa(*_qkv(torch.float32))


@pytest.mark.parametrize(("width", "dtype", "kernel"), [
    (256, torch.float16, FLASH), (264, torch.float16, EFFICIENT), (60, torch.float16, FLASH),
    (62, torch.float32, MATH), (64, torch.float64, MATH),
])  # fmt: skip
def test_the_head_decides(shapes: vgpu.VirtualGPU, width: int, dtype: torch.dtype, kernel: str) -> None:
    assert _kernel(shapes, *_qkv(dtype, width=width)) == kernel


@pytest.mark.skipif(workspaces.torch_version() < (2, 15), reason="PyTorch 2.15 took this up")
def test_hoppers_cudnn_has_heads_of_256(hopper: vgpu.VirtualGPU) -> None:  # check_cudnn_d256_bprop_head_dim
    q, k, v = _qkv(width=256)
    assert _kernel(hopper, q, k, v) == CUDNN
    q, k, v = (tensor.requires_grad_() for tensor in _qkv(width=160))
    assert _kernel(hopper, q, k, v) == FLASH
    with torch.no_grad():
        assert _kernel(hopper, q, k, v) == CUDNN


@pytest.mark.skipif(workspaces.torch_version() < (2, 15), reason="PyTorch 2.15 took this up")
def test_offsets_must_be_aligned_for_the_efficient_kernel(shapes: vgpu.VirtualGPU) -> None:
    flat = torch.zeros(2 * 4 * 64 * 64 + 1, device="cuda")
    q = flat[1:].view(2, 4, 64, 64)
    assert _kernel(shapes, q, q, q) == MATH
    assert _kernel(shapes, *[flat[:-1].view(2, 4, 64, 64)] * 3) == EFFICIENT


def test_a_mask_excludes_flash(shapes: vgpu.VirtualGPU) -> None:
    mask = torch.ones(64, 64, device="cuda", dtype=torch.bool)
    assert _kernel(shapes, *_qkv(), attn_mask=mask) == EFFICIENT
    assert _kernel(shapes, *_qkv(), attn_mask=mask.half()) == EFFICIENT


def test_other_lengths_exclude_causal_flash(shapes: vgpu.VirtualGPU) -> None:
    q, _, _ = _qkv(length=32)
    _, k, v = _qkv(length=64)
    assert _kernel(shapes, q, k, v, is_causal=True) == EFFICIENT
    assert _kernel(shapes, q, k, v) == FLASH


def test_three_dimensions_run_fused_since_pytorch_2_15(shapes: vgpu.VirtualGPU) -> None:
    """From then on it adds a batch of one before it chooses a kernel."""
    q, k, v = _qkv()
    assert _kernel(shapes, q[0], k[0], v[0]) == (MATH if workspaces.torch_version() < (2, 15) else FLASH)


def test_two_dimensions_run_by_math(shapes: vgpu.VirtualGPU) -> None:
    q, k, v = _qkv()
    assert _kernel(shapes, q[0, 0], k[0, 0], v[0, 0]) == MATH


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION,
                                     SDPBackend.CUDNN_ATTENTION])  # fmt: skip
def test_one_backend_can_be_asked_for(shapes: vgpu.VirtualGPU, backend: SDPBackend) -> None:
    names = {"MATH": MATH, "EFFICIENT_ATTENTION": EFFICIENT, "FLASH_ATTENTION": FLASH, "CUDNN_ATTENTION": CUDNN}
    with sdpa_kernel(backend):
        assert _kernel(shapes, *_qkv()) == names[backend.name]


def test_a_list_can_set_the_priority(shapes: vgpu.VirtualGPU) -> None:
    backends = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(backends):
        assert _kernel(shapes, *_qkv()) == FLASH
    with sdpa_kernel(backends, set_priority=True):
        assert _kernel(shapes, *_qkv()) == EFFICIENT


def test_the_switches_of_torch_backends_cuda_count(shapes: vgpu.VirtualGPU) -> None:
    cuda = torch.backends.cuda
    try:
        cuda.enable_flash_sdp(False)
        assert _kernel(shapes, *_qkv()) == EFFICIENT
        cuda.enable_mem_efficient_sdp(False)
        assert _kernel(shapes, *_qkv()) == MATH  # cuDNN comes after math in the default order
        cuda.enable_math_sdp(False)
        assert _kernel(shapes, *_qkv()) == CUDNN
    finally:
        cuda.enable_flash_sdp(True)
        cuda.enable_mem_efficient_sdp(True)
        cuda.enable_math_sdp(True)


def test_no_kernel_is_an_error_with_the_reasons(turing: vgpu.VirtualGPU) -> None:
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=r"^No available kernel. Aborting execution.$"):
            sdpa(*_qkv())
    assert [str(warning.message) for warning in caught] == [
        "Memory efficient kernel not used because:",
        "Memory Efficient attention has been runtime disabled.",
        "Flash attention kernel not used because:",
        "Flash attention only supports gpu architectures in the range [sm80, sm121]. "
        "Attempting to run on a sm 7.5 gpu.",
        "cuDNN attention kernel not used because:",
        "cuDNN attention has been runtime disabled.",
    ]


def test_programs_can_ask_which_kernel_could_run(turing: vgpu.VirtualGPU) -> None:
    q, k, v = _qkv()
    cuda = torch.backends.cuda
    params = SDPAParams(q, k, v, None, 0.0, True, False)
    assert not cuda.can_use_flash_attention(params)
    assert not cuda.can_use_cudnn_attention(params)
    assert cuda.can_use_efficient_attention(params)
    with pytest.warns(UserWarning, match=r"sm 7\.5"):
        cuda.can_use_flash_attention(params, True)
    host = SDPAParams(q.cpu(), k.cpu(), v.cpu(), None, 0.0, True, False)
    with pytest.warns(UserWarning, match="All tensors need to be on cuda device. Got query on device: cpu"):
        assert not cuda.can_use_efficient_attention(host, True)


def test_inputs_are_checked(shapes: vgpu.VirtualGPU) -> None:  # validate_sdpa_input
    q, k, v = _qkv()
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        sdpa(q, k.float(), v)
    with pytest.raises(RuntimeError, match="Expected attn_mask dtype to be bool"):
        sdpa(q, k, v, attn_mask=torch.zeros(64, 64, device="cuda", dtype=torch.float64))
    single = torch.zeros(64, 64, device="cuda")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError, match="invalid dtype for bias"):
        sdpa(q, k, v, attn_mask=single)
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa(q, k, v, attn_mask=single).dtype == q.dtype
    both = {"attn_mask": torch.ones(64, 64, device="cuda", dtype=torch.bool), "is_causal": True}
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
        sdpa(q, k, v, **both)


# ---- values -----------------------------------------------------------------------------------------------------


def _reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False
) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v


def _gradients(output: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(output.square().sum(), inputs)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_every_backend_computes_attention(gpu: vgpu.VirtualGPU, backend: SDPBackend, causal: bool) -> None:
    inputs = [tensor.requires_grad_() for tensor in _qkv(torch.float32, length=20, width=16)]
    expected = _reference(*inputs, causal=causal)
    with sdpa_kernel(backend):
        output = sdpa(*inputs, is_causal=causal)
    assert torch.allclose(output, expected, atol=1e-5)
    for ours, theirs in zip(_gradients(output, *inputs), _gradients(expected, *inputs), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION])
def test_low_precision_backends_are_close_to_fp32(backend: SDPBackend) -> None:
    with vgpu.attach("A100-80GB"):
        inputs = [tensor.requires_grad_() for tensor in _qkv(torch.bfloat16, length=20, width=16)]
        expected = _reference(*[tensor.float() for tensor in inputs], causal=True)
        with sdpa_kernel(backend):
            output = sdpa(*inputs, is_causal=True)
        assert output.dtype == torch.bfloat16
        assert torch.allclose(output.float(), expected, atol=2e-2)
        gradient = _gradients(output.float(), *inputs)[0]
        assert torch.allclose(gradient.float(), _gradients(expected, *inputs)[0].float(), atol=0.1)


def test_a_mask_that_learns_gets_its_gradient(gpu: vgpu.VirtualGPU) -> None:
    inputs = [tensor.requires_grad_() for tensor in _qkv(torch.float32, length=12, width=16)]
    mask = torch.randn(12, 12, device="cuda", requires_grad=True)
    output, expected = sdpa(*inputs, attn_mask=mask), _reference(*inputs, mask=mask)
    assert torch.allclose(output, expected, atol=1e-5)
    for ours, theirs in zip(_gradients(output, *inputs, mask), _gradients(expected, *inputs, mask), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_values_may_be_wider_than_keys(gpu: vgpu.VirtualGPU) -> None:
    q, k, _ = _qkv(torch.float32, length=10, width=16)
    v = torch.randn(2, 4, 10, 32, device="cuda", requires_grad=True)
    output = sdpa(q, k, v)
    assert torch.allclose(output, _reference(q, k, v), atol=1e-5)
    assert torch.allclose(_gradients(output, v)[0], _gradients(_reference(q, k, v), v)[0], atol=1e-4)


def test_a_causal_mask_of_other_lengths_starts_at_the_upper_left(gpu: vgpu.VirtualGPU) -> None:
    q, _, _ = _qkv(torch.float32, length=6, width=16)
    _, k, v = _qkv(torch.float32, length=9, width=16)
    assert torch.allclose(sdpa(q, k, v, is_causal=True), _reference(q, k, v, causal=True), atol=1e-5)


def test_grouped_heads_share_keys_and_values() -> None:
    with vgpu.attach("A100-80GB") as gpu:
        q, _, _ = _qkv(torch.float16, heads=8, length=16, width=16)
        _, k, v = _qkv(torch.float16, heads=2, length=16, width=16)
        for tensor in (q, k, v):
            tensor.requires_grad_()
        assert _kernel(gpu, q, k, v, enable_gqa=True) == FLASH
        output = sdpa(q, k, v, enable_gqa=True)
        wide = [tensor.float().repeat_interleave(4, 1) for tensor in (k, v)]
        expected = _reference(q.float(), *wide)
        assert torch.allclose(output.float(), expected, atol=1e-2)
        ours, theirs = _gradients(output.float(), k)[0], _gradients(expected, k)[0]
        assert ours.shape == k.shape
        assert torch.allclose(ours.float(), theirs.float(), atol=0.1)


def test_dropout_drops_and_scales_in_the_fused_kernels(gpu: vgpu.VirtualGPU) -> None:
    q, k, _ = _qkv(torch.float32, batch=1, heads=1, length=64, width=64)
    v = torch.eye(64, device="cuda")[None, None]
    torch.cuda.manual_seed(1)
    weights = sdpa(q, k, v, dropout_p=0.25)[0, 0]  # values of unit vectors show the weights themselves
    plain = sdpa(q, k, v)[0, 0]
    kept = weights != 0
    assert 0.70 < kept.float().mean().item() < 0.80
    assert torch.allclose(weights[kept], (plain / 0.75)[kept], atol=1e-5)
    torch.cuda.manual_seed(1)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.25)[0, 0], weights)


def test_backward_uses_the_mask_of_forward(gpu: vgpu.VirtualGPU) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in _qkv(torch.float32, length=24, width=16))
    output = sdpa(q, k, v, dropout_p=0.3, is_causal=True)
    # Attention is linear in the values: the product with their gradient gives the sum of the output back.
    gradient = torch.autograd.grad(output.sum(), v, retain_graph=True)[0]
    assert torch.allclose((gradient * v).sum(), output.sum(), atol=1e-3)
    ours = torch.autograd.grad(output.square().sum(), q)[0]
    torch.cuda.manual_seed(3)
    step = 1e-2 * torch.randn_like(q)

    def loss(query: torch.Tensor) -> float:
        torch.cuda.manual_seed(9)
        return float(sdpa(query, k, v, dropout_p=0.3, is_causal=True).square().sum())

    torch.cuda.manual_seed(9)
    slope = torch.autograd.grad(sdpa(q, k, v, dropout_p=0.3, is_causal=True).square().sum(), q)[0]
    assert loss(q.detach() + step) - loss(q.detach() - step) == pytest.approx(float(2 * (slope * step).sum()), rel=0.02)
    assert ours.shape == q.shape


# ---- bytes ------------------------------------------------------------------------------------------------------

B, H, L, D = 2, 8, 2048, 64
OUT = 2 * B * H * L * D
SCORES = B * H * L * L


def _training(gpu: vgpu.VirtualGPU, **options: Any) -> tuple[int, int]:
    """(bytes kept by forward in addition to the inputs, bytes at the peak of forward next to them)."""
    q, k, v = (tensor.requires_grad_() for tensor in _qkv(batch=B, heads=H, length=L, width=D))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = sdpa(q, k, v, **options)
    kept = torch.cuda.memory_allocated() - before
    del output
    return kept, torch.cuda.max_memory_allocated() - before


def test_flash_saves_its_output_and_one_number_per_row(shapes: vgpu.VirtualGPU) -> None:
    # out, logsumexp (FP32), philox seed and offset; query, key and value are there anyway.
    expected = rounded(OUT, 4 * B * H * L, 8, 8)
    assert _training(shapes) == (expected, expected)


def test_dropout_saves_nothing_more_in_flash(shapes: vgpu.VirtualGPU) -> None:
    assert _training(shapes, dropout_p=0.1) == _training(shapes)


def test_the_memory_efficient_kernel_saves_the_same(turing: vgpu.VirtualGPU) -> None:
    expected = rounded(OUT, 4 * B * H * L, 8, 8)
    assert _training(turing, dropout_p=0.1) == (expected, expected)
    with torch.no_grad():  # no logsumexp
        assert _training(turing)[1] == rounded(OUT, 8, 8)


def test_math_makes_the_scores_in_fp32(shapes: vgpu.VirtualGPU) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        kept, peak = _training(shapes)
    inputs = rounded(*[2 * OUT] * 3)  # 16-bit operands are taken to FP32: q and k scaled, and v, are kept
    held = KEPT * 8519680
    assert kept == inputs + rounded(4 * SCORES, OUT) + held
    # In `_safe_softmax`: scores, softmax, the mask of masked rows and the result, next to FP32 q, k, v and q, k scaled.
    assert peak == pytest.approx(inputs + rounded(2 * OUT, 2 * OUT) + 3 * 4 * SCORES + SCORES + held, rel=0.01)


KEPT = workspaces.torch_version() < (2, 15)


def test_dropout_in_math_keeps_the_weights_and_a_mask(shapes: vgpu.VirtualGPU) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        plain, dropped = _training(shapes)[0], _training(shapes, dropout_p=0.1)[0]
    assert dropped - plain == 4 * SCORES + SCORES + (0 if not KEPT else -8519680)


def test_flashs_backward_sums_dq_in_fp32(shapes: vgpu.VirtualGPU) -> None:  # flash_api.cpp, mha_bwd
    q, k, v = (tensor.requires_grad_() for tensor in _qkv(batch=B, heads=H, length=L, width=D))
    output = sdpa(q, k, v)
    gradient = torch.ones_like(output)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output.backward(gradient)
    assert torch.cuda.max_memory_allocated() - before == rounded(OUT, OUT, OUT, 4 * B * H * L * D, 4 * B * H * L)


def test_narrow_heads_are_padded_for_flash(shapes: vgpu.VirtualGPU) -> None:  # pad_last_dim<8>
    q, k, v = _qkv(width=60)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    output = sdpa(q, k, v)
    assert output.shape[-1] == 60
    padded = 2 * 2 * 4 * 64 * 64
    assert torch.cuda.max_memory_allocated() - before == rounded(*[padded] * 4, 4 * 2 * 4 * 64, 8, 8)


def test_a_boolean_mask_becomes_an_additive_one(shapes: vgpu.VirtualGPU) -> None:  # convert_boolean_attn_mask
    q, k, v = (tensor.requires_grad_() for tensor in _qkv())
    mask = torch.ones(64, 64, device="cuda", dtype=torch.bool)
    before = torch.cuda.memory_allocated()
    output = sdpa(q, k, v, attn_mask=mask)
    # The additive mask is saved for backward next to output, logsumexp, seed and offset.
    assert torch.cuda.memory_allocated() - before == rounded(2 * 2 * 4 * 64 * 64, 4 * 2 * 4 * 64, 8, 8, 2 * 64 * 64)
    del output


# ---- time -------------------------------------------------------------------------------------------------------


def _seconds(gpu: vgpu.VirtualGPU, backend: SDPBackend, length: int, **options: Any) -> float:
    q, k, v = _qkv(batch=1, heads=16, length=length, width=64)
    begin = len(gpu.timeline)
    with sdpa_kernel(backend), torch.no_grad():
        sdpa(q, k, v, **options)
    return sum(kernel.seconds for kernel in gpu.timeline[begin:])


def test_flash_beats_math_and_more_so_on_long_sequences(shapes: vgpu.VirtualGPU) -> None:
    # With a causal mask, which flash skips and math adds: 5.9 times at 512, 8.2 at 2,048 (Dao, "FlashAttention-2").
    ratios = [
        _seconds(shapes, SDPBackend.MATH, length, is_causal=True)
        / _seconds(shapes, SDPBackend.FLASH_ATTENTION, length, is_causal=True)
        for length in (512, 4096)
    ]
    assert ratios[1] > ratios[0] > 2


def test_flash_is_faster_than_the_memory_efficient_kernel(shapes: vgpu.VirtualGPU) -> None:
    flash, efficient = (
        _seconds(shapes, backend, 4096) for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    )
    assert flash < efficient


def test_a_causal_mask_halves_the_work_of_flash(shapes: vgpu.VirtualGPU) -> None:
    whole, causal = (_seconds(shapes, SDPBackend.FLASH_ATTENTION, 8192, is_causal=flag) for flag in (False, True))
    # A little more than half: its last blocks leave multiprocessors idle (`attention_cost.efficiency`).
    assert causal == pytest.approx(whole / 2, rel=0.03)
    assert causal > whole / 2


# ---- modules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_layer_in_evaluation_gives_the_values_of_the_cpu(
    gpu: vgpu.VirtualGPU, norm_first: bool, masked: bool
) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first).eval()
    x = torch.randn(3, 6, 32)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = masked
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=padding if masked else None)
        layer.cuda()
        begin = len(gpu.timeline)
        ours = layer(x.cuda(), src_key_padding_mask=padding.cuda() if masked else None)
    names = [kernel.name for kernel in gpu.timeline[begin:]]
    assert "aten::_addmm_activation" in names
    assert masked or EFFICIENT in names
    assert torch.allclose(ours.cpu(), expected, atol=1e-5)


def test_an_encoder_with_padding_computes_with_the_mask(gpu: vgpu.VirtualGPU) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x, padding = torch.randn(3, 6, 32), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        ours = encoder.cuda()(x.cuda(), src_key_padding_mask=padding.cuda()).cpu()
    assert torch.allclose(ours[~padding], expected[~padding], atol=1e-5)


def test_multi_head_attention_takes_its_fast_path_in_inference(gpu: vgpu.VirtualGPU) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    with torch.inference_mode():
        expected, weights = module(x, x, x)
        module.cuda()
        moved = x.cuda()
        ours, ours_weights = module(moved, moved, moved)
        begin = len(gpu.timeline)
        without, none = module(moved, moved, moved, need_weights=False)
    assert torch.allclose(ours.cpu(), expected, atol=1e-5)
    assert torch.allclose(ours_weights.cpu(), weights, atol=1e-6)
    assert none is None
    assert torch.allclose(without.cpu(), expected, atol=1e-5)
    assert [kernel.name for kernel in gpu.timeline[begin:]].count(EFFICIENT) == 1
