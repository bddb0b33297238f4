"""Virtual time; expectations from the CUDA C++ Programming Guide and PyTorch's CUDA semantics notes."""

from __future__ import annotations

import itertools
import threading
import time
import timeit

import pytest
import torch
from torch.utils import benchmark

import vgpu
from vgpu.device import cost


def _warm(size: int) -> torch.Tensor:
    x = torch.ones(size, size, device="cuda")
    _ = x @ x
    torch.cuda.synchronize()
    return x


def test_without_synchronize_only_the_launches_are_seen(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(4096)
    start = time.perf_counter()
    for _ in range(10):
        x @ x
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    done = time.perf_counter() - start
    assert launched == pytest.approx(10 * cost.launch_seconds(shapes.spec, "product"), rel=0.01)
    assert done == pytest.approx(10 * cost.matmul_seconds(shapes.spec, 4096, 4096, 4096), rel=0.01)


def test_the_first_product_pays_for_context_and_library(shapes: vgpu.VirtualGPU) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        x = torch.ones(64, 64, device="cuda")
        _ = x @ x
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first, second = seconds(), seconds()
    assert first > shapes.spec.context_seconds + shapes.spec.blas_handle_seconds
    assert second < 1e-4


def test_events_measure_device_time(shapes: vgpu.VirtualGPU) -> None:  # torch.cuda.Event
    x = _warm(2048)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(5):
        x @ x
    end.record()
    torch.cuda.synchronize()
    expected = 5e3 * cost.matmul_seconds(shapes.spec, 2048, 2048, 2048)
    assert begin.elapsed_time(end) == pytest.approx(expected, rel=0.01)


def test_elapsed_time_wants_recorded_and_finished_events(shapes: vgpu.VirtualGPU) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        begin.elapsed_time(end)
    x = _warm(4096)
    begin.record()
    x @ x
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) > 0


