"""Results on the GPU are those of the CPU in float64, within the precision of their type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

NUMERICS = "PyTorch numerical accuracy notes: float32 results agree with float64 to rounding"
Function = Callable[..., torch.Tensor]


def agree(function: Function, *shapes: tuple[int, ...], tolerance: float = 1e-4) -> None:
    """The function's value and gradients on the GPU against those on the CPU in float64."""
    torch.manual_seed(0)
    wide = [torch.rand(shape, dtype=torch.float64) + 0.1 for shape in shapes]
    exact = [tensor.clone().requires_grad_() for tensor in wide]
    ours = [tensor.float().cuda().requires_grad_() for tensor in wide]
    expected, actual = function(*exact), function(*ours)
    assert actual.is_cuda
    assert torch.allclose(actual.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for reference, tensor in zip(exact, ours, strict=True):
        assert torch.allclose(tensor.grad.cpu().double(), reference.grad, rtol=50 * tolerance, atol=50 * tolerance)


@program(NUMERICS)
def test_elementwise_functions(cuda: Gpu) -> None:
    for function in (
        torch.exp, torch.log, torch.sqrt, torch.sin, torch.tanh, torch.sigmoid, torch.erf, torch.rsqrt, torch.log1p,
        F.gelu, F.silu, F.softplus, F.elu, F.hardswish, F.mish, torch.special.gammaln, torch.square,
        lambda x: x.clamp(0.3, 0.8), lambda x: x**2.5, lambda x: torch.where(x > 0.5, x, x * 2),
    ):  # fmt: skip
        agree(function, (7, 5))
    for function in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.atan2, torch.hypot):
        agree(function, (4, 5), (5,))


@program(NUMERICS)
def test_reductions_and_scans(cuda: Gpu) -> None:
    for function in (
        torch.sum, torch.mean, torch.prod, torch.std, torch.amax, torch.logsumexp, torch.cumsum, torch.cumprod,
        F.softmax, F.log_softmax, F.normalize, torch.median,
    ):  # fmt: skip

        def over_rows(x: torch.Tensor, function: Function = function) -> torch.Tensor:
            result = function(x, dim=1)
            return result if isinstance(result, torch.Tensor) else result.values

        agree(over_rows, (6, 9))


@program(f"{NUMERICS}; TF32 is off for products")
def test_products(cuda: Gpu) -> None:
    agree(torch.mm, (17, 33), (33, 9))
    agree(torch.bmm, (3, 5, 7), (3, 7, 4))
    agree(lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), (4,), (3, 5), (5, 4))
    agree(lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4))
    agree(F.linear, (2, 3, 8), (4, 8), (4,))
    agree(torch.outer, (4,), (5,))


@program(f"{NUMERICS}; torch.backends.cudnn.allow_tf32 = False")
def test_convolutions_and_pooling(cuda: Gpu) -> None:
    torch.backends.cudnn.allow_tf32 = False
    agree(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (2, 3, 9, 9), (4, 3, 3, 3), (4,), tolerance=1e-3)
    agree(lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (1, 4, 9, 9), (4, 2, 3, 3), tolerance=1e-3)
    agree(F.conv1d, (2, 3, 12), (5, 3, 4), tolerance=1e-3)
    agree(F.conv_transpose2d, (1, 3, 5, 5), (3, 2, 3, 3), tolerance=1e-3)
    agree(lambda x: F.max_pool2d(x, 2), (1, 2, 6, 6))
    agree(lambda x: F.avg_pool2d(x, 3, 1), (1, 2, 6, 6))
    agree(lambda x: F.adaptive_avg_pool2d(x, 2), (1, 2, 7, 7))
    agree(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 4, 4))


@program(NUMERICS)
def test_normalisations_and_losses(cuda: Gpu) -> None:
    agree(lambda x, w, b: F.layer_norm(x, (6,), w, b), (5, 6), (6,), (6,))
    agree(lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4, 5), (4,), (4,))
    agree(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (8, 3, 4), (3,), (3,))
    agree(lambda x, w: F.rms_norm(x, (6,), w), (5, 6), (6,))
    labels = torch.tensor([0, 2, 1])
    agree(lambda x: F.cross_entropy(x, labels.to(x.device), label_smoothing=0.1), (3, 4))
    agree(lambda x: F.cross_entropy(x, labels.to(x.device), ignore_index=2), (3, 4))
    agree(F.mse_loss, (4, 3), (4, 3))
    agree(lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0.5).to(x.dtype)), (4, 3))
    agree(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), (4, 3), (4, 3))
    agree(lambda x, y: F.smooth_l1_loss(x, y) + F.huber_loss(x, y), (4, 3), (4, 3))


@program(NUMERICS)
def test_gathering_and_scattering(cuda: Gpu) -> None:
    rows = torch.tensor([2, 0, 2])
    agree(lambda x: x[rows.to(x.device)], (4, 3))
    agree(lambda x: x.gather(1, rows.to(x.device)[None].expand(4, 3)), (4, 3))
    agree(lambda x: x.index_select(0, rows.to(x.device)), (4, 3))
    agree(lambda w: F.embedding(rows.to(w.device), w), (4, 3))
    agree(lambda x, y: x.index_add(0, rows.to(x.device), y), (4, 3), (3, 3))
    agree(lambda x, y: x.scatter_add(0, rows.to(x.device)[:, None].expand(3, 3), y), (4, 3), (3, 3))
    agree(lambda x: x.masked_fill(x > 0.5, 0.0), (4, 3))
    agree(lambda x, y: torch.cat([x, y], 1).roll(1, 0).flip(1), (4, 3), (4, 2))
    agree(lambda x: F.pad(x, (1, 2), mode="reflect").unfold(1, 3, 2), (4, 6))


