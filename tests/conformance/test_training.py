"""Ordinary training on the GPU: it learns, agrees with the CPU, and PyTorch's tools around it work."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
import torch.nn.utils.prune
from torch import Tensor, nn

from tests.conformance.machine import Gpu
from tests.conformance.programs import program

TUTORIAL = "PyTorch tutorial: Training with PyTorch"
REPRODUCIBILITY = "PyTorch reproducibility notes"


def data(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=generator)
    return x.to(device), (x[:, 0] * x[:, 1] > 0).long().to(device)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def train(model: nn.Module, device: str, steps: int = 40, *, amp: bool = False) -> list[float]:
    x, y = data(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    losses = []
    for _ in range(steps):
        with torch.autocast("cuda", enabled=amp):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@program(TUTORIAL)
def test_training_on_the_gpu_agrees_with_the_cpu(cuda: Gpu) -> None:
    model = network()
    twin = copy.deepcopy(model).cuda()
    host, gpu = train(model, "cpu"), train(twin, "cuda")
    assert gpu[0] == pytest.approx(host[0], rel=1e-4)
    assert gpu[5] == pytest.approx(host[5], rel=1e-2)
    assert gpu[-1] < 0.2 * gpu[0]


@program("PyTorch AMP documentation: accuracy of mixed precision")
def test_mixed_precision_learns_as_well(cuda: Gpu) -> None:
    full = train(network().cuda(), "cuda")
    mixed = train(network().cuda(), "cuda", amp=True)
    assert mixed[-1] < 0.2 * mixed[0]
    assert mixed[-1] == pytest.approx(full[-1], abs=0.05)


@program(f"{REPRODUCIBILITY}: the same seeds and deterministic algorithms")
def test_two_runs_are_equal_bit_for_bit(cuda: Gpu) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True

    def run() -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.GELU(), nn.Linear(32, 2)).cuda()
        return train(model, "cuda", 10)

    assert run() == run()


_REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "histc": lambda x, image: torch.histc(x, 4),
    "bincount": lambda x, image: torch.bincount(torch.zeros(10, dtype=torch.int64, device="cuda"), weights=x),
    "median": lambda x, image: x.median(dim=0),
    "adaptive_avg_pool2d": lambda x, image: F.adaptive_avg_pool2d(image, 2).sum().backward(),
    "reflection_pad1d": lambda x, image: F.pad(image[0], (1, 1), mode="reflect").sum().backward(),
    "interpolate with antialias": lambda x, image: F.interpolate(
        image, 3, mode="bilinear", antialias=True
    ).sum().backward(),
    "max_pool3d": lambda x, image: F.max_pool3d(image, (1, 2, 2)).sum().backward(),
    "nanmedian": lambda x, image: x.nanmedian(dim=0),
    "index_reduce": lambda x, image: x.index_reduce(0, _zeros(10), x, "amax"),
    "scatter that multiplies": lambda x, image: x.scatter(0, _zeros(10), x, reduce="multiply"),
    "scatter that adds integers": lambda x, image: _zeros(4).scatter(0, _zeros(4), _zeros(4), reduce="add"),
    "grid_sample": lambda x, image: F.grid_sample(
        image, torch.zeros(1, 2, 2, 2, device="cuda"), align_corners=False
    ).sum().backward(),
    "scatter_reduce prod": lambda x, image: x.scatter_reduce(0, _zeros(10), x, reduce="prod"),
    "put_ that adds": lambda x, image: x.put_(_zeros(3), x[:3].clone(), accumulate=True),
    "embedding_bag max": lambda x, image: F.embedding_bag(
        _zeros(4).view(2, 2), image.view(5, 5), mode="max"
    ).sum().backward(),
}  # fmt: skip


def _zeros(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("name", _REFUSED)
@program("torch docs: torch.use_deterministic_algorithms: operations that raise")
def test_operations_without_a_deterministic_algorithm_are_refused(cuda: Gpu, name: str) -> None:
    torch.use_deterministic_algorithms(True)
    x = torch.rand(10, device="cuda")
    image = torch.rand(1, 1, 5, 5, device="cuda", requires_grad=True)
    text = "does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms"
    with pytest.raises(RuntimeError, match=text):
        _REFUSED[name](x, image)


@program("torch docs: torch.use_deterministic_algorithms: warn_only")
def test_determinism_may_warn_only(cuda: Gpu) -> None:
    torch.use_deterministic_algorithms(True)
    x = torch.rand(10, device="cuda")
    assert x.median() > 0  # without indices it is deterministic
    assert torch.bincount(_zeros(4)).tolist() == [4]  # and so are counts without weights
    sums = [torch.zeros(1, device="cuda").scatter_reduce(0, _zeros(10), x, reduce=how) for how in ("sum", "mean")]
    assert sums[0].item() == pytest.approx(x.sum().item())
    # PyTorch's documentation lists these, but its CUDA code does not refuse them.
    assert x.scatter_reduce(0, _zeros(10), x, "amax")[0] == x.max()
    assert torch.histc(_zeros(4), 2, max=1).tolist() == [4, 0]
    image = torch.rand(1, 1, 4, 4, device="cuda", requires_grad=True)
    F.pad(image, (1, 1, 1, 1), mode="reflect").sum().backward()
    F.nll_loss(torch.rand(1, 2, 2, 2, device="cuda"), _zeros(4).view(1, 2, 2), reduction="none")
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        torch.histc(x, 4)


@program("torch docs: torch.inference_mode")
def test_inference_mode(cuda: Gpu) -> None:
    model = network().cuda().eval()
    with torch.inference_mode():
        y = model(data("cuda")[0])
        assert y.is_inference()
        assert not y.requires_grad
        assert y.device == torch.device("cuda", 0)
        z = y.softmax(-1).cpu()
    assert torch.allclose(z.sum(-1), torch.ones(256))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (y * torch.ones(2, device="cuda", requires_grad=True)).sum().backward()


@program("torch docs: nn.Module hooks, Tensor.register_hook, retain_grad")
def test_hooks_see_gpu_tensors(cuda: Gpu) -> None:
    model = network().cuda()
    calls: list[str] = []
    model[0].register_forward_hook(lambda module, args, output: calls.append(f"forward {output.device}"))
    model[0].register_full_backward_hook(lambda module, gin, gout: calls.append(f"backward {gout[0].device}"))
    y = model[0](data("cuda")[0])
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()
    assert calls == ["forward cuda:0", "backward cuda:0"]
    assert y.grad.unique().tolist() == [2]


@program("torch docs: nn.utils.parametrizations, nn.utils.prune, torch.nn.utils.parameters_to_vector")
def test_utilities_keep_the_device(cuda: Gpu) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).cuda()
    assert layer(torch.ones(1, 4, device="cuda")).is_cuda
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).cuda()
    assert torch.linalg.matrix_norm(spectral.weight, 2).item() < 1.5
    pruned = nn.utils.prune.l1_unstructured(nn.Linear(4, 4).cuda(), "weight", 0.5)
    assert (pruned.weight == 0).sum().item() == 8
    vector = nn.utils.parameters_to_vector(network().cuda().parameters())
    assert vector.is_cuda


@program("torch docs: torch.autograd.Function")
def test_custom_functions(cuda: Gpu) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            assert x.is_cuda
            return x * x

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            assert x.is_cuda
            assert gradient.is_cuda
            return 2 * x * gradient

    x = torch.tensor([3.0], device="cuda", requires_grad=True)
    Square.apply(x).backward()
    assert x.grad.item() == 6


@program("torch docs: torch.utils.data.DataLoader; the batch is moved in the loop")
def test_a_loader_feeds_the_gpu(cuda: Gpu) -> None:
    x, y = data("cpu")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100, pin_memory=True)
    total = torch.zeros((), device="cuda")
    for inputs, labels in loader:
        total += (inputs.to("cuda", non_blocking=True).sum(1) * labels.cuda(non_blocking=True)).sum()
    assert total.item() == pytest.approx((x.sum(1) * y).sum().item(), rel=1e-3)
    on_gpu = torch.utils.data.TensorDataset(x.cuda(), y.cuda())
    batch = next(iter(torch.utils.data.DataLoader(on_gpu, batch_size=10)))
    assert batch[0].is_cuda