def test_polling_an_event_comes_to_an_end(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(2048)
    x @ x
    event = torch.cuda.Event()
    event.record()
    polls = 0
    while not event.query():
        polls += 1
    assert 0 < polls < 100_000


@pytest.mark.parametrize("read", [lambda t: t.item(), lambda t: t.cpu(), lambda t: t.tolist(), bool, float, int])
def test_reading_a_value_waits_for_the_device(shapes: vgpu.VirtualGPU, read: object) -> None:
    x = _warm(4096)
    start = time.perf_counter()
    total = (x @ x)[0, 0]
    read(total)  # type: ignore[operator]
    assert time.perf_counter() - start > cost.matmul_seconds(shapes.spec, 4096, 4096, 4096)


def test_a_stream_that_waits_for_an_event_starts_after_it(shapes: vgpu.VirtualGPU) -> None:
    x, other = _warm(2048), torch.cuda.Stream()
    x @ x
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        x @ x
    first, second = [kernel for kernel in shapes.timeline if kernel.name == "aten::mm"][-2:]
    assert (first.stream, second.stream) == (0, other.stream_id)
    assert second.start >= first.end


def test_pinned_memory_is_faster_and_asynchronous_when_asked(shapes: vgpu.VirtualGPU) -> None:
    torch.cuda.synchronize()

    def seconds(tensor: torch.Tensor, **options: bool) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        tensor.to("cuda", **options)
        return time.perf_counter() - start

    host = torch.ones(1 << 20)
    pageable, pinned = seconds(host), seconds(host.pin_memory())
    assert pageable > 2 * pinned
    assert seconds(host.pin_memory(), non_blocking=True) < 0.1 * pinned
    assert seconds(host, non_blocking=True) == pytest.approx(pageable, rel=0.01)


def test_views_launch_nothing(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(4, 4, device="cuda")
    before = len(shapes.timeline)
    x.view(16).reshape(2, 8).t().unsqueeze(0).detach()
    x[1:, ::2].expand(3, 3, 2)
    assert len(shapes.timeline) == before


def test_small_kernels_are_bound_by_their_launches(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(8, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(1000):
        x += 1
    torch.cuda.synchronize()
    assert time.perf_counter() - start == pytest.approx(1000 * shapes.spec.launch_seconds, rel=0.02)


def test_the_launch_queue_is_finite(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(1024)
    start = time.perf_counter()
    for _ in range(3000):
        x @ x
    launched = time.perf_counter() - start
    assert launched > 1900 * cost.matmul_seconds(shapes.spec, 1024, 1024, 1024)


def test_sleep_advances_the_clocks(gpu: vgpu.VirtualGPU) -> None:
    readings = [time.perf_counter(), time.time(), time.monotonic(), time.perf_counter_ns() / 1e9]
    time.sleep(3600)
    later = [time.perf_counter(), time.time(), time.monotonic(), time.perf_counter_ns() / 1e9]
    for before, after in zip(readings, later, strict=True):
        assert after - before == pytest.approx(3600, abs=1e-3)


def test_a_loop_that_polls_the_clock_ends(gpu: vgpu.VirtualGPU) -> None:
    deadline = time.monotonic() + 0.001
    while time.monotonic() < deadline:
        pass
    assert gpu.now() == pytest.approx(0.001, rel=0.01)


def test_timeit_gives_virtual_time(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(2048)

    def step() -> None:
        _ = x @ x
        torch.cuda.synchronize()

    product_seconds = cost.matmul_seconds(shapes.spec, 2048, 2048, 2048)
    assert timeit.timeit(step, number=20) / 20 == pytest.approx(product_seconds, rel=0.05)


def test_torch_benchmark_timer_gives_virtual_time(shapes: vgpu.VirtualGPU) -> None:
    """Imported above, before any GPU was there: PyTorch 2.11 then binds a clock that does not wait."""
    x = _warm(2048)
    timer = benchmark.Timer("x @ x", globals={"x": x})
    product_seconds = cost.matmul_seconds(shapes.spec, 2048, 2048, 2048)
    assert timer.timeit(50).median == pytest.approx(product_seconds, rel=0.02)
    assert timer.blocked_autorange(min_run_time=0.02).median == pytest.approx(product_seconds, rel=0.02)


def test_a_clock_bound_by_name_before_attach_is_virtual_too() -> None:
    namespace = __import__("types").ModuleType("student_module")
    namespace.__file__ = "/somewhere/student_module.py"
    exec("from time import perf_counter", namespace.__dict__)
    real = namespace.perf_counter
    __import__("sys").modules["student_module"] = namespace
    try:
        with vgpu.attach("T4"):
            before = namespace.perf_counter()
            time.sleep(100)
            assert namespace.perf_counter() - before == pytest.approx(100, abs=1e-3)
        assert namespace.perf_counter is real
    finally:
        del __import__("sys").modules["student_module"]


def test_each_thread_has_its_own_clock_and_joining_brings_them_together(gpu: vgpu.VirtualGPU) -> None:
    moments: list[float] = []

    def work() -> None:
        time.sleep(5)
        moments.append(time.perf_counter())

    start = time.perf_counter()
    thread = threading.Thread(target=work)
    thread.start()
    assert time.perf_counter() - start < 1
    thread.join()
    assert moments[0] - start == pytest.approx(5, abs=1e-3)
    assert time.perf_counter() - start == pytest.approx(5, abs=1e-3)


def test_a_sleeping_monitor_waits_for_the_virtual_time_of_the_others(shapes: vgpu.VirtualGPU) -> None:
    x, stop, samples = _warm(4096), threading.Event(), []

    def monitor() -> None:
        while not stop.is_set():
            samples.append(time.perf_counter())
            time.sleep(0.01)

    thread = threading.Thread(target=monitor, daemon=True)
    start = time.perf_counter()
    thread.start()
    for _ in range(100):
        x @ x
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    stop.set()
    thread.join()
    assert elapsed == pytest.approx(100 * cost.matmul_seconds(shapes.spec, 4096, 4096, 4096), rel=0.02)
    # Never more than virtual time allows; fewer when the operating system gave the thread no turn in between.
    assert 0.5 * elapsed / 0.01 <= len(samples) <= elapsed / 0.01 + 2


def test_a_thread_of_the_program_uses_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(torch.ones(2, device="cuda") * 2))
    thread.start()
    thread.join()
    assert results[0].is_cuda
    assert results[0].tolist() == [2.0, 2.0]


def test_an_injected_slowdown_hits_one_kernel(shapes: vgpu.VirtualGPU) -> None:
    shapes.inject_slowdown(10.0, after_kernels=3, min_flops=1e6)
    x = torch.ones(512, 512, device="cuda")
    for _ in range(6):
        x @ x
    product_seconds = cost.matmul_seconds(shapes.spec, 512, 512, 512)
    products = [kernel.seconds / product_seconds for kernel in shapes.timeline if kernel.name == "aten::mm"]
    assert products == pytest.approx([1, 1, 1, 10, 1, 1])


def test_an_injected_host_delay_hits_the_host_once(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(8)
    shapes.inject_host_delay(0.5, after_operations=1)
    moments = [shapes.now()]
    for _ in range(3):
        x += 1
        moments.append(shapes.now())
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert [gap > 0.4 for gap in gaps] == [False, True, False]


def test_a_slow_host_multiplies_what_its_products_take_and_nothing_else(shapes: vgpu.VirtualGPU) -> None:
    def took(size: int) -> float:
        x = torch.ones(size, size)
        begin = shapes.now()
        x @ x
        return shapes.now() - begin

    shapes.inject_slowdown(5.0, count=1000)
    shapes.inject_host_slowdown(2.0, min_flops=2 * 100**3)
    shapes.inject_host_slowdown(3.0, min_flops=2 * 300**3)
    factors = [took(size) / cost.cpu_matmul_seconds(shapes.spec, size, size, size) for size in (99, 100, 299, 300)]
    assert factors == pytest.approx([1, 2, 2, 6], rel=1e-3)
    y = torch.ones(300, 300, device="cuda")
    y @ y
    (product,) = [kernel.seconds for kernel in shapes.timeline if kernel.name == "aten::mm"]
    assert product == pytest.approx(5 * cost.matmul_seconds(shapes.spec, 300, 300, 300))
    with pytest.raises(ValueError, match="positive"):
        shapes.inject_host_slowdown(0.0)


def test_the_same_program_takes_the_same_time_twice() -> None:
    def run() -> tuple[list[vgpu.Kernel], list[object], float]:
        with vgpu.attach("T4") as gpu:
            torch.manual_seed(0)
            model = torch.nn.Linear(16, 16).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(3):
                model(torch.randn(4, 16, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            return gpu.timeline, list(gpu.memory_timeline), time.perf_counter()

    assert run() == run()


def test_utilization_is_the_busy_share_of_the_device(shapes: vgpu.VirtualGPU) -> None:
    x = _warm(4096)
    busy, began = shapes.queue.busy_seconds, shapes.now()
    for _ in range(200):
        x @ x
    torch.cuda.synchronize()
    assert (shapes.queue.busy_seconds - busy) / (shapes.now() - began) > 0.99
    assert 0 < shapes.utilization < 1
