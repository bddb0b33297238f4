"""What each usual layer keeps for backward on CUDA: tools/autograd/derivatives.yaml and the kernels that it names.

The bytes are those in addition to the inputs and the parameters, while the result is still held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.memory import workspaces

N, C = 256, 512
X = 4 * N * C
KEPT = workspaces.torch_version() < (2, 15)


def _kept(make: Callable[[torch.Tensor], Any], shape: tuple[int, ...] = (N, C), **options: Any) -> int:
    """Bytes that a layer's result and what it saved take up, workspaces of cuBLAS left out."""
    x = torch.randn(shape, device="cuda", requires_grad=True, **options)
    make(x)  # library handles
    gpu = vgpu.current()
    assert gpu is not None
    before = torch.cuda.memory_allocated() - gpu.memory_by_category()["workspaces"]
    result = make(x)
    taken = torch.cuda.memory_allocated() - gpu.memory_by_category()["workspaces"] - before
    del result
    return taken


MAP = (8, 16, 32, 32)
MAP_BYTES = 4 * 8 * 16 * 32 * 32
LAYERS: dict[str, tuple[Callable[[], Callable[[torch.Tensor], Any]], tuple[int, ...], int]] = {
    "relu: its result": (lambda: torch.relu, (N, C), rounded(X)),
    "gelu: its input": (lambda: functional.gelu, (N, C), rounded(X)),
    "silu: its input": (lambda: functional.silu, (N, C), rounded(X)),
    "exp: its result": (lambda: torch.exp, (N, C), rounded(X)),
    "logsigmoid: its input, no buffer": (lambda: functional.logsigmoid, (N, C), rounded(X)),
    "linear: its input": (lambda: nn.Linear(C, C, device="cuda"), (N, C), rounded(X)),
    "layer norm: input, mean, deviation": (
        lambda: nn.LayerNorm(C, device="cuda"), (N, C), rounded(X, 4 * N, 4 * N),
    ),
    "RMS norm: input, deviation": (lambda: nn.RMSNorm(C, device="cuda"), (N, C), rounded(X, 4 * N)),
    "group norm: input, mean, deviation": (
        lambda: nn.GroupNorm(4, 16, device="cuda"), MAP, rounded(MAP_BYTES, 4 * 8 * 4, 4 * 8 * 4),
    ),
    "batch norm: input, mean, deviation": (
        lambda: nn.BatchNorm2d(16, device="cuda"), MAP, rounded(MAP_BYTES, 4 * 16, 4 * 16),
    ),
    "convolution: its input": (lambda: nn.Conv2d(16, 16, 3, padding=1, device="cuda"), MAP, rounded(MAP_BYTES)),
    "max pool: input, indices of 8 bytes": (
        lambda: nn.MaxPool2d(2), MAP, rounded(MAP_BYTES // 4, 2 * MAP_BYTES // 4),
    ),
    "average pool: its input": (lambda: nn.AvgPool2d(2), MAP, rounded(MAP_BYTES // 4)),
    "dropout: a mask of one byte": (lambda: nn.Dropout(0.5), (N, C), rounded(X, N * C)),
    "softmax: its result": (lambda: nn.Softmax(-1), (N, C), rounded(X)),
    "log-softmax: its result": (lambda: nn.LogSoftmax(-1), (N, C), rounded(X)),
    "cross entropy: log-probabilities, total weight": (
        lambda: lambda x: functional.cross_entropy(x, torch.zeros(N, dtype=torch.int64, device="cuda")),
        (N, C), rounded(4, X, 4, 8 * N),
    ),
    "mean squared error: input and target": (
        lambda: lambda x: functional.mse_loss(x, torch.zeros(N, C, device="cuda")), (N, C), rounded(4, X),
    ),
}  # fmt: skip


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_what_it_keeps_on_cuda(name: str, values: bool) -> None:
    build, shape, expected = LAYERS[name]
    with vgpu.attach("T4", values=values):
        assert _kept(build(), shape) == expected


@pytest.mark.parametrize("values", [True, False])
def test_statistics_of_16_bit_norms_are_fp32(values: bool) -> None:  # acc_type in the CUDA kernels
    with vgpu.attach("T4", values=values):
        layer = nn.LayerNorm(C, device="cuda", dtype=torch.float16)
        assert _kept(layer, (N, C), dtype=torch.float16) == rounded(X // 2, 4 * N, 4 * N)
        norm = nn.BatchNorm1d(C, device="cuda", dtype=torch.float16)
        assert _kept(norm, (N, C), dtype=torch.float16) == rounded(X // 2, 4 * C, 4 * C)


def test_16_bit_norms_have_the_values_and_gradients_of_fp32(gpu: vgpu.VirtualGPU) -> None:
    for norm in (nn.LayerNorm(32), nn.BatchNorm1d(32), nn.RMSNorm(32)):
        norm = norm.half().cuda()
        x = torch.randn(16, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        output = norm(x)
        output.square().sum().backward()
        wide = x.detach().float().requires_grad_()
        expected = type(norm)(32).cuda()(wide)
        expected.square().sum().backward()
        assert output.dtype == norm.weight.grad.dtype == torch.float16
        assert torch.allclose(output.float(), expected, atol=5e-3)
        assert x.grad is not None
        assert wide.grad is not None
        assert torch.allclose(x.grad.float(), wide.grad, atol=5e-2)


def test_softmax_in_fp32_reads_fp16_without_a_copy(shapes: vgpu.VirtualGPU) -> None:  # SoftMax.cpp, half_to_float
    x = torch.randn(N, C, device="cuda", dtype=torch.float16, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=torch.float16):
        y = x.softmax(-1)
    assert y.dtype == torch.float32
    assert torch.cuda.max_memory_allocated() - before == rounded(X)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float16


def test_softmax_in_fp32_of_fp16_has_the_right_values(gpu: vgpu.VirtualGPU) -> None:
    x = torch.randn(8, 16, device="cuda", dtype=torch.float16, requires_grad=True)
    wide = x.detach().float().requires_grad_()
    for function in (torch.softmax, torch.log_softmax):
        ours, theirs = function(x, -1, dtype=torch.float32), function(wide, -1)
        assert torch.allclose(ours, theirs, atol=1e-6)
        grad = torch.autograd.grad(ours.square().sum(), x)[0]
        assert torch.allclose(grad.float(), torch.autograd.grad(theirs.square().sum(), wide)[0], atol=2e-2)


def test_a_branch_not_taken_by_autograd_keeps_nothing(shapes: vgpu.VirtualGPU) -> None:
    with torch.no_grad():
        assert _kept(nn.Dropout(0.5)) == rounded(X, 0)


# ---- checkpoints and hooks ------------------------------------------------------------------------------------------


def _blocks(count: int) -> nn.Sequential:
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(C, C), nn.GELU(), nn.Dropout(0.1), nn.Linear(C, C)) for _ in range(count)]
    ).cuda()


BLOCK = rounded(X, X, X, N * C, X)  # first product, GELU, dropout and its mask, second product


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_keep_the_blocks_inputs(values: bool, reentrant: bool) -> None:
    with vgpu.attach("T4", values=values):
        model = _blocks(4)

        def run(x: torch.Tensor) -> torch.Tensor:
            for block in model:
                x = checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[assignment]
            return x

        # GELU's result is not kept: dropout needs its mask only, and the last product dropout's result.
        assert _kept(model) == 4 * (BLOCK - rounded(X))
        assert _kept(run) == 4 * rounded(X)


def test_checkpoint_sequential_keeps_the_segments_inputs(shapes: vgpu.VirtualGPU) -> None:
    model = _blocks(4)
    # The last segment runs as it is (torch.utils.checkpoint.checkpoint_sequential).
    kept = _kept(lambda x: checkpoint_sequential(model, 4, x, use_reentrant=False))
    assert kept == 3 * rounded(X) + BLOCK - rounded(X)


def test_a_selective_checkpoint_keeps_what_it_is_told(shapes: vgpu.VirtualGPU) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    model = _blocks(1)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def run(x: torch.Tensor) -> Any:
        return checkpoint(
            model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
        )

    assert _kept(run) == 2 * rounded(X)
    x = torch.randn(N, C, device="cuda", requires_grad=True)
    begin = len(shapes.timeline)
    run(x).sum().backward()
    names = [kernel.name for kernel in shapes.timeline[begin:]]
    assert names.count("aten::addmm") == 2  # not once more in backward
    assert names.count("aten::gelu") == 2


@pytest.mark.parametrize("values", [True, False])
def test_save_on_cpu_takes_activations_off_the_gpu(values: bool) -> None:
    with vgpu.attach("T4", values=values) as gpu:
        model = nn.Sequential(nn.Linear(C, C), nn.GELU(), nn.Linear(C, C)).cuda()

        def run(x: torch.Tensor) -> Any:
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return model(x)

        assert _kept(model) == 3 * rounded(X)
        assert _kept(run) == rounded(X)
        x = torch.randn(N, C, device="cuda", requires_grad=True)
        begin = len(gpu.timeline)
        run(x).sum().backward()
        names = [kernel.name for kernel in gpu.timeline[begin:]]
        assert any(name.startswith("Memcpy DtoH") for name in names)
        assert any(name.startswith("Memcpy HtoD (Pinned") for name in names)
        assert x.grad is not None
        assert x.grad.is_cuda


def test_hooks_on_saved_tensors_may_shrink_them(gpu: vgpu.VirtualGPU) -> None:
    weight = torch.eye(C, device="cuda")

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
            return (x @ weight).exp()

    # The result, and in half precision: it again, for the exponential, and the weight, for the gradient of x.
    assert _kept(run) == rounded(X, X // 2, 2 * C * C)


def test_attention_dropout_is_the_same_when_recomputed(gpu: vgpu.VirtualGPU) -> None:
    q = torch.randn(1, 2, 32, 16, device="cuda", requires_grad=True)

    def run(query: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)

    def gradient(checkpointed: bool) -> torch.Tensor:
        torch.cuda.manual_seed(4)
        output: Any = checkpoint(run, q, use_reentrant=False) if checkpointed else run(q)
        return torch.autograd.grad(output.square().sum(), q)[0]

    assert torch.equal(gradient(True), gradient(False))
