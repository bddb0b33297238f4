"""Behaviour of PyTorch on CUDA that public reports describe, and its kind: each test names its report."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch

import vgpu
from vgpu.device.errors import Unsupported
from vgpu.runtime.versions import torch_version

ONE, FIRST = torch.tensor(1.0), torch.tensor(0)


def on_gpu(*size: int) -> torch.Tensor:
    return torch.ones(*size, device="cuda")


@pytest.mark.parametrize(
    ("call", "wrapper"),
    [
        (lambda: on_gpu(3).clamp(max=ONE), "max is on cpu, .*_clamp_Tensor"),
        (lambda: on_gpu(3).clamp_(min=ONE), "min is on cpu, .*_clamp__Tensor"),
        (lambda: torch.logaddexp(on_gpu(3), ONE), "other is on cpu, .*_logaddexp"),
        (lambda: torch.logaddexp(on_gpu(3), ONE, out=on_gpu(3)), "other is on cpu, .*_logaddexp_out_out"),
        (lambda: torch.normal(on_gpu(3), ONE), "std is on cpu, .*_Tensor_Tensor_normal"),
        (lambda: on_gpu(3).take(FIRST), "index is on cpu, .*_CUDA__take"),
        (lambda: on_gpu(3).gather(0, FIRST), "index is on cpu, .*_gather"),
        (lambda: on_gpu(3, 3).mm(torch.ones(3, 3)), "mat2 is on cpu, .*_CUDA_mm"),
        (lambda: torch.nn.functional.layer_norm(on_gpu(3), (3,), torch.ones(3)), "weight is on cpu, .*__native_layer"),
    ],
)
def test_a_wrapper_wants_one_device_of_cpu_scalars_too(
    gpu: vgpu.VirtualGPU, call: Callable[[], torch.Tensor], wrapper: str
) -> None:
    """https://github.com/Ending2015a/hash-grid-encoding/issues/3; the texts are those of PyTorch's host code."""
    with pytest.raises(RuntimeError, match=f"but got {wrapper}"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: on_gpu(3) * ONE, lambda: torch.where(on_gpu(3) > 0, on_gpu(3), ONE),
        lambda: on_gpu(3).lerp(on_gpu(3), ONE), lambda: on_gpu(3).masked_fill(on_gpu(3) > 0, ONE),
        lambda: torch.maximum(on_gpu(3), ONE),
        lambda: torch.addcmul(on_gpu(3) - 1, on_gpu(3), ONE), lambda: torch.add(ONE, on_gpu(3) - 1, out=on_gpu(3)),
    ],
)  # fmt: skip
def test_elementwise_kernels_take_cpu_scalars(gpu: vgpu.VirtualGPU, call: Callable[[], torch.Tensor]) -> None:
    """https://github.com/pytorch/pytorch/issues/119609"""
    assert call().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_weights_are_one_chunk_until_they_are_replaced(
    gpu: vgpu.VirtualGPU, kind: Callable[..., torch.nn.RNNBase]
) -> None:
    """https://github.com/pytorch/pytorch/issues/2460: cuDNN wants one buffer, and PyTorch warns if there is none."""
    module, data = kind(4, 5, 2, bidirectional=True).cuda(), on_gpu(3, 2, 4)
    assert len({weight.untyped_storage().data_ptr() for weight in module.parameters()}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = module(data)[0]
    clone = copy.deepcopy(module)
    weight = next(clone.parameters())
    weight.data = weight.data.clone()
    with pytest.warns(UserWarning, match="not part of single contiguous chunk of memory"):
        assert torch.equal(clone(data)[0], expected)
    clone.flatten_parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(data)


def test_a_recurrent_layer_without_cudnn_learns_in_eval_mode(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/meta-pytorch/captum/issues/1159"""
    module = torch.nn.LSTM(4, 5)
    data = torch.randn(3, 2, 4)
    module(data)[0].sum().backward()
    expected = [weight.grad for weight in module.parameters()]
    module.zero_grad()
    module = module.eval().cuda()
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        module(data.cuda())[0].sum().backward()
    with torch.backends.cudnn.flags(enabled=False):
        module(data.cuda())[0].sum().backward()
    for weight, gradient in zip(module.parameters(), expected, strict=True):
        assert weight.grad is not None
        assert gradient is not None
        assert weight.grad.is_cuda
        assert torch.allclose(weight.grad.cpu(), gradient, atol=1e-5)


def test_scalars_that_a_dtype_cannot_hold_overflow(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/153187 and 153210; CUDA's kernels take them in a wider dtype."""
    inf, half = float("inf"), on_gpu(2).half()
    half[1] = float("nan")
    for clamped in (half.clamp_min(4e26), half.clamp(min=4e26), half.clone().clamp_(4e26), half.add(half, alpha=4e26)):
        assert clamped.dtype == torch.float16
        assert clamped[0].item() == inf
        assert clamped[1].isnan()
    assert torch._foreach_clamp_min([half], 4e26)[0][0].item() == inf
    with pytest.raises(RuntimeError, match="type c10::Half without overflow"):
        half.fill_(4e26)
    numbers = torch.tensor([25527, -21905], dtype=torch.int16, device="cuda")
    factor, start = torch.tensor(-752003609, dtype=torch.int32), torch.tensor(-4015619983489386247)
    result = torch.addcmul(start.cuda(), numbers, factor.cuda(), value=988328483643648370)
    exact = [-4015619983489386247 - 988328483643648370 * number * 752003609 for number in (25527, -21905)]
    assert result.dtype == torch.int16
    assert result.tolist() == [(value + 2**15) % 2**16 - 2**15 for value in exact]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_coo_tensors_are_not_of_16_bits(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    """https://github.com/cai4cai/torchsparsegradutils/issues/53; a COO tensor without values is no work."""
    dense, eye = on_gpu(3, 3).to(dtype), torch.eye(3, dtype=dtype).to_sparse().cuda()
    for call in (
        lambda: eye @ dense,
        lambda: torch.sparse.mm(eye, dense),
        lambda: torch.sparse.addmm(dense, eye, dense),
    ):
        with pytest.raises(NotImplementedError, match='"addmm_sparse_cuda" not implemented for'):
            call()
    with pytest.raises(NotImplementedError, match='"softmax" not implemented for'):
        torch.sparse.softmax(eye, 1)
    empty = torch.zeros(3, 3, dtype=dtype).to_sparse().cuda()
    assert (empty @ dense).sum().item() == 0
    assert torch.equal(eye.float() @ dense.float(), dense.float())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_cuda_quantises_to_whole_bytes(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/95782"""
    data = torch.tensor([-1.0, 0.0, 1.3, 300.0], device="cuda")
    assert torch.quantize_per_tensor(data, 1.0, 10, torch.quint8).int_repr().tolist() == [9, 10, 11, 255]
    for dtype in (torch.quint4x2, torch.quint2x4):
        with pytest.raises(RuntimeError, match="missing kernel for cuda"):
            torch.quantize_per_tensor(data, 1.0, 0, dtype)


def test_the_allocator_reads_its_options_at_the_first_use(
    gpu: vgpu.VirtualGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/pytorch/pytorch/issues/183387: a program may set the variable before it uses CUDA."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:500")
    on_gpu(1)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["expandable_segments"] is True
    assert settings["max_split_size"] == 500 << 20
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    on_gpu(1)
    assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"] is True


def test_what_cuda_refuses_although_the_cpu_does_not(gpu: vgpu.VirtualGPU) -> None:
    """SummaryOps.cu, `_histc_cuda`; tensor_new.cpp, `new_with_tensor`: a legacy type moves and converts nothing."""
    assert torch.histc(on_gpu(3), bins=2, min=0, max=2).tolist() == [0.0, 3.0]
    with pytest.raises(RuntimeError, match="HalfTensor is not supported"):
        torch.histc(on_gpu(3).half(), bins=3)
    for tensor in (torch.ones(2), on_gpu(2).double()):
        with pytest.raises(TypeError, match="expected dtype=float32, device=cuda"):
            torch.cuda.FloatTensor(tensor)
    data = on_gpu(2)
    assert torch.cuda.FloatTensor(data).data_ptr() == data.data_ptr()
    assert torch.cuda.FloatTensor([1, 2]).is_cuda


def test_no_memory_is_not_pinned(gpu: vgpu.VirtualGPU) -> None:
    """cudaPointerGetAttributes of a null pointer, which an empty tensor has."""
    assert torch.ones(1).pin_memory().is_pinned()
    assert not torch.empty(0).pin_memory().is_pinned()


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_default_tensor_type_names_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    """torch docs: torch.set_default_tensor_type; old programs begin with this line."""
    try:
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = torch.ones(2)
        assert (made.device.type, made.dtype) == ("cuda", torch.float64)
        torch.set_default_tensor_type(torch.cuda.FloatTensor)
        assert (torch.zeros(1).device.type, torch.zeros(1).dtype) == ("cuda", torch.float32)
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(2).device.type == "cpu"


def test_the_cache_of_ffts_plans_has_a_limit(gpu: vgpu.VirtualGPU) -> None:
    """https://docs.pytorch.org/docs/stable/notes/cuda.html#cufft-plan-cache"""
    cache = torch.backends.cuda.cufft_plan_cache
    assert cache.max_size == cache[0].max_size == 4096
    cache.max_size = 10
    assert cache[0].max_size == 10
    with pytest.raises(RuntimeError, match="must be non-negative, but got -1"):
        cache.max_size = -1
    with pytest.raises(RuntimeError, match="expected 0 <= device index < 1"):
        cache[5]


@pytest.mark.parametrize(
    ("call", "expected", "found"),
    [
        (lambda: torch.nn.functional.layer_norm(on_gpu(3).half(), (3,), on_gpu(3)), "Half", "Float"),
        (lambda: torch.nn.functional.layer_norm(on_gpu(3), (3,), None, on_gpu(3).bfloat16()), "Float", "BFloat16"),
        (lambda: torch.nn.functional.group_norm(on_gpu(2, 3, 4).bfloat16(), 1, on_gpu(3)), "BFloat16", "Float"),
        (lambda: torch.nn.functional.cross_entropy(on_gpu(2, 3), on_gpu(2).long(), on_gpu(3).half()), "Float", "Half"),
        (lambda: torch.nn.functional.nll_loss(on_gpu(0, 0), on_gpu(0).long(), on_gpu(0).half()), "Float", "Half"),
        (
            lambda: torch.nn.functional.multi_margin_loss(on_gpu(2, 3).half(), on_gpu(2).long(), weight=on_gpu(3)),
            "Half",
            "Float",
        ),
    ],
)
def test_parameters_have_the_dtype_of_the_data(
    gpu: vgpu.VirtualGPU, call: Callable[[], object], expected: str, found: str
) -> None:
    """https://github.com/pytorch/pytorch/issues/171931; the CPU has kernels for mixed dtypes."""
    with pytest.raises(RuntimeError, match=f"expected scalar type {expected} but found {found}"):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_linear_algebra_is_not_of_16_bits(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    """torch/linalg: cuSOLVER has no kernel; the CPU has none either, and a wider dtype is no way out."""
    matrix = torch.eye(3, device="cuda", dtype=dtype)
    for call, kernel in (
        (torch.linalg.eigh, "linalg_eigh_cuda"), (torch.linalg.eigvalsh, "linalg_eigh_cuda"),
        (torch.linalg.eigvals, "linalg_eig_cuda"), (torch.linalg.det, "lu_factor_cusolver"),
        (torch.linalg.qr, "geqrf_(batched_)?cuda"), (torch.geqrf, "geqrf_cuda"),
        (torch.cholesky_inverse, "cholesky_cuda_potrs"),
        (lambda data: torch.cholesky_solve(data, data), "cholesky_cuda_potrs"),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=f'"{kernel}" not implemented for'):
            call(matrix)
    assert torch.linalg.eigvalsh(matrix.float()).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: torch.addcdiv(on_gpu(3), on_gpu(3), ONE), "found at least two devices, cuda:0 and cpu!"),
        (
            lambda: torch.addcmul(on_gpu(3), ONE, on_gpu(3)),
            "for tensor1 argument is not supported .* swap your tensor1",
        ),
        (lambda: torch.addcmul(ONE, on_gpu(3), on_gpu(3)), "for self argument is not supported"),
        (lambda: torch.addcmul(on_gpu(3), ONE, ONE), "Trying to pass too many CPU scalars"),
        (lambda: on_gpu(3).lerp(ONE, 0.5), "found at least two devices"),
        (lambda: torch._foreach_lerp([on_gpu(3)], [ONE], 0.5), "found at least two devices"),
        (lambda: torch._foreach_maximum([on_gpu(3)], [ONE]), "min is on cpu"),
    ],
)
def test_some_elementwise_kernels_take_no_cpu_scalars(
    gpu: vgpu.VirtualGPU, call: Callable[[], object], words: str
) -> None:
    """PointwiseOps.cpp and Lerp.cu, tried on PyTorch's CUDA host code."""
    with pytest.raises(RuntimeError, match=words):
        call()


def images() -> torch.Tensor:
    return on_gpu(2, 4, 4, 4).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("call", "strides"),
    [
        (lambda: torch.nn.functional.pad(images(), (1, 1, 1, 1), mode="reflect"), (144, 36, 6, 1)),
        (lambda: torch.nn.functional.pixel_unshuffle(images(), 2), (64, 4, 2, 1)),
        (lambda: torch.nn.functional.channel_shuffle(images(), 2), (64, 16, 4, 1)),
        (lambda: torch.nn.functional.pixel_shuffle(images(), 2), (64, 64, 8, 1)),
        (lambda: torch.nn.functional.pixel_unshuffle(images()[:1, :, :2, :2], 2), (16, 1, 1, 1)),
        (lambda: torch.nn.functional.logsigmoid(images()), (64, 1, 16, 4)),
        (
            lambda: torch.nn.functional.batch_norm(on_gpu(4, 3, 2).permute(2, 1, 0), None, None, training=True),
            (1, 2, 6),
        ),
        (lambda: torch.linalg.svd(on_gpu(2, 3, 4), full_matrices=False)[2], (12, 4, 1)),
        (lambda: torch.fft.rfftn(on_gpu(3, 4, 6), dim=(0, 1, 2)), (4, 1, 12)),
        (lambda: torch.fft.irfft(on_gpu(3, 4, 6).permute(2, 1, 0).cfloat(), dim=0), (1, 30, 10)),
        (lambda: torch.fft.fftn(on_gpu(3, 4, 6).cfloat(), dim=(0, 1)), (4, 1, 12)),
    ],
)
def test_results_are_laid_out_as_on_cuda(
    gpu: vgpu.VirtualGPU, call: Callable[[], torch.Tensor], strides: tuple[int, ...]
) -> None:
    """SpectralOps.cpp, ReflectionPad.cu and others: what `view` takes depends on it."""
    assert call().stride() == strides


def test_batch_norm_takes_running_statistics_of_other_dtypes(gpu: vgpu.VirtualGPU) -> None:
    """Normalization.cpp (CUDA): unless cuDNN gets weight, bias and statistics."""
    norm = torch.nn.functional.batch_norm
    data, mean, var = torch.tensor([[1.0], [3.0]], device="cuda"), on_gpu(1).double() - 1, on_gpu(1).double()
    assert norm(data, mean, var, training=True, momentum=0.5).flatten().tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)
    assert (mean.tolist(), mean.dtype) == ([1.0], torch.float64)
    assert norm(data.half(), mean, var).dtype == torch.float16
    with pytest.raises(RuntimeError, match=r"argument #2 'weight' to have the same type .* 'running_mean'"):
        norm(data, mean, var, on_gpu(1), on_gpu(1))
    with pytest.raises(RuntimeError, match="Expected bias to have type Float but got Half"):
        norm(data.bfloat16(), None, None, None, on_gpu(1).half(), training=True)
    statistics = torch.ops.aten._native_batch_norm_legit(data.half(), None, None, True, 0.1, 1e-5)[1]
    assert statistics.dtype == torch.float32


