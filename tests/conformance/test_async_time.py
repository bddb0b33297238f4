"""Launches return at once; what waits, what does not, and what takes longer than what."""

from __future__ import annotations

import time

import torch
import torch.utils.benchmark

from tests.conformance.machine import Gpu
from tests.conformance.measure import LONG_SECONDS, MIB, cycles_for, device_seconds, host_seconds, waits
from tests.conformance.programs import program

ASYNCHRONOUS = "PyTorch CUDA semantics notes: Asynchronous execution"


@program(ASYNCHRONOUS)
def test_a_launch_returns_before_the_kernel_is_done(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    launch = host_seconds(lambda: torch.cuda._sleep(cycles))
    torch.cuda.synchronize()
    whole = host_seconds(lambda: torch.cuda._sleep(cycles), finish=True)
    assert launch < 0.2 * whole
    assert whole > 0.5 * LONG_SECONDS


@program(ASYNCHRONOUS)
def test_operations_do_not_wait_for_the_device(cuda: Gpu) -> None:
    x = torch.ones(64, 64, device="cuda")
    index = torch.tensor([1, 2], device="cuda")
    for operation in (
        lambda: x + 1,
        lambda: x @ x,
        lambda: x.sum(),
        lambda: torch.zeros(3, device="cuda"),
        lambda: x[index],
        lambda: x.topk(2),
        lambda: torch.where(x > 0, x, 0.0),
        lambda: torch.cat([x, x]),
        lambda: x.clone().fill_(3.0),
        lambda: x.to(torch.float16),
        lambda: torch.rand(10, device="cuda"),
        lambda: x.masked_fill(x > 0, 1.0),
        lambda: x.shape,
    ):
        assert not waits(operation)


@program(f"{ASYNCHRONOUS}; torch docs: Tensor.item")
def test_reading_a_value_waits(cuda: Gpu) -> None:
    x = torch.ones(64, device="cuda")
    for read in (
        lambda: x[0].item(),
        lambda: float(x.sum()),
        lambda: bool(x[0] > 0),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: str(x),
        lambda: torch.equal(x, x + 0),
        lambda: torch.allclose(x, x),
        lambda: x.isnan().any().item(),
    ):
        assert waits(read)


@program("torch docs: torch.nonzero: on CUDA it synchronises host and device")
def test_sizes_that_depend_on_values_make_the_host_wait(cuda: Gpu) -> None:
    x = torch.arange(64.0, device="cuda")
    for operation in (
        lambda: x.nonzero(),
        lambda: x[x > 3],
        lambda: torch.masked_select(x, x > 3),
        lambda: torch.unique(x),
        lambda: torch.where(x > 3),
        lambda: x.long().bincount(),
        lambda: torch.repeat_interleave(x, x.long()),
    ):
        assert waits(operation)


@program("torch docs: torch.cuda.synchronize")
def test_synchronize_waits_for_everything(cuda: Gpu) -> None:
    side = torch.cuda.Stream()
    cycles = cycles_for(LONG_SECONDS)
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles)
    start = time.perf_counter()
    torch.cuda.synchronize()
    assert time.perf_counter() - start > 0.5 * LONG_SECONDS
    assert side.query()
    again = host_seconds(torch.cuda.synchronize)
    assert again < 0.1 * LONG_SECONDS


@program(f"{ASYNCHRONOUS}: the effect of time measurements without synchronisation")
def test_timing_without_synchronisation_is_too_short(cuda: Gpu) -> None:
    x = torch.ones(1024, 1024, device="cuda")

    def work() -> None:
        for _ in range(5):
            torch.mm(x, x)

    work()
    naive = min(host_seconds(work) for _ in range(2))
    right = min(host_seconds(work, finish=True) for _ in range(2))
    assert naive < right