@program("torch docs: sorting and integer functions are exact")
def test_sorting_and_counting_are_exact(cuda: Gpu) -> None:
    x = torch.tensor([3.0, -1.0, 2.0, 2.5, -7.0], device="cuda")
    values, indices = x.sort(descending=True)
    assert values.tolist() == [3.0, 2.5, 2.0, -1.0, -7.0]
    assert indices.tolist() == [0, 3, 2, 1, 4]
    assert x.topk(2).indices.tolist() == [0, 3]
    assert x.argmax().item() == 0
    assert x.kthvalue(2).values.item() == -1
    whole = torch.tensor([4, 1, 4, 0], device="cuda")
    assert torch.unique(whole, return_counts=True)[1].tolist() == [1, 1, 2]
    assert torch.bincount(whole).tolist() == [1, 1, 0, 0, 2]
    assert torch.searchsorted(torch.tensor([1, 3, 5], device="cuda"), torch.tensor([2, 5], device="cuda")).tolist() == [
        1, 2,
    ]  # fmt: skip
    assert (whole // 3).tolist() == [1, 0, 1, 0]
    assert (whole << 2 & 0xF).tolist() == [0, 4, 0, 0]
    assert (-whole % 3).tolist() == [2, 2, 2, 0]
    assert torch.tensor(7, device="cuda").div(-2, rounding_mode="floor").item() == -4
    assert torch.isin(whole, torch.tensor([4], device="cuda")).tolist() == [True, False, True, False]
    assert F.one_hot(whole, 5).sum().item() == 4


@program("torch docs: torch.linalg, torch.fft")
def test_linear_algebra_and_transforms(cuda: Gpu) -> None:
    torch.manual_seed(0)
    a = torch.randn(6, 6, dtype=torch.float64, device="cuda")
    spd = a @ a.t() + 6 * torch.eye(6, device="cuda", dtype=torch.float64)
    b = torch.randn(6, 2, dtype=torch.float64, device="cuda")
    assert torch.allclose(spd @ torch.linalg.solve(spd, b), b)
    lower = torch.linalg.cholesky(spd)
    assert torch.allclose(lower @ lower.t(), spd)
    q, r = torch.linalg.qr(a)
    assert torch.allclose(q @ r, a)
    u, s, v = torch.linalg.svd(a)
    assert torch.allclose(u @ torch.diag(s) @ v, a)
    assert torch.allclose(torch.linalg.inv(spd) @ spd, torch.eye(6, device="cuda", dtype=torch.float64), atol=1e-10)
    assert torch.allclose(torch.linalg.eigvalsh(spd), torch.linalg.eigvalsh(spd.cpu()).cuda())
    assert torch.allclose(torch.fft.irfft(torch.fft.rfft(b, dim=0), n=6, dim=0), b)
    assert torch.linalg.matrix_rank(torch.ones(3, 3, device="cuda")).item() == 1
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(-spd)


@program("torch docs: nn.LSTM, nn.GRU, nn.Embedding")
def test_recurrent_layers(cuda: Gpu) -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        torch.manual_seed(0)
        layer = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True)
        x = torch.randn(3, 4, 5)
        expected, _ = layer(x)
        layer.cuda()
        actual, _ = layer(x.cuda())
        assert torch.allclose(actual.cpu(), expected, atol=2e-3)  # TF32 is allowed in cuDNN
        actual.sum().backward()
        assert layer.weight_ih_l0.grad.is_cuda
        packed = nn.utils.rnn.pack_padded_sequence(x.cuda(), torch.tensor([4, 2, 1]), batch_first=True)
        result, _ = layer(packed)
        assert nn.utils.rnn.pad_packed_sequence(result, batch_first=True)[0].shape == (3, 4, 14)


@program("torch docs: torch.func")
def test_function_transforms(cuda: Gpu) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    gradient = torch.func.grad(lambda value: (value**3).sum())(x)
    assert gradient.is_cuda
    assert gradient.tolist() == [3, 12, 27]
    assert torch.func.vmap(lambda value: value * 2 + 1)(x).tolist() == [3, 5, 7]
    assert torch.func.jacrev(lambda value: value**2)(x).diagonal().tolist() == [2, 4, 6]
    per_sample = torch.func.vmap(torch.func.grad(lambda value: value.sin()))(x)
    assert torch.allclose(per_sample, x.cos())
    model = nn.Linear(3, 1).cuda()
    weights = {"weight": torch.ones(1, 3, device="cuda"), "bias": torch.zeros(1, device="cuda")}
    assert torch.func.functional_call(model, weights, (x,)).item() == 6
    value, tangent = torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))
    assert torch.allclose(value, tangent)


@program("torch docs: torch.autograd.grad, create_graph, torch.autograd.gradcheck")
def test_higher_derivatives(cuda: Gpu) -> None:
    x = torch.tensor([2.0, -1.0], device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [12, -6]
    assert second.is_cuda
    inputs = torch.randn(3, 4, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: F.gelu(value).softmax(-1), (inputs,))
    hessian = torch.autograd.functional.hessian(lambda value: (value**3).sum(), x.detach())
    assert hessian.diagonal().tolist() == [12, -6]