def test_lists_that_are_not_alike_are_computed_one_by_one(gpu: vgpu.VirtualGPU) -> None:
    """ForeachUtils.h, `can_use_fast_route`: so lists of several devices pass, and their sizes are broadcast."""
    mixed = torch._foreach_add([on_gpu(2), torch.ones(2)], [on_gpu(2), torch.ones(2)])
    assert [(tensor.is_cuda, tensor.tolist()) for tensor in mixed] == [(True, [2.0, 2.0]), (False, [2.0, 2.0])]
    assert torch._foreach_mul([on_gpu(2, 3).t()], [on_gpu(2)])[0].shape == (3, 2)
    assert torch._foreach_norm([on_gpu(4)[::2], on_gpu(4).half()], 2, torch.float64)[0].dtype == torch.float64
    with pytest.raises(RuntimeError, match="scalar tensor expected to be 0 dim but it has 1 dimensions"):
        torch._foreach_add([on_gpu(2), on_gpu(2).half()], on_gpu(1))
    with pytest.raises(RuntimeError, match="must have the same number"):
        torch._foreach_add([on_gpu(2), on_gpu(2).half()], [on_gpu(2)])


@pytest.mark.skipif(torch_version() < (2, 15), reason="the fused kernels took four dimensions only")
def test_fused_attention_takes_heads_without_a_batch(gpu: vgpu.VirtualGPU) -> None:
    """attention.cpp: seen in its CUDA host code."""
    heads = torch.rand(3, 4, 8, device="cuda", requires_grad=True)
    result = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    assert result.stride() == (8, 24, 1)
    expected = torch.softmax(heads @ heads.mT / 8**0.5, -1) @ heads
    assert torch.allclose(result, expected, atol=1e-5)