@program("Python docs: time; all clocks of the process tell the same time")
def test_all_clocks_agree(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    torch.cuda.synchronize()
    clocks = (time.perf_counter, time.monotonic, time.time, lambda: time.perf_counter_ns() / 1e9)
    before = [clock() for clock in clocks]
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    passed = [clock() - start for clock, start in zip(clocks, before, strict=True)]
    assert min(passed) > 0.5 * LONG_SECONDS
    assert max(passed) < 1.5 * min(passed)


@program(f"{ASYNCHRONOUS}: the host goes on while the device works")
def test_the_host_sleeps_while_the_device_works(cuda: Gpu) -> None:
    cycles = cycles_for(0.1)

    def both() -> None:
        torch.cuda._sleep(cycles)
        time.sleep(0.1)

    alone = host_seconds(lambda: torch.cuda._sleep(cycles), finish=True)
    assert host_seconds(both, finish=True) < 0.8 * (alone + 0.1)


@program("torch docs: torch.utils.benchmark.Timer synchronises CUDA")
def test_the_benchmark_timer_waits_for_the_device(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    timer = torch.utils.benchmark.Timer("torch.cuda._sleep(cycles)", globals={"torch": torch, "cycles": cycles})
    measured = timer.timeit(3)
    assert measured.mean > 0.5 * LONG_SECONDS
    assert measured.number_per_run == 3


@program("CUDA C++ Best Practices Guide: 2 n^3 operations of a product")
def test_larger_products_take_longer(cuda: Gpu) -> None:
    small, large = torch.ones(128, 128, device="cuda"), torch.ones(2048, 2048, device="cuda")
    assert device_seconds(lambda: large @ large) > 4 * device_seconds(lambda: small @ small)


@program("NVIDIA T4, A100, H100 datasheets: FP16 tensor cores against FP32", capability=(7, 0))
def test_products_in_float16_are_faster(cuda: Gpu) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    low = x.half()
    assert device_seconds(lambda: low @ low) < 0.67 * device_seconds(lambda: x @ x)


@program("CUDA C++ Best Practices Guide: Bandwidth")
def test_elementwise_time_follows_the_bytes(cuda: Gpu) -> None:
    small, large = torch.ones(MIB, device="cuda"), torch.ones(64 * MIB, device="cuda")
    seconds = device_seconds(lambda: large.add_(1))
    assert seconds > 8 * device_seconds(lambda: small.add_(1))
    low = large.half()
    assert device_seconds(lambda: low.add_(1)) < 0.75 * seconds


@program("CUDA C++ Best Practices Guide: launch overhead; small kernels are launch-bound")
def test_many_small_operations_are_bound_by_launches(cuda: Gpu) -> None:
    parts = [torch.ones(16, device="cuda") for _ in range(256)]
    whole = torch.ones(16 * 256, device="cuda")

    def separately() -> None:
        for part in parts:
            part.add_(1)

    separately()
    single = min(host_seconds(lambda: whole.add_(1), finish=True) for _ in range(3))
    many = min(host_seconds(separately, finish=True) for _ in range(3))
    together = min(host_seconds(lambda: torch._foreach_add_(parts, 1), finish=True) for _ in range(3))
    assert many > 5 * single
    assert together < 0.5 * many


@program("torch docs: Tensor.is_contiguous; CUDA C++ Best Practices Guide: views cost no kernel")
def test_views_cost_nothing_on_the_device(cuda: Gpu) -> None:
    x = torch.ones(4096, 4096, device="cuda")
    view = device_seconds(lambda: x.t().view(4096, 64, 64)[1:].transpose(0, 1))
    assert view < 0.5 * device_seconds(lambda: x.t().contiguous())


@program("Python docs: time.process_time; CUDA runtime API: cudaDeviceScheduleAuto")
def test_a_processor_is_busy_while_it_waits_for_the_gpu_and_not_while_it_sleeps(cuda: Gpu) -> None:
    clocks = (time.process_time, time.thread_time, lambda: time.process_time_ns() * 1e-9)
    for clock in clocks:
        before = clock()
        time.sleep(LONG_SECONDS)
        assert clock() - before < 0.2 * LONG_SECONDS
    before = time.process_time()
    torch.cuda._sleep(cycles_for(LONG_SECONDS))
    torch.cuda.synchronize()
    assert time.process_time() - before > 0.5 * LONG_SECONDS
