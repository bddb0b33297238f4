"""Workspaces of libraries (aten/src/ATen/cuda/CublasHandlePool.cpp) and temporary tensors of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import vgpu
from tests.vgpu.conftest import rounded
from vgpu.runtime.memory import workspaces

MIB = 1 << 20
SMALL = 2 * 4096 * 1024 + 8 * 16 * 1024  # :4096:2:16:8
LARGE = 32 * MIB
SCOPED = workspaces.torch_version() >= (2, 15)


def _taken(work: Callable[[], object]) -> tuple[int, int]:
    """(bytes next to what is there and what stays, bytes of workspaces that stay)."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    peak = torch.cuda.max_memory_allocated() - before
    made = rounded(result.nbytes) if isinstance(result, torch.Tensor) else 0
    del result
    return peak - made, torch.cuda.memory_allocated() - before


@pytest.mark.parametrize(("name", "size"), [("T4", SMALL), ("A100-80GB", SMALL), ("H100", LARGE), ("H200", LARGE)])
def test_a_product_takes_the_workspace_of_its_gpu_generation(name: str, size: int) -> None:
    with vgpu.attach(name, values=False):
        x = torch.ones(64, 64, device="cuda")
        assert _taken(lambda: x @ x) == (size, 0 if SCOPED else size)
        # A second product finds the workspace where it is kept.
        assert _taken(lambda: x @ x) == (size if SCOPED else 0, 0)


def test_a_product_with_a_bias_runs_on_cublaslt(shapes: vgpu.VirtualGPU) -> None:  # isInputCompliesAddmmCudaLt
    layer = torch.nn.Linear(64, 64, device="cuda")
    x = torch.ones(64, 64, device="cuda")
    with torch.no_grad():
        taken, kept = _taken(lambda: layer(x))
    assert (taken, kept) == ((MIB, 0) if SCOPED else (SMALL + MIB, SMALL + MIB))


def test_the_environment_sets_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "64")
    with vgpu.attach("H100", values=False):
        x = torch.ones(64, 64, device="cuda")
        assert _taken(lambda: x @ x)[0] == 16 * 8 * 1024
        layer = torch.nn.Linear(64, 64, device="cuda")
        assert _taken(lambda: layer(x).detach())[0] == 64 * 1024


def test_a_config_that_cannot_be_read_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "large")
    with pytest.warns(UserWarning, match="Could not parse CUBLAS_WORKSPACE_CONFIG"):
        assert workspaces.blas_bytes(SMALL) == SMALL


@pytest.mark.skipif(not SCOPED, reason="the cache cannot be switched off before PyTorch 2.15")
def test_cached_workspaces_are_kept_per_thread_and_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    with vgpu.attach("T4", values=False):
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        x = torch.ones(64, 64, device="cuda")
        held = torch.cuda.memory_allocated()
        loss = (x @ weight).sum()
        assert torch.cuda.memory_allocated() == held + SMALL + 512
        loss.backward()
        # Autograd's thread has a handle, and so a workspace, of its own; the gradient is there too.
        assert torch.cuda.memory_allocated() == held + 2 * SMALL + 512 + rounded(4 * 64 * 64)
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            _ = x @ weight
        assert torch.cuda.memory_allocated() == held + 3 * SMALL + 512 + 2 * rounded(4 * 64 * 64)
        del _
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == held + 512 + rounded(4 * 64 * 64)


def test_an_expanded_operand_is_copied_first(shapes: vgpu.VirtualGPU) -> None:  # prepare_matrix_for_cublas
    x, row = torch.ones(256, 256, device="cuda"), torch.ones(1, 1, device="cuda").expand(256, 256)
    plain = _taken(lambda: x @ x)[0]
    plain = _taken(lambda: x @ x)[0]
    assert _taken(lambda: x.t() @ x)[0] == plain
    assert _taken(lambda: x @ row)[0] == plain + rounded(4 * 256 * 256)


def test_tensor_core_convolutions_copy_nchw_tensors(
    shapes: vgpu.VirtualGPU,
) -> None:  # modelled: vgpu.runtime.memory.workspaces
    x = torch.ones(8, 64, 32, 32, device="cuda", dtype=torch.float16)
    weight = torch.ones(64, 64, 3, 3, device="cuda", dtype=torch.float16)
    taken, kept = _taken(lambda: functional.conv2d(x, weight, padding=1))
    assert (taken, kept) == (rounded(2 * x.nbytes + weight.nbytes), 0)
    last = torch.channels_last
    x, weight = x.to(memory_format=last), weight.to(memory_format=last)
    assert _taken(lambda: functional.conv2d(x, weight, padding=1))[0] == rounded(4 * 64 * 3 * 3)


def test_cudnn_benchmark_tries_algorithms_once_per_shape(shapes: vgpu.VirtualGPU) -> None:
    x, weight = torch.ones(8, 64, 32, 32, device="cuda"), torch.ones(64, 64, 3, 3, device="cuda")
    functional.conv2d(x, weight)  # the handle
    torch.backends.cudnn.benchmark = True
    try:
        peaks, times = [], []
        for _ in range(2):
            begin = shapes.now()
            peaks.append(_taken(lambda: functional.conv2d(x, weight))[0])
            torch.cuda.synchronize()
            times.append(shapes.now() - begin)
    finally:
        torch.backends.cudnn.benchmark = False
    unfolded = 8 * 30 * 30 * 64 * 3 * 3 * 4
    # A block is larger than what was asked for where its rest is too small to be split off.
    assert unfolded <= peaks[0] < unfolded + MIB
    # The A100 runs FP32 convolutions on its tensor cores, as TF32, which copies NCHW tensors.
    assert peaks[1] == rounded(x.nbytes + weight.nbytes + 8 * 64 * 30 * 30 * 4)
    assert times[0] > 5 * times[1]


def test_the_embeddings_gradient_has_partial_sums(shapes: vgpu.VirtualGPU) -> None:  # EmbeddingBackwardKernel.cu
    def peak(tokens: int) -> int:
        index = torch.zeros(tokens, dtype=torch.int64, device="cuda")
        weight = torch.zeros(1000, 64, device="cuda", requires_grad=True)
        loss = functional.embedding(index, weight).sum()
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()

    assert peak(3072) == 512
    partial = 4096 // 10 + 1000
    assert peak(4096) == 512 + rounded(*[8 * 4096] * 3, 8 * 1000, 8 * 1000, 8 * partial, 4 * 64 * partial)


def test_an_allocation_for_a_workspace_can_run_out_of_memory() -> None:
    with vgpu.attach("T4", values=False) as gpu:
        x = torch.ones(8, 8, device="cuda")
        _fill = torch.empty(torch.cuda.mem_get_info()[0] - 4 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
            _ = x @ x
        assert gpu.memory_by_category()["workspaces"] == 0
        assert torch.cuda.memory_stats()["num_ooms"] == torch.cuda.memory_stats()["num_alloc_retries"] == 1
