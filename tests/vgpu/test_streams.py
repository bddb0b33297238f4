"""What overlaps on a GPU and what does not.

Sources: CUDA C++ Programming Guide ("Concurrent Kernel Execution", "Overlap of Data Transfer and Kernel Execution",
"Default Stream"), PyTorch's CUDA semantics notes ("CUDA streams").
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
import torch

import vgpu
from vgpu.device import cost
from vgpu.device.intervals import Intervals

# What overlaps is measured here, on whatever memory; nobody uses the values.
pytestmark = pytest.mark.filterwarnings("ignore::vgpu.StreamHazard")


def _seconds(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _on_two_streams(work: Callable[[], object], count: int = 1) -> Callable[[], None]:
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def run() -> None:
        for _ in range(count):
            for stream in streams:
                with torch.cuda.stream(stream):
                    work()

    return run


def _in_turn(work: Callable[[], object], count: int = 1) -> Callable[[], None]:
    def run() -> None:
        for _ in range(2 * count):
            work()

    return run


def test_kernels_that_leave_room_overlap(shapes: vgpu.VirtualGPU) -> None:
    """64 x 64 results of very long products: a few blocks of threads, so both fit on the GPU."""
    x, y = torch.empty(64, 4_000_000, device="cuda"), torch.empty(4_000_000, 64, device="cuda")
    x @ y
    single = _seconds(lambda: x @ y)
    assert _seconds(_on_two_streams(lambda: x @ y)) == pytest.approx(single, rel=0.02)
    assert _seconds(_in_turn(lambda: x @ y)) == pytest.approx(2 * single, rel=0.02)


def test_two_kernels_that_fill_the_gpu_take_as_long_as_in_turn(shapes: vgpu.VirtualGPU) -> None:
    """Two streams do not double the throughput of large products."""
    x = torch.empty(4096, 4096, device="cuda")
    x @ x
    single = cost.matmul_seconds(shapes.spec, 4096, 4096, 4096)
    for run in (_on_two_streams(lambda: x @ x), _in_turn(lambda: x @ x)):
        assert _seconds(run) == pytest.approx(2 * single, rel=0.02)


def test_large_elementwise_kernels_share_the_bandwidth(shapes: vgpu.VirtualGPU) -> None:
    x = torch.empty(1 << 28, device="cuda")
    assert _seconds(_on_two_streams(lambda: x.add_(1))) == pytest.approx(
        _seconds(_in_turn(lambda: x.add_(1))), rel=0.02
    )


def test_small_elementwise_kernels_overlap(shapes: vgpu.VirtualGPU) -> None:
    x = torch.empty(1 << 12, device="cuda")
    starts = len(shapes.timeline)
    _on_two_streams(lambda: x.add_(1), count=20)()
    kernels = shapes.timeline[starts:]
    assert {kernel.stream for kernel in kernels} == {1, 2}
    # Bound by their launches, they would not show it in time: each starts when it has been launched.
    assert all(kernel.start == pytest.approx(kernel.launched_at + shapes.spec.launch_seconds) for kernel in kernels)


def test_a_copy_overlaps_with_kernels_and_with_a_copy_the_other_way(shapes: vgpu.VirtualGPU) -> None:
    host, back = torch.empty(1 << 26).pin_memory(), torch.empty(1 << 26).pin_memory()
    there = torch.empty(1 << 26, device="cuda")
    x = torch.empty(4096, 4096, device="cuda")
    x @ x
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def send() -> None:
        with torch.cuda.stream(up):
            there.copy_(host, non_blocking=True)

    def receive() -> None:
        with torch.cuda.stream(down):
            back.copy_(there, non_blocking=True)

    def compute() -> None:
        x @ x

    alone = [_seconds(task) for task in (send, receive, compute)]
    assert min(alone) > 1e-3

    def together() -> None:
        send()
        receive()
        compute()

    assert _seconds(together) == pytest.approx(max(alone), rel=0.02)


def test_copies_in_one_direction_share_their_engine(shapes: vgpu.VirtualGPU) -> None:
    host = torch.empty(1 << 26).pin_memory()
    there = torch.empty(1 << 26, device="cuda")
    copy = lambda: there.copy_(host, non_blocking=True)  # noqa: E731
    assert _seconds(_on_two_streams(copy)) == pytest.approx(_seconds(_in_turn(copy)), rel=0.02)


def test_work_that_waits_leaves_the_device_to_others(shapes: vgpu.VirtualGPU) -> None:
    """A kernel that waits for a copy does not hold up a stream that has nothing to wait for."""
    x = torch.empty(2048, 2048, device="cuda")
    x @ x
    host = torch.empty(1 << 28).pin_memory()
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    start = shapes.now()
    moved = host.to("cuda", non_blocking=True)
    moved.add_(1)
    with torch.cuda.stream(other):
        x @ x
    product = shapes.timeline[-1]
    assert product.name == "aten::mm"
    assert product.end - start < 2e-3 < shapes.timeline[-2].start - start


def test_busy_time_counts_overlap_once(shapes: vgpu.VirtualGPU) -> None:
    """Two spinning kernels of one block at the same time; utilisation stays below one."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    before, began = shapes.queue.busy_seconds, shapes.now()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(int(shapes.spec.clock_hertz))
    torch.cuda.synchronize()
    assert shapes.queue.busy_seconds - before == pytest.approx(1, rel=1e-3)
    assert shapes.now() - began == pytest.approx(1, rel=1e-3)


