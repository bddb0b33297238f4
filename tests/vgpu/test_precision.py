"""Low precision: computed in FP32 and rounded, TF32, autocast in every nesting, and nothing that takes forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's habit
from torch import nn

import vgpu
from vgpu.torch_integration.patches.clocks import _real

LOW = [torch.float16, torch.bfloat16]
_T = torch.Tensor


@pytest.fixture
def ampere() -> Iterator[vgpu.VirtualGPU]:
    """An A100 with real values: it has TF32, which a T4 has not."""
    with vgpu.attach("A100-40GB") as attached:
        yield attached


# ---- rounded FP32 --------------------------------------------------------------------------------------------------

_EXACT: dict[str, Callable[[_T, _T], _T]] = {
    "matmul": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b.T),
    "bmm": lambda a, b: a.expand(3, -1, -1) @ b,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "mv": lambda a, b: a @ b[:, 0],
    "dot": lambda a, b: torch.dot(a[0], b[:, 0]),
    "addmm": lambda a, b: torch.addmm(b[:1], a, b),
    "baddbmm": lambda a, b: torch.baddbmm(b[:1].expand(2, 1, -1), a.expand(2, -1, -1), b.expand(2, -1, -1)),
    "conv1d": lambda a, b: F.conv1d(a[None], b.T[:5, :33, None].expand(5, 33, 3)),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", _EXACT)
def test_products_are_rounded_fp32_products(gpu: vgpu.VirtualGPU, name: str, dtype: torch.dtype) -> None:
    """Tensor cores accumulate in FP32 (NVIDIA V100 and A100 whitepapers)."""
    a, b = torch.randn(33, 65).to(dtype), torch.randn(65, 40).to(dtype)
    got = _EXACT[name](a.cuda(), b.cuda()).cpu()
    assert got.dtype == dtype
    torch.testing.assert_close(
        got, _EXACT[name](a.float(), b.float()).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-3
    )


@pytest.mark.parametrize("dtype", LOW)
def test_an_outer_product_rounds_every_step(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    """No product of a library: an elementwise kernel in `scalar_t` (aten/src/ATen/native/cuda/LinearAlgebra.cu)."""
    x, a, b = torch.randn(33, 40).to(dtype), torch.randn(33).to(dtype), torch.randn(40).to(dtype)
    got = torch.addr(x.cuda(), a.cuda(), b.cuda()).cpu()
    torch.testing.assert_close(got, x + a[:, None] * b, rtol=0, atol=0)


@pytest.mark.parametrize(("shape", "rest"), [((4, 8, 16), (3,)), ((2, 3, 8, 8), (3, 3)), ((2, 2, 4, 6, 6), (2, 3, 3))])
def test_gradients_of_convolutions_are_rounded_fp32_gradients(
    gpu: vgpu.VirtualGPU, shape: tuple[int, ...], rest: tuple[int, ...]
) -> None:
    convolve: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(rest)]
    x, w = torch.randn(shape).half(), torch.randn(5, shape[1], *rest).half()

    def gradients(x: _T, w: _T) -> list[_T]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        out = convolve(x, w)
        return list(torch.autograd.grad(out, (x, w), torch.ones_like(out)))

    for got, expected in zip(gradients(x.cuda(), w.cuda()), gradients(x.float(), w.float()), strict=True):
        torch.testing.assert_close(got.cpu(), expected.half(), rtol=1e-3, atol=1e-3)


_OVERFLOWING: dict[str, Callable[[_T], _T]] = {  # intermediate sums beyond FP16's 65504; the results are within it
    "mean": lambda x: x.mean(),
    "mean_rows": lambda x: x.mean(-1),
    "norm": lambda x: x[0, :4096].norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x[:, :4096], dim=-1),
    "foreach_norm": lambda x: torch._foreach_norm([x[0, :4096]])[0],
    "variance": lambda x: (x * torch.linspace(0, 0.5, x.shape[1], device=x.device).to(x.dtype)).var(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x * torch.linspace(0, 1, x.shape[1], device=x.device).to(x.dtype), (8192,)),
    "mse_loss": lambda x: F.mse_loss(x, x * 0.5),
    "l1_loss": lambda x: F.l1_loss(x, x * 0),
    "nll_loss": lambda x: F.nll_loss(x.T, torch.zeros(8192, dtype=torch.long, device=x.device)),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 4096),
    "cosine": lambda x: F.cosine_similarity(x[:, :512], x[:, 512:1024] * 0.5),
    "einsum_norm": lambda x: torch.einsum("ij,ij->i", x / 100, x / 100),
}  # fmt: skip


@pytest.mark.parametrize("name", _OVERFLOWING)
def test_reductions_accumulate_in_fp32(gpu: vgpu.VirtualGPU, name: str) -> None:
    """CUDA accumulates FP16 in FP32 (ATen/AccumulateType.h, `acc_type` and `opmath_type`)."""
    x = torch.full((4, 8192), 200.0).half()
    got, expected = _OVERFLOWING[name](x.cuda()).cpu(), _OVERFLOWING[name](x.double())
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), expected, rtol=5e-3, atol=2e-3)


def test_gradients_of_an_embedding_accumulate_in_fp32(gpu: vgpu.VirtualGPU) -> None:
    """EmbeddingBackwardKernel.cu: acc_type. In FP16, 0.3 + 0.3 + ... stops growing at 512."""
    table = torch.ones(2, 4, dtype=torch.float16, device="cuda", requires_grad=True)
    (F.embedding(torch.zeros(4096, dtype=torch.long, device="cuda"), table) * 0.3).sum().backward()
    assert table.grad is not None
    assert table.grad[0].tolist() == pytest.approx([4096 * 0.3] * 4, rel=1e-3)


def test_a_sum_that_does_not_fit_overflows_as_on_cuda(gpu: vgpu.VirtualGPU) -> None:
    x = torch.full((1000,), 100.0, dtype=torch.float16, device="cuda")
    assert x.sum().item() == float("inf")
    assert x.sum(dtype=torch.float32).item() == 100_000


_CPU_LACKS: dict[str, Callable[[_T], _T]] = {
    "avg_pool3d": lambda x: F.avg_pool3d(x.view(1, 2, 4, 4, 4), 2),
    "antialiased": lambda x: F.interpolate(x.view(1, 2, 8, 8), 5, mode="bilinear", antialias=True),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x.view(8, 16), torch.arange(8, device=x.device)),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x.view(8, 16), torch.arange(16, device=x.device).expand(8, 16)
    ),
    "local_response_norm": lambda x: F.local_response_norm(x.view(1, 8, 4, 4), 3),
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 1),
    "rfft": lambda x: torch.fft.rfft(x).abs().float(),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "fft2": lambda x: torch.fft.fft2(x.view(8, 16)).abs().float(),
}


@pytest.mark.parametrize("name", _CPU_LACKS)
def test_fp16_operations_that_a_cpu_lacks_work(gpu: vgpu.VirtualGPU, name: str) -> None:
    """On CUDA's list and not on the CPU's (torch/testing/_internal/common_methods_invocations.py)."""
    x = torch.randn(128).half()
    torch.testing.assert_close(
        _CPU_LACKS[name](x.cuda()).cpu().float(), _CPU_LACKS[name](x.float()), rtol=4e-3, atol=4e-3
    )


def test_half_precision_transforms_want_powers_of_two(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(96, dtype=torch.float16, device="cuda")
    assert torch.fft.fft(x, n=64).dtype == torch.complex32
    with pytest.raises(RuntimeError, match=r"cuFFT only supports dimensions whose sizes are powers of two.*\[96\]"):
        torch.fft.rfft(x)
    with pytest.raises(RuntimeError, match=r"cuFFT only supports dimensions whose sizes are powers of two.*\[20\]"):
        torch.stft(x, 20, return_complex=True)
    with pytest.raises(RuntimeError, match=r"stft input and window must be on the same device .* self on cuda:0 and"):
        torch.stft(x, 16, window=torch.ones(16), return_complex=True)


def test_what_neither_has_in_fp16_raises(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(4, 4, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        torch.cdist(x, x)
    with pytest.raises(RuntimeError, match="Low precision dtypes not supported"):
        torch.linalg.inv(x)


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def _run_recurrent(kind: Any, device: str, dtype: torch.dtype, *, packed: bool = False, **options: Any) -> list[_T]:
    torch.manual_seed(1)
    layer = kind(8, 16, num_layers=2, **options).to(dtype).to(device)
    x = torch.randn(3, 5, 8).to(device, dtype).requires_grad_()
    inputs: Any = x
    if packed:
        lengths = torch.tensor([5, 4, 2])
        inputs = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=options.get("batch_first", False))
    output, state = layer(inputs)
    if packed:
        output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=options.get("batch_first", False))
    output.square().sum().backward()
    states = state if isinstance(state, tuple) else (state,)
    grads = [parameter.grad for parameter in layer.parameters()]
    return [tensor.detach().float().cpu() for tensor in (output, *states, x.grad, *grads)]


_OPTIONS: list[dict[str, Any]] = [
    {}, {"batch_first": True}, {"bidirectional": True}, {"bias": False}, {"batch_first": True, "packed": True}
]  # fmt: skip


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", _OPTIONS)
def test_recurrent_layers_give_the_values_of_the_cpu(gpu: vgpu.VirtualGPU, kind: Any, options: dict[str, Any]) -> None:
    expected = _run_recurrent(kind, "cpu", torch.float32, **options)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-2)):
        for got, reference in zip(_run_recurrent(kind, "cuda", dtype, **options), expected, strict=True):
            torch.testing.assert_close(got, reference, rtol=tolerance, atol=tolerance)


def test_a_recurrent_layer_is_one_cudnn_call(gpu: vgpu.VirtualGPU) -> None:
    layer, x = nn.LSTM(16, 32, num_layers=2).cuda(), torch.randn(7, 2, 16, device="cuda")
    before = len(gpu.timeline)
    layer(x)[0].sum().backward()
    names = [kernel.name for kernel in gpu.timeline[before:]]
    assert (names.count("aten::_cudnn_rnn"), names.count("aten::_cudnn_rnn_backward")) == (1, 1)
    forward = next(kernel for kernel in gpu.timeline if kernel.name == "aten::_cudnn_rnn")
    products = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert forward.flops == 2 * 7 * 2 * products
    # The steps depend on each other: 7 of them in 2 layers.
    assert forward.seconds >= 14 * gpu.spec.minimum_kernel_seconds


def test_dropout_between_layers_draws_from_the_gpus_generator(gpu: vgpu.VirtualGPU) -> None:
    layer, x = nn.GRU(4, 8, num_layers=2, dropout=0.5).cuda(), torch.randn(3, 2, 4, device="cuda")
    host = torch.get_rng_state()

    def run() -> list[_T]:
        torch.cuda.manual_seed(5)
        layer.zero_grad()
        out = layer(x)[0]
        out.sum().backward()
        return [out, layer.weight_ih_l0.grad.clone()]  # type: ignore[union-attr]

    first, second = run(), run()
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))
    assert not torch.equal(layer(x)[0], first[0])
    assert torch.equal(torch.get_rng_state(), host)


def test_backward_of_a_recurrent_layer_wants_training_mode(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.LSTM(4, 4).cuda().eval()
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        layer(torch.randn(2, 2, 4, device="cuda"))[0].sum().backward()


def test_a_recurrent_layer_wants_its_input_on_its_device(gpu: vgpu.VirtualGPU) -> None:
    with pytest.raises(RuntimeError, match="Input and parameter tensors are not at the same device"):
        nn.LSTM(4, 4).cuda()(torch.randn(2, 2, 4), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)))


# ---- TF32 ------------------------------------------------------------------------------------------------------------

_SWITCHES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "allow_tf32": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", False),
    ),
    "set_float32_matmul_precision": (
        lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "fp32_precision": (
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    ),
}  # fmt: skip


def _is_tf32(values: _T) -> bool:
    return bool(((values.contiguous().view(torch.int32) & 0x1FFF) == 0).all())


@pytest.mark.parametrize("name", _SWITCHES)
def test_tf32_rounds_the_operands_and_speeds_up_the_product(ampere: vgpu.VirtualGPU, name: str) -> None:
    """notes/cuda, "TensorFloat-32 (TF32) on Ampere (and later) devices": ten bits of mantissa, FP32 accumulation."""
    on, off = _SWITCHES[name]
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    a_gpu, b_gpu = a.cuda(), b.cuda()

    def product() -> tuple[_T, float]:
        result = a_gpu @ b_gpu
        return result.cpu(), ampere.timeline[-2].seconds

    exact, slow = product()
    on()
    try:
        rounded, fast = product()
        identity_product = torch.eye(512, device="cuda") @ a_gpu
    finally:
        off()
    assert torch.equal(exact, a @ b)
    relative = (rounded.double() - a.double() @ b.double()).abs().max() / (a @ b).abs().max()
    assert 1e-5 < relative < 1e-2  # PyTorch's note measures 0.0022 for 10240
    assert fast < 0.5 * slow
    assert _is_tf32(identity_product.cpu())
    assert (identity_product.cpu() - a).abs().max() <= 2**-11 * a.abs().max()
    assert torch.equal(product()[0], exact)


def test_convolutions_use_tf32_by_default(ampere: vgpu.VirtualGPU) -> None:  # torch.backends.cudnn.allow_tf32 is True
    x, weight = torch.randn(2, 8, 16, 16), torch.randn(8, 8, 3, 3)
    exact = F.conv2d(x, weight)
    got = F.conv2d(x.cuda(), weight.cuda()).cpu()
    assert 1e-6 < (got - exact).abs().max() < 0.05
    torch.backends.cudnn.allow_tf32 = False
    try:
        torch.testing.assert_close(F.conv2d(x.cuda(), weight.cuda()).cpu(), exact, rtol=1e-6, atol=1e-6)
    finally:
        torch.backends.cudnn.allow_tf32 = True


def test_turing_has_no_tf32(gpu: vgpu.VirtualGPU) -> None:
    a = torch.randn(64, 64)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert torch.equal((a.cuda() @ a.cuda()).cpu(), a @ a)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_bf16_on_turing_is_emulated_and_slow(gpu: vgpu.VirtualGPU) -> None:  # torch.cuda.is_bf16_supported
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    seconds = {}
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.ones(1024, 1024, device="cuda", dtype=dtype)
        x @ x
        seconds[dtype] = gpu.timeline[-1].seconds
    assert seconds[torch.bfloat16] > 4 * seconds[torch.float16]


# ---- autocast --------------------------------------------------------------------------------------------------------


def _dtype() -> torch.dtype:
    x = torch.ones(2, 2, device="cuda")
    return (x @ x).dtype


def test_autocast_nests(gpu: vgpu.VirtualGPU) -> None:
    with torch.autocast("cuda", dtype=torch.float16):
        assert _dtype() == torch.float16
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert _dtype() == torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert _dtype() == torch.float32
                with torch.autocast("cuda"):  # without a dtype: the one that is set (torch/amp/autocast_mode.py)
                    assert _dtype() == torch.bfloat16
                assert _dtype() == torch.float32
            assert _dtype() == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert _dtype() == torch.float16
        assert _dtype() == torch.float16
    assert _dtype() == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp:FutureWarning")
def test_both_spellings_and_decorators_autocast(gpu: vgpu.VirtualGPU) -> None:
    spellings = [
        torch.autocast("cuda"), torch.amp.autocast("cuda"), torch.cuda.amp.autocast(),
        torch.autocast(device_type="cuda"),
    ]  # fmt: skip
    for autocast in spellings:
        with autocast:
            assert _dtype() == torch.float16
        assert autocast(_dtype)() == torch.float16
    assert torch.autocast("cuda", dtype=torch.bfloat16)(_dtype)() == torch.bfloat16
    assert _dtype() == torch.float32


def test_autocast_is_a_state_of_the_thread(gpu: vgpu.VirtualGPU) -> None:
    dtypes: list[torch.dtype] = []
    with torch.autocast("cuda"):
        thread = threading.Thread(target=lambda: dtypes.append(_dtype()))
        thread.start()
        thread.join()
    assert dtypes == [torch.float32]


def test_backward_runs_in_the_types_of_forward(gpu: vgpu.VirtualGPU) -> None:
    layer = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = layer(torch.ones(2, 4, device="cuda"))
    before = len(gpu.timeline)
    out.sum().backward()
    assert {kernel.dtype for kernel in gpu.timeline[before:] if kernel.name == "aten::mm"} == {"bfloat16"}
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def _weight_casts(gpu: vgpu.VirtualGPU, run: Callable[[], object]) -> int:
    before = len(gpu.timeline)
    run()
    return sum(kernel.name == "aten::_to_copy" for kernel in gpu.timeline[before:])


def test_a_weight_is_cast_once_per_outermost_block(gpu: vgpu.VirtualGPU) -> None:  # autocast_mode.cpp, cached_cast
    layer = nn.Linear(8, 8, bias=False).cuda()
    x = torch.ones(2, 8, device="cuda", dtype=torch.float16)

    def twice(**options: Any) -> None:
        with torch.autocast("cuda", **options):
            layer(x)
            with torch.autocast("cuda"):
                layer(x)

    assert _weight_casts(gpu, twice) == 1
    assert _weight_casts(gpu, twice) == 1
    assert _weight_casts(gpu, lambda: twice(cache_enabled=False)) >= 1


def test_custom_functions_choose_their_types(gpu: vgpu.VirtualGPU) -> None:  # torch.amp.custom_fwd, custom_bwd
    dtypes: list[torch.dtype] = []

    class Wide(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: _T) -> _T:
            ctx.save_for_backward(x)
            dtypes.append((x @ x).dtype)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, gradient: _T) -> _T:
            (x,) = ctx.saved_tensors
            dtypes.append((x @ gradient).dtype)
            return gradient

    x = torch.ones(2, 2, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        out = Wide.apply(x)
        assert torch.is_autocast_enabled("cuda")
    out.sum().backward()
    assert dtypes == [torch.float32, torch.float32]


def test_a_banned_loss_names_the_way_out(gpu: vgpu.VirtualGPU) -> None:
    x = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="BCEWithLogits are\nsafe to autocast"):
        nn.BCELoss()(x.half(), x)


def test_autocast_acts_on_shapes_too(shapes: vgpu.VirtualGPU) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(torch.empty(2, 8, device="cuda"))
        assert out.dtype == torch.bfloat16
        assert model[1](out).dtype == torch.float32
    assert {kernel.dtype for kernel in shapes.timeline if "mm" in kernel.name} == {"bfloat16"}


# ---- gradient scaling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": False}])
def test_the_scaler_grows_backs_off_and_saves_its_state(gpu: vgpu.VirtualGPU, options: dict[str, bool]) -> None:
    weight = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.Adam([weight], lr=0.1, **options)  # type: ignore[arg-type]
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=2)

    def step(gradient: float) -> float:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    assert [step(1.0), step(1.0), step(1.0)] == [8.0, 16.0, 16.0]
    before = weight.detach().clone()
    assert step(float("inf")) == 8.0
    assert torch.equal(weight.detach(), before)
    assert scaler._scale is not None
    assert scaler._scale.is_cuda
    state = scaler.state_dict()
    fresh = torch.amp.GradScaler("cuda")
    fresh.load_state_dict(state)
    assert fresh.get_scale() == 8.0
    assert state["_growth_tracker"] == 0


def test_unscaled_gradients_can_be_clipped_once(gpu: vgpu.VirtualGPU) -> None:
    weight = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale((weight * 3).sum()).backward()
    scaler.unscale_(optimizer)
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == pytest.approx([0.5] * 4, rel=1e-4)


# ---- speed -----------------------------------------------------------------------------------------------------------

_STEPS: dict[str, Callable[[torch.dtype], Callable[[], _T]]] = {}


def _step(make: Callable[[torch.dtype], Callable[[], _T]]) -> Callable[[torch.dtype], Callable[[], _T]]:
    _STEPS[make.__name__.strip("_")] = make
    return make


def _random(*shape: int, dtype: torch.dtype) -> _T:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_()


@_step
def _matmul(dtype: torch.dtype) -> Callable[[], _T]:
    x = _random(384, 384, dtype=dtype)
    return lambda: x @ x


@_step
def _bmm(dtype: torch.dtype) -> Callable[[], _T]:
    x = _random(8, 128, 128, dtype=dtype)
    return lambda: x @ x


@_step
def _convolution(dtype: torch.dtype) -> Callable[[], _T]:
    x, w = _random(4, 16, 32, 32, dtype=dtype), _random(32, 16, 3, 3, dtype=dtype)
    return lambda: F.conv2d(x, w)


@_step
def _attention(dtype: torch.dtype) -> Callable[[], _T]:
    x = _random(2, 4, 128, 32, dtype=dtype)
    return lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True)


@_step
def _norms(dtype: torch.dtype) -> Callable[[], _T]:
    x = _random(64, 16, 8, 8, dtype=dtype)
    batch = nn.BatchNorm2d(16).cuda().to(dtype)
    return lambda: F.layer_norm(x, (8, 8)).softmax(-1) + batch(x) + F.group_norm(x, 4)


@_step
def _recurrent(dtype: torch.dtype) -> Callable[[], _T]:
    layer, x = nn.LSTM(64, 64).cuda().to(dtype), _random(32, 4, 64, dtype=dtype)
    return lambda: layer(x)[0]


@_step
def _elementwise(dtype: torch.dtype) -> Callable[[], _T]:
    x = _random(256, 1024, dtype=dtype)
    return lambda: F.gelu(x) * x.sigmoid() + x.tanh() / (x.abs() + 1) + F.dropout(x, 0.5)


@pytest.mark.parametrize("name", _STEPS)
def test_low_precision_costs_little_more_real_time_than_fp32(gpu: vgpu.VirtualGPU, name: str) -> None:
    """A native FP16 product on a CPU takes hundreds of times as long. CPU time of one thread: others may be busy."""
    threads = torch.get_num_threads()

    def best(dtype: torch.dtype) -> float:
        run = _STEPS[name](dtype)
        seconds = []
        for _ in range(3):
            begin = _real.thread_time()
            run().float().sum().backward()
            seconds.append(_real.thread_time() - begin)
        return min(seconds)

    torch.set_num_threads(1)
    try:
        reference = max(best(torch.float32), 5e-4)
        assert {dtype: best(dtype) < 30 * reference for dtype in LOW} == dict.fromkeys(LOW, True)
    finally:
        torch.set_num_threads(threads)


def test_the_clock_above_is_real(gpu: vgpu.VirtualGPU) -> None:
    """Or the test before would measure nothing."""
    begin, real = time.perf_counter(), _real.perf_counter()
    time.sleep(1000)
    assert time.perf_counter() - begin > 999
    assert _real.perf_counter() - real < 100
