"""Streams and events: order, overlap, waiting, elapsed times, and their errors."""

from __future__ import annotations

import time

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import LONG_SECONDS, cycles_for, host_seconds
from tests.conformance.programs import program

STREAMS = "PyTorch CUDA semantics notes: CUDA streams"
EVENT = "torch docs: torch.cuda.Event; c10/cuda/CUDAEvent.h"
STREAM = "torch docs: torch.cuda.Stream"


def timed() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


@program(EVENT)
def test_events_measure_device_time(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    start, middle, end = timed(), timed(), timed()
    start.record()
    torch.cuda._sleep(cycles)
    middle.record()
    torch.cuda._sleep(2 * cycles)
    end.record()
    torch.cuda.synchronize()
    first, second = start.elapsed_time(middle), middle.elapsed_time(end)
    assert isinstance(first, float)
    assert first > 0.5e3 * LONG_SECONDS
    assert 1.5 < second / first < 2.5
    assert start.elapsed_time(end) == pytest.approx(first + second, rel=0.05)


@program(EVENT)
def test_events_do_not_wait_when_they_are_recorded(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    event = torch.cuda.Event()
    assert event.query()  # never recorded: nothing to wait for
    torch.cuda._sleep(cycles)
    start = time.perf_counter()
    event.record()
    assert time.perf_counter() - start < 0.3 * LONG_SECONDS
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert time.perf_counter() - start > 0.3 * LONG_SECONDS


@program("c10/cuda/CUDAEvent.h: elapsed_time")
def test_elapsed_time_checks_its_events(cuda: Gpu) -> None:
    first, second = timed(), timed()
    with pytest.raises(ValueError, match=r"Both events must be recorded before calculating elapsed time."):
        first.elapsed_time(second)
    plain, other = torch.cuda.Event(), torch.cuda.Event()
    plain.record()
    other.record()
    with pytest.raises(ValueError, match=r"Both events must be created with argument 'enable_timing=True'."):
        plain.elapsed_time(other)
    cycles = cycles_for(LONG_SECONDS)
    first.record()
    torch.cuda._sleep(cycles)
    second.record()
    with pytest.raises(RuntimeError, match=r"Both events must be completed before calculating elapsed time."):
        first.elapsed_time(second)
    second.synchronize()
    assert first.elapsed_time(second) > 0 > second.elapsed_time(first)


@program("CUDA C++ Programming Guide: Asynchronous Concurrent Execution; c10/cuda/CUDAStream.h")
def test_two_streams_overlap(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def together() -> None:
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)

    def in_turn() -> None:
        for _ in streams:
            torch.cuda._sleep(cycles)

    together()
    assert host_seconds(together, finish=True) < 0.75 * host_seconds(in_turn, finish=True)


@program(f"{STREAM}: wait_stream, wait_event")
def test_a_stream_can_wait_for_another(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    side = torch.cuda.Stream()
    torch.cuda._sleep(cycles)
    side.wait_stream(torch.cuda.current_stream())
    assert not side.query()
    torch.cuda.synchronize()
    torch.cuda._sleep(cycles)
    with torch.cuda.stream(side):
        marker = side.record_event()
    marker.synchronize()  # nothing before it on the side stream
    assert not torch.cuda.default_stream().query()
    done = torch.cuda.default_stream().record_event()
    side.wait_event(done)
    with torch.cuda.stream(side):
        after = torch.cuda.Event()
        after.record()
    after.synchronize()
    assert done.query()


@program(f"{STREAMS}: the consumer waits for the producer's stream")
def test_results_cross_streams_after_a_wait(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    side = torch.cuda.Stream()
    x = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(cycles)
    x.fill_(2.0)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 3
    torch.cuda.current_stream().wait_stream(side)
    y.record_stream(torch.cuda.current_stream())
    assert y.sum().item() == 6000


@program(f"{STREAMS}; torch docs: torch.cuda.stream, current_stream, default_stream")
def test_the_current_stream(cuda: Gpu) -> None:
    default = torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default
    assert default.cuda_stream == 0
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    assert side != default
    assert side != other
    assert side.cuda_stream != 0
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        with torch.cuda.stream(other):
            assert torch.cuda.current_stream() == other
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == default
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(default)
    assert side.device == torch.device("cuda", 0)
    assert hash(torch.cuda.default_stream()) == hash(default)
    assert "torch.cuda.Stream device=cuda:0 cuda_stream=0x0" in repr(default)


@program("torch docs: torch.Stream, torch.Event, torch.accelerator")
def test_streams_and_events_without_a_vendors_name(cuda: Gpu) -> None:
    stream = torch.Stream(device="cuda")
    assert stream.device == torch.device("cuda", 0)
    event = torch.Event(device="cuda", enable_timing=True)
    event.record()
    event.synchronize()
    assert event.query()
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(10, device="cuda") + 1
    stream.synchronize()
    assert x.sum().item() == 20


@program(f"{STREAM}: synchronize, query")
def test_waiting_for_one_stream_only(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    side = torch.cuda.Stream()
    torch.cuda._sleep(4 * cycles)
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles // 4)
    side.synchronize()
    assert side.query()
    assert not torch.cuda.default_stream().query()
    torch.cuda.default_stream().synchronize()
    assert torch.cuda.default_stream().query()


@program("torch docs: Autograd mechanics: Stream semantics of backward passes")
def test_backward_runs_on_the_forward_passes_stream(cuda: Gpu) -> None:
    side = torch.cuda.Stream()
    weight = torch.ones(100, device="cuda", requires_grad=True)
    streams = []
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = weight * 2
        y.register_hook(lambda gradient: streams.append(torch.cuda.current_stream()))
        loss = y.sum()
    torch.cuda.current_stream().wait_stream(side)
    loss.backward()
    assert streams == [side]
    assert weight.grad.sum().item() == 200


@program("c10/cuda/CUDAStream.cpp: kStreamsPerPool = 32, handed out in turn")
def test_streams_come_from_a_pool(cuda: Gpu) -> None:
    handles = {torch.cuda.Stream().cuda_stream for _ in range(100)}
    assert len(handles) == 32


@program(f"{EVENT}: record, wait")
def test_an_event_can_be_recorded_again_and_waited_for(cuda: Gpu) -> None:
    cycles = cycles_for(LONG_SECONDS)
    event = torch.cuda.Event(blocking=True)
    event.record()
    event.synchronize()
    torch.cuda._sleep(cycles)
    event.record(torch.cuda.current_stream())
    assert not event.query()
    side = torch.cuda.Stream()
    event.wait(side)
    assert not side.query()
    side.synchronize()
    assert event.query()
