"""torch.profiler on the GPU: operations, kernels, regions, schedules, tables and traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from tests.conformance.machine import Gpu
from tests.conformance.measure import MIB
from tests.conformance.programs import program

PROFILER = "torch docs: torch.profiler"
RECIPE = "PyTorch recipe: Profiler"
BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def work(size: int = 256) -> torch.Tensor:
    x = torch.ones(size, size, device="cuda")
    return (x @ x).relu().sum()


def averages(recorded: profile) -> dict[str, Any]:
    """The host's averages by name: regions have an entry on the device too."""
    return {event.key: event for event in recorded.key_averages() if event.device_type == DeviceType.CPU}


@program(f"{PROFILER}; {RECIPE}")
def test_operations_and_their_device_time(cuda: Gpu) -> None:
    work()
    with profile(activities=BOTH) as recorded:
        work()
    events = averages(recorded)
    assert {"aten::mm", "aten::relu", "aten::sum"} <= events.keys()
    product = events["aten::mm"]
    assert product.count == 1
    assert product.self_device_time_total > 0
    assert product.device_time_total >= product.self_device_time_total
    assert product.cpu_time_total > 0
    assert events["aten::relu"].device_time_total > 0


@program(f"{PROFILER}; {RECIPE}: self times leave out what an operation calls")
def test_an_operation_that_calls_another_is_shown_around_it(cuda: Gpu) -> None:
    layer = torch.nn.Linear(64, 64).cuda()
    inputs = torch.ones(64, 64, device="cuda")
    layer(inputs) @ inputs  # the first time, libraries clear their workspaces
    with profile(activities=BOTH) as recorded:
        layer(inputs) @ inputs
    events = averages(recorded)
    for outer, inner in (("aten::linear", "aten::addmm"), ("aten::matmul", "aten::mm")):
        assert events[outer].count == events[inner].count == 1
        assert events[outer].self_device_time_total == 0
        assert events[outer].device_time_total == events[inner].self_device_time_total > 0
        assert 0 < events[outer].self_cpu_time_total < events[outer].cpu_time_total
        assert events[outer].cpu_time_total >= events[inner].cpu_time_total


@program(f"{PROFILER}: events of device type CUDA are kernels")
def test_kernels_are_events_of_the_device(cuda: Gpu) -> None:
    work()
    with profile(activities=BOTH) as recorded:
        work()
        torch.cuda.synchronize()
    kinds = {event.device_type for event in recorded.events()}
    assert kinds == {DeviceType.CPU, DeviceType.CUDA}
    kernels = [event for event in recorded.events() if event.device_type == DeviceType.CUDA]
    assert len(kernels) >= 4
    assert all(kernel.time_range.elapsed_us() > 0 for kernel in kernels)


