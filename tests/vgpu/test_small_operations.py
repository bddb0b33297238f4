"""What a small operation costs in Python, and that what is kept of its kernel fits the next one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

import vgpu

torch = pytest.importorskip("torch")


def _python_calls(call: Callable[[], object]) -> int:
    """Functions that are called, this one's included."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(3):
        call()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("operation", "most"),
    [
        (lambda x: x.view(4, 16), 15),
        (lambda x: x.add_(1), 14),
        (lambda x: x * x, 30),
        (torch.relu, 30),
        (torch.mm, 38),
    ],
)
def test_a_small_operation_calls_few_functions(
    gpu: vgpu.VirtualGPU, operation: Callable[..., object], most: int
) -> None:
    """Calls are most of the simulation's time, and unlike it they are always the same."""
    x = torch.zeros(8, 8, device="cuda")
    operands = (x, x) if operation is torch.mm else (x,)
    assert _python_calls(lambda: operation(*operands)) <= most


SMALL, LARGE = 4 * 64 * 64, 4 * 512 * 512


@pytest.mark.parametrize(
    ("operation", "moved"),
    [
        (lambda x, y: x * y, 3 * SMALL),
        (lambda x, y: x * x, 2 * SMALL),
        (lambda x, y: x.mul_(y), 3 * SMALL),
        (lambda x, y: x * y.half(), 2 * SMALL + SMALL // 2),
        (lambda x, y: x * y.mT, 3 * SMALL),
        (lambda x, y: x == y, 2 * SMALL + SMALL // 4),
        (lambda x, y: x.copy_(y), 2 * SMALL),
        (lambda x, y: x * y[0], 2 * SMALL + SMALL // 64),
        (lambda x, y: x[0, :1].expand(512, 512) * 2, LARGE + 4),
        (lambda x, y: x.new_ones(512, 512) * 2, 2 * LARGE),
    ],
)
def test_small_kernels_are_told_apart(
    gpu: vgpu.VirtualGPU, operation: Callable[[torch.Tensor, torch.Tensor], object], moved: int
) -> None:
    """The last one is known from the first; between them come others of the same shapes."""
    x, y = torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    operation(x, y)
    first = gpu.timeline[-1]
    assert first.bytes == moved
    for other in (torch.mul(x, y), torch.mul(x, x), torch.mul(x, y, out=x), x.copy_(y), x.new_ones(512, 512) * 2):
        assert other.is_cuda
    operation(x, y)
    last = gpu.timeline[-1]
    assert (last.bytes, last.seconds, last.dtype, last.shapes) == (moved, first.seconds, first.dtype, first.shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_relu_gives_positive_zeros_and_keeps_nan(gpu: vgpu.VirtualGPU, dtype: torch.dtype) -> None:
    """Activation.cpp, `relu`: clamped by zero, and `::max` takes +0 (TensorCompare.cu)."""
    values = torch.tensor([-0.0, 0.0, -2.0, 3.0, float("nan"), -float("inf"), float("inf")], dtype=dtype, device="cuda")
    for result in (torch.relu(values), torch.relu_(values.clone())):
        assert not result.cpu()[:3].signbit().any()
        assert torch.equal(result.cpu().nan_to_num(7.0), torch.clamp_min(values, 0.0).cpu().nan_to_num(7.0))