def test_lengths_of_packed_sequences_are_on_the_cpu(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/43227"""
    with pytest.raises(RuntimeError, match="should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"):
        torch.nn.utils.rnn.pack_padded_sequence(on_gpu(3, 2, 4), torch.tensor([3, 2], device="cuda"))


def test_a_tensor_on_the_cpu_gives_its_sizes(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/5049"""
    resized = torch.empty(0, device="cuda").resize_as_(torch.ones(4, 4))
    assert (resized.is_cuda, resized.shape) == (True, (4, 4))
    assert torch.cuda.memory_allocated() >= resized.nbytes


def test_scripted_modules_say_that_they_are_not_saved(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/62961"""
    for scripted in (torch.jit.script(torch.nn.ReLU()), torch.jit.trace(torch.nn.ReLU(), on_gpu(2))):
        with pytest.raises(Unsupported, match="saving TorchScript"):
            scripted.save("/nowhere.pt")


def test_operators_of_quantized_layers_are_refused(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/34583"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = torch.quantize_per_tensor(on_gpu(2, 4), 1.0, 0, torch.quint8)
        layer = torch.ao.nn.quantized.Linear(4, 3)
    with pytest.raises(Unsupported, match="quantized::linear"):
        layer(data)


def test_the_first_bag_begins_with_the_first_index(gpu: vgpu.VirtualGPU) -> None:
    """https://github.com/pytorch/pytorch/issues/66750"""
    weight, indices = torch.eye(4, device="cuda"), torch.tensor([0, 1, 2], device="cuda")
    sums = torch.nn.functional.embedding_bag(indices, weight, torch.tensor([1, 2], device="cuda"), mode="sum")
    assert sums.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("sizes", [(70000, 1, 2, 2), (1, 70000, 2, 2), (70000, 1, 2, 2, 2)])
def test_a_grid_that_is_too_large_is_refused(gpu: vgpu.VirtualGPU, sizes: tuple[int, ...]) -> None:
    """https://github.com/pytorch/pytorch/issues/139333; of PyTorch 2.15's kernels, only these launch such a grid."""
    pool = getattr(torch.nn.functional, f"fractional_max_pool{len(sizes) - 2}d")
    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid configuration argument"):
        pool(on_gpu(*sizes), 1, output_size=1)
    assert torch.nn.functional.interpolate(on_gpu(70000, 1, 2), size=1).shape == (70000, 1, 1)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_equal_refuses_two_devices_as_its_wrapper_does(gpu: vgpu.VirtualGPU, first: str, second: str) -> None:
    """https://github.com/pytorch/pytorch/pull/163529"""
    with pytest.raises(RuntimeError, match=f"other is on {second}.* on {first}.* in method wrapper_CUDA__equal"):
        torch.equal(torch.ones(2, device=first), torch.ones(2, device=second))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: on_gpu(3).set_(torch.ones(3)), 'on device "cuda:0" to a storage on different device "cpu"'),
        (lambda: on_gpu(3).set_(torch.UntypedStorage(8)), 'on device "cuda:0" to a storage on different device "cpu"'),
        (
            lambda: torch.ones(3).set_(source=torch.UntypedStorage(8, device="cuda"), storage_offset=0, size=(2,)),
            'on device "cpu" to a storage on different device "cuda:0"',
        ),
        (lambda: torch.ones(3).set_(on_gpu(3)), 'on device "cpu" to a storage on different device "cuda:0"'),
        (lambda: torch.poisson(on_gpu(3).long()), "\"poisson_cuda\" not implemented for 'Long'"),
        (lambda: torch.special.zeta(on_gpu(3).half(), 2), "\"zeta_cuda\" not implemented for 'Half'"),
        (lambda: torch.xlogy(on_gpu(3) * 1j, 2), "\"xlogy_cuda\" not implemented for 'ComplexFloat'"),
    ],
)
def test_what_its_cuda_code_refuses(gpu: vgpu.VirtualGPU, call: Callable[[], object], text: str) -> None:
    """What PyTorch 2.15's CUDA host code says, run without a card."""
    with pytest.raises(RuntimeError, match=text):
        call()
    assert on_gpu(3).set_(on_gpu(4)).tolist() == [1, 1, 1, 1]