@program("aten/src/ATen/native/cuda/Copy.cu: cudaMemcpyAsync for equal dtypes and layouts, else a kernel")
def test_copies_have_the_names_of_memcpy(cuda: Gpu) -> None:
    host, source, target = torch.ones(64, 64), torch.ones(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")

    def names(call: Callable[[], object]) -> tuple[list[str], list[str]]:
        with profile(activities=BOTH) as recorded:
            call()
            torch.cuda.synchronize()
        events = recorded.events()
        return (
            [event.name for event in events if event.device_type == DeviceType.CUDA],
            [event.name for event in events if event.device_type == DeviceType.CPU],
        )

    for call, kernel in (
        (lambda: target.copy_(source), "DtoD (Device -> Device)"),
        (source.clone, "DtoD (Device -> Device)"),
        (lambda: target.t().copy_(source.t()), "DtoD (Device -> Device)"),
        (host.cuda, "HtoD (Pageable -> Device)"),
        (source.cpu, "DtoH (Device -> Pageable)"),
        (lambda: target.copy_(host), "HtoD (Pageable -> Device)"),
    ):
        on_device, on_host = names(call)
        assert on_device == [f"Memcpy {kernel}"]
        assert "aten::copy_" in on_host
        assert "cudaMemcpyAsync" in on_host
        assert ("cudaStreamSynchronize" in on_host) == ("Pageable" in kernel)
    for call in (
        lambda: target.copy_(source.t()), lambda: source.t().contiguous(), source.half, source[:, ::2].clone,
        lambda: target.copy_(source[:1]),
    ):  # fmt: skip
        on_device, on_host = names(call)
        assert len(on_device) == 1
        assert "Memcpy" not in on_device[0]
        assert {"aten::copy_", "cudaLaunchKernel"} <= set(on_host)
    for call in (host.cuda, lambda: host.to("cuda"), source.cpu, source.half):
        on_host = names(call)[1]
        assert on_host.count("aten::to") == on_host.count("aten::_to_copy") == on_host.count("aten::copy_") == 1
        assert on_host.index("aten::to") < on_host.index("aten::_to_copy") < on_host.index("aten::copy_")


@program("torch docs: torch.profiler.record_function")
def test_regions_have_names_and_nest(cuda: Gpu) -> None:
    work()
    with profile(activities=BOTH) as recorded, record_function("outer"):
        with record_function("inner"):
            work()
        work()
    events = averages(recorded)
    assert events["outer"].count == events["inner"].count == 1
    assert events["outer"].cpu_time_total > events["inner"].cpu_time_total > 0
    assert events["aten::mm"].count == 2

    @record_function("decorated")
    def function() -> None:
        work()

    with profile(activities=BOTH) as recorded:
        function()
        function()
    assert averages(recorded)["decorated"].count == 2


@program(f"{RECIPE}: sort_by, row_limit")
def test_the_table_is_sorted_by_the_costliest(cuda: Gpu) -> None:
    small, large = torch.ones(64, 64, device="cuda"), torch.ones(1024, 1024, device="cuda")
    large @ large
    with profile(activities=BOTH) as recorded:
        large @ large
        small + small
    table = recorded.key_averages().table(sort_by="cuda_time_total", row_limit=10)
    assert "Self CUDA" in table
    assert "CPU total" in table
    assert 0 < table.index("aten::mm") < table.index("aten::add")
    events = averages(recorded)
    assert events["aten::mm"].self_device_time_total > events["aten::add"].self_device_time_total


@program(f"{PROFILER}: schedule(wait, warmup, active, repeat), on_trace_ready, step")
def test_a_schedule_records_the_active_steps_only(cuda: Gpu, tmp_path: Path) -> None:
    step_counts: list[dict[str, int]] = []

    def ready(recorded: profile) -> None:
        step_counts.append({event.key: event.count for event in recorded.key_averages()})
        recorded.export_chrome_trace(str(tmp_path / f"trace{len(step_counts)}.json"))

    with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as p:
        for _ in range(8):
            work()
            p.step()
    assert [counts["aten::mm"] for counts in step_counts] == [2, 2]
    assert [counts["ProfilerStep*"] for counts in step_counts] == [2, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace1.json", "trace2.json"]


@program(f"{PROFILER}: export_chrome_trace; Trace Event Format")
def test_a_trace_has_host_and_device_events(cuda: Gpu, tmp_path: Path) -> None:
    work()
    with profile(activities=BOTH) as recorded, record_function("region"):
        work()
        torch.ones(1000, device="cuda").cpu()
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X"]
    assert all(event["dur"] >= 0 for event in spans)
    categories = {event.get("cat") for event in spans}
    assert {"cpu_op", "kernel", "user_annotation", "gpu_memcpy"} <= categories
    names = {event["name"] for event in spans}
    assert {"aten::mm", "region"} <= names
    assert any(name.startswith("Memcpy DtoH") for name in names)


@program(f"{PROFILER}: profile_memory, record_shapes, with_flops")
def test_memory_shapes_and_flops(cuda: Gpu) -> None:
    work()
    with profile(activities=BOTH, profile_memory=True, record_shapes=True, with_flops=True) as recorded:
        x = torch.empty(MIB, device="cuda")
        work(128)
        work(256)
    events = averages(recorded)
    assert events["aten::empty"].self_device_memory_usage >= x.nbytes
    assert events["aten::mm"].flops == 2 * 128**3 + 2 * 256**3
    by_shape = [event for event in recorded.key_averages(group_by_input_shape=True) if event.key == "aten::mm"]
    assert sorted(str(event.input_shapes) for event in by_shape) == [
        "[[128, 128], [128, 128]]", "[[256, 256], [256, 256]]",
    ]  # fmt: skip


@program(
    f"{PROFILER}: backward operations are recorded under the names of autograd's functions",
    differs="autograd's functions, such as AddmmBackward0, are not recorded as events",
)
def test_backward_and_the_optimizer_are_recorded(cuda: Gpu) -> None:
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(8, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    with profile(activities=BOTH) as recorded:
        step()
    names = averages(recorded).keys()
    assert any("AddmmBackward0" in name for name in names)
    assert any(name.startswith("Optimizer.step#SGD.step") for name in names)
    assert any(name.startswith("Optimizer.zero_grad#SGD.zero_grad") for name in names)
    assert "aten::_foreach_add_" in names


@program("torch docs: torch.cuda.nvtx, torch.cuda.profiler")
def test_nvtx_ranges_are_accepted(cuda: Gpu) -> None:
    assert torch.cuda.nvtx.range_push("outer") in (-2, 0)  # -2: no tool listens
    torch.cuda.nvtx.mark("here")
    with torch.cuda.nvtx.range("inner"):
        value = work().item()
    assert torch.cuda.nvtx.range_pop() in (-2, 0)
    assert value == 256**3
    with torch.autograd.profiler.emit_nvtx():
        assert work().item() == 256**3