def test_pytorchs_streams_do_not_wait_for_the_default_stream(shapes: vgpu.VirtualGPU) -> None:
    """They are made with cudaStreamNonBlocking (c10/cuda/CUDAStream.cpp)."""
    other = torch.cuda.Stream()
    torch.cuda._sleep(int(shapes.spec.clock_hertz))
    with torch.cuda.stream(other):
        torch.cuda._sleep(1000)
    assert shapes.timeline[-1].end < shapes.timeline[-2].end


def test_priorities_are_kept_and_change_no_time(shapes: vgpu.VirtualGPU) -> None:
    high = torch.cuda.Stream(priority=-1)
    assert high.priority == -1
    x = torch.empty(4096, 4096, device="cuda")
    assert _seconds(_on_two_streams(lambda: x @ x)) > 0


def test_a_transfer_of_pinned_memory_overlaps_only_when_it_does_not_block(shapes: vgpu.VirtualGPU) -> None:
    pinned, pageable = torch.empty(1 << 24).pin_memory(), torch.empty(1 << 24)
    pinned.cuda()
    host_seconds = {}
    for name, tensor, non_blocking in (
        ("pinned", pinned, True), ("pinned, blocking", pinned, False), ("pageable", pageable, True)
    ):  # fmt: skip
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tensor.to("cuda", non_blocking=non_blocking)
        host_seconds[name] = time.perf_counter() - begin
    whole = cost.transfer_seconds(shapes.spec, 1 << 26, pinned=True)
    assert host_seconds["pinned"] < 1e-4
    assert host_seconds["pinned, blocking"] == pytest.approx(whole, rel=0.02)
    assert host_seconds["pageable"] > 2 * whole


def test_cudnn_benchmark_is_slow_once_per_shape_and_faster_after(shapes: vgpu.VirtualGPU) -> None:
    weight = torch.empty(64, 64, 3, 3, device="cuda")

    def convolve(size: int) -> float:
        return _seconds(lambda: torch.conv2d(torch.empty(64, 64, size, size, device="cuda"), weight))

    convolve(32)
    plain = convolve(56)
    torch.backends.cudnn.benchmark = True
    try:
        first, second, other, again = convolve(56), convolve(56), convolve(48), convolve(48)
    finally:
        torch.backends.cudnn.benchmark = False
    assert first > 5 * second
    assert second < 0.95 * plain
    assert other > 5 * again


_WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "blocking copy to the device": lambda x: torch.ones(2).cuda(),
    "Stream.synchronize": lambda x: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", _WAITING)
def test_waiting_operations_can_be_found(gpu: vgpu.VirtualGPU, name: str) -> None:
    """torch.cuda.set_sync_debug_mode; c10/cuda/CUDAFunctions.h: memcpy_and_sync and stream_synchronize report."""
    x = torch.ones(4, device="cuda")
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        _WAITING[name](x)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        _WAITING[name](x)
    _ = x + 1
    torch.ones(2).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.synchronize()


@pytest.mark.parametrize(("size", "dtype"), [(4096, torch.float16), (1024, torch.bfloat16)])
def test_tensor_cores_want_multiples_of_eight(shapes: vgpu.VirtualGPU, size: int, dtype: torch.dtype) -> None:
    """NVIDIA, "Matrix Multiplication Background User's Guide": alignment to 16 bytes."""

    def rate(edge: int) -> float:
        x = torch.empty(edge, edge, device="cuda", dtype=dtype)
        x @ x
        return edge**3 / _seconds(lambda: x @ x)

    assert rate(size) > 1.2 * rate(size - 1)


# ---- Intervals -----------------------------------------------------------------------------------------------------


def test_intervals_are_a_set_of_points() -> None:
    """Against a bitmap of 200 points, on random intervals."""
    random.seed(0)
    for _ in range(50):
        intervals, bitmap = Intervals(), [False] * 200
        for _ in range(30):
            start = random.randrange(0, 190)
            end = start + random.randrange(0, 10)
            assert intervals.add(start, end) == bitmap[start:end].count(False)
            bitmap[start:end] = [True] * (end - start)
            moment, length = random.randrange(0, 150), random.randrange(1, 8)
            free = [at for at in range(moment, 200) if not any(bitmap[at : at + length])]
            assert intervals.first_gap(moment, length) == free[0]


def test_intervals_forget_what_is_over() -> None:
    intervals = Intervals()
    for start in range(0, 100, 2):
        intervals.add(start, start + 1)
    intervals.forget_before(50)
    assert intervals.first_gap(0, 40) == 0
    assert intervals.add(60, 61) == 0
