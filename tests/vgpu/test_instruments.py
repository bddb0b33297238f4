"""NVML, profiler and summary; expectations from nvml.h and the torch.profiler documentation."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

import vgpu
from vgpu.device import cost
from vgpu.runtime.views import report


def test_nvml_reports_the_virtual_gpu(gpu: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla T4 (simulated)"
    assert "simulated" in pynvml.nvmlSystemGetDriverVersion()
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    _x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert memory.used - before == (64 << 20) + gpu.spec.context_bytes
    assert memory.total == gpu.spec.memory_bytes == memory.used + memory.free


@pytest.mark.parametrize("values", [True, False])
def test_a_region_that_is_older_than_the_virtual_gpu_is_recorded(values: bool) -> None:
    region = torch.profiler.record_function("a decorator's")

    @region
    def multiply(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with vgpu.attach("T4", values=values):
        with torch.profiler.profile() as recorded:
            multiply(torch.ones(4, 4, device="cuda"))
        assert [event.name for event in recorded.events()].count("a decorator's") == 1
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as recorded:
        multiply(torch.ones(4, 4))
    assert [event.name for event in recorded.events()].count("a decorator's") == 1, "detached, it is PyTorch's again"


def test_functions_of_nvml_that_a_program_took_by_name_before_are_the_virtual_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml = pytest.importorskip("pynvml")
    (tmp_path / "program_of_nvml.py").write_text("from pynvml import nvmlDeviceGetCount, nvmlInit, nvmlShutdown\n")
    monkeypatch.syspath_prepend(tmp_path)
    program = importlib.import_module("program_of_nvml")
    try:
        with vgpu.attach("T4", gpus=2):
            program.nvmlInit()
            assert program.nvmlDeviceGetCount() == 2
            program.nvmlShutdown()
        assert program.nvmlInit is pynvml.nvmlInit, "detached, it is NVIDIA's again"
    finally:
        del sys.modules["program_of_nvml"]


def test_nvml_utilisation_follows_the_work(shapes: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    x = torch.ones(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu < 5
    idle = pynvml.nvmlDeviceGetPowerUsage(handle)
    for _ in range(60):
        x @ x
    torch.cuda.synchronize()
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > 90
    assert idle < pynvml.nvmlDeviceGetPowerUsage(handle) <= pynvml.nvmlDeviceGetPowerManagementLimit(handle)


def test_an_nvml_function_that_is_not_simulated_says_not_supported(gpu: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError, match="Not Supported"):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))


def _profiled(**options: object) -> torch.profiler.profile:
    x = torch.ones(1024, 1024, device="cuda")
    x @ x
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **options) as profile:
        for _ in range(3):
            with torch.profiler.record_function("products"):
                x @ x
            x.relu()
    return profile


def test_the_profiler_knows_the_device_time_of_each_operation(shapes: vgpu.VirtualGPU) -> None:
    averages = {item.key: item for item in _profiled().key_averages()}
    product = averages["aten::mm"]
    microseconds = 1e6 * cost.matmul_seconds(shapes.spec, 1024, 1024, 1024)
    assert product.count == 3
    assert product.self_device_time_total == pytest.approx(3 * microseconds)
    assert product.cpu_time_total == pytest.approx(3e6 * cost.launch_seconds(shapes.spec, "product"))
    assert averages["products"].device_time_total == pytest.approx(3 * microseconds)


def test_the_profilers_table_is_pytorchs_and_says_simulated(shapes: vgpu.VirtualGPU) -> None:
    table = _profiled().key_averages().table(sort_by="self_cuda_time_total", row_limit=5)
    assert table.startswith("Simulated by vgpu")
    assert "Self CUDA" in table
    assert "aten::mm" in table


def test_the_profilers_schedule_skips_and_repeats(shapes: vgpu.VirtualGPU) -> None:  # torch.profiler.schedule
    counts: list[int] = []

    def ready(profile: torch.profiler.profile) -> None:
        counts.append(sum(item.count for item in profile.key_averages() if item.key == "aten::relu"))

    x = torch.ones(8, device="cuda")
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with torch.profiler.profile(schedule=plan, on_trace_ready=ready) as profile:
        for _ in range(10):
            x.relu()
            profile.step()
    assert counts == [2, 2]


def test_the_exported_trace_has_host_and_device_and_says_simulated(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    _profiled(record_shapes=True).export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["simulated"] is True
    categories = [event.get("cat") for event in trace["traceEvents"]]
    assert categories.count("kernel") == 6
    assert categories.count("user_annotation") == 3


def test_the_summary_names_the_costliest_operation_first(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    x @ x
    lines = shapes.summary().splitlines()
    assert "imulated" in lines[0]
    table = lines[lines.index(next(line for line in lines if line.startswith("---"))) + 1 :]
    assert table[0].startswith("aten::mm")
    assert max(map(len, lines)) <= 100


# ---- summary --------------------------------------------------------------------------------------------------------


def test_the_summary_says_what_bounds_each_operation(shapes: vgpu.VirtualGPU) -> None:
    big, small = torch.ones(4096, 4096, device="cuda"), torch.ones(8, device="cuda")
    big @ big
    big.relu()
    small.sigmoid()
    torch.ones(1 << 20).cuda()
    bounds = {entry.name: entry.bound for entry in report.costs(shapes.spec, shapes.timeline)}
    assert bounds["aten::mm"] == "compute"
    assert bounds["aten::relu"] == "bandwidth"
    assert bounds["aten::sigmoid"] == "launch"
    assert bounds["Memcpy HtoD (Pageable -> Device)"] == "transfer"


def test_the_rates_of_the_summary_are_those_of_the_cost_model(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(2048, 2048, device="cuda", dtype=torch.float16)
    x @ x
    (product,) = [entry for entry in report.costs(shapes.spec, shapes.timeline) if entry.name == "aten::mm"]
    assert product.precision == "fp16"
    assert product.flops == 2 * 2048**3
    assert product.seconds == cost.matmul_seconds(shapes.spec, 2048, 2048, 2048, "float16")


def test_the_hosts_time_adds_up(gpu: vgpu.VirtualGPU) -> None:
    x = torch.ones(512, 512, device="cuda")
    for _ in range(20):
        x = x + 1
    x.sum().item()
    torch.ones(64, 64) @ torch.ones(64, 64)
    seconds = report.host_seconds(gpu)
    assert set(seconds) >= {"start", "launch", "wait", "operation"}
    assert sum(seconds.values()) == pytest.approx(gpu.now(), rel=1e-6)
    assert seconds["start"] == pytest.approx(gpu.spec.context_seconds)


def test_a_host_that_waits_for_the_launch_queue_is_not_launching(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    x @ x
    for _ in range(1100):  # the queue takes 1024
        x @ x
    assert report.host_seconds(shapes)["wait"] > 50 * cost.matmul_seconds(shapes.spec, 2048, 2048, 2048)
    launched = [kernel for kernel in shapes.timeline if kernel.name == "aten::mm"]
    assert all(kernel.host_seconds == cost.launch_seconds(shapes.spec, "product") for kernel in launched)


def test_the_summary_of_nothing_says_so(gpu: vgpu.VirtualGPU) -> None:
    assert "no kernel was launched" in gpu.summary()


# ---- profiler -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["cuda_time_total", "device_time_total", "self_cuda_time_total", "cpu_time_total"])
def test_tables_sort_by_every_documented_key(shapes: vgpu.VirtualGPU, key: str) -> None:
    table = _profiled(with_flops=True, profile_memory=True).key_averages().table(sort_by=key, row_limit=3)
    assert "imulated" in table
    assert "FLOPs" in table


def test_the_profiler_groups_by_input_shape(shapes: vgpu.VirtualGPU) -> None:
    a, b = torch.ones(16, 16, device="cuda"), torch.ones(32, 32, device="cuda")
    with torch.profiler.profile(record_shapes=True) as profile:
        a.relu()
        b.relu()
        b.relu()
    averages = profile.key_averages(group_by_input_shape=True)
    assert {str(item.input_shapes): item.count for item in averages if item.key == "aten::relu"} == {
        "[[16, 16]]": 1,
        "[[32, 32]]": 2,
    }


def test_the_profiler_counts_flops_only_if_asked(shapes: vgpu.VirtualGPU) -> None:
    with_flops = {item.key: item.flops for item in _profiled(with_flops=True).key_averages()}
    assert with_flops["aten::mm"] == 3 * 2 * 1024**3
    assert not {item.key: item.flops for item in _profiled().key_averages()}["aten::mm"]


def test_the_profiler_tells_the_memory_of_operations(shapes: vgpu.VirtualGPU) -> None:
    keep = []
    with torch.profiler.profile(profile_memory=True) as profile:
        keep.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda").fill_(1))
        keep.append(keep[0].clone())
    averages = {item.key: item for item in profile.key_averages()}
    assert averages["aten::clone"].device_memory_usage == 1 << 20


def _called_here(x: torch.Tensor) -> None:
    x.relu()


def test_stacks_name_the_program_and_not_the_simulator(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    x = torch.ones(8, device="cuda")
    with torch.profiler.profile(with_stack=True) as profile:
        _called_here(x)
    (event,) = [event for event in profile.events() if event.name == "aten::relu"]
    assert "_called_here" in event.stack[0]
    assert not any("/vgpu/function_mode.py" in line for line in event.stack)
    profile.export_stacks(str(tmp_path / "stacks.txt"), "self_cpu_time_total")
    assert "_called_here" in (tmp_path / "stacks.txt").read_text()


def test_the_tensorboard_handler_writes_a_trace_per_cycle(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    x = torch.ones(8, device="cuda")
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2)
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path / "log"), use_gzip=True)
    with torch.profiler.profile(schedule=plan, on_trace_ready=handler) as profile:
        for _ in range(4):
            x.relu()
            profile.step()
    files = sorted((tmp_path / "log").glob("*.pt.trace.json.gz"))
    assert len(files) == 2
    trace = json.loads(gzip.decompress(files[0].read_bytes()))
    assert trace["simulated"] is True
    assert [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"] == ["aten::relu"]


def test_events_of_several_cycles_add_up_with_acc_events(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(8, device="cuda")
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2)
    with torch.profiler.profile(schedule=plan, acc_events=True) as profile:
        for _ in range(4):
            x.relu()
            profile.step()
    assert {item.key: item.count for item in profile.key_averages()}["aten::relu"] == 2


def test_metadata_of_the_program_gets_into_the_trace(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(8, device="cuda")
        profile.add_metadata("run", "first")
        profile.add_metadata_json("sizes", "[1, 2]")
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert (trace["run"], trace["sizes"]) == ("first", [1, 2])


@pytest.mark.parametrize("name", ["memory.json", "memory.json.gz", "memory.html"])
def test_the_memory_timeline_is_exported(shapes: vgpu.VirtualGPU, tmp_path: Path, name: str) -> None:
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as profile:
        keep = torch.ones(1 << 20, device="cuda")
    path = tmp_path / name
    profile.export_memory_timeline(str(path), device="cuda:0")
    if name.endswith("html"):
        assert "simulated" in path.read_text()
        return
    data = path.read_bytes()
    times, sizes = json.loads(gzip.decompress(data) if name.endswith("gz") else data)
    assert len(times) == len(sizes)
    assert sum(sizes[-1]) == keep.nbytes


def test_the_memory_timeline_wants_its_options_as_pytorch_does(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(8, device="cuda")
    with pytest.raises(ValueError, match=r"record_shapes=True, profile_memory=True, with_stack=True required"):
        profile.export_memory_timeline(str(tmp_path / "memory.json"))


def test_collection_is_toggled(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(8, device="cuda")
    with torch.profiler.profile() as profile:
        x.relu()
        profile.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
        x.sigmoid()
    names = [event.name for event in profile.events()]
    assert "simulated_relu_kernel" in names
    assert "aten::sigmoid" in names
    assert "simulated_sigmoid_kernel" not in names


def test_the_autograd_profiler_works_as_well(shapes: vgpu.VirtualGPU) -> None:
    x = torch.ones(1024, 1024, device="cuda")
    with torch.autograd.profiler.profile(use_device="cuda") as profile:
        x @ x
    assert profile.key_averages().table(sort_by="self_cuda_time_total").startswith("Simulated")
    assert profile.self_cpu_time_total > 0
    (product,) = [event for event in profile.function_events if event.name == "aten::mm"]
    assert product.device_time_total == pytest.approx(1e6 * cost.matmul_seconds(shapes.spec, 1024, 1024, 1024))


def test_a_disabled_autograd_profile_records_nothing(shapes: vgpu.VirtualGPU) -> None:
    with torch.autograd.profiler.profile(enabled=False):
        torch.ones(8, device="cuda")
    assert shapes.recorder is None


def test_nvtx_ranges_are_kept_as_regions(shapes: vgpu.VirtualGPU) -> None:
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("step {}", 3):
        assert torch.cuda.nvtx.range_push("inner") == -2  # as an H100 says where no tool listens
        torch.ones(8, device="cuda")
        assert torch.cuda.nvtx.range_pop() == -2
    regions = [span for span in shapes.clock.spans if span.kind == "region"]
    assert [span.name for span in regions] == ["inner", "step 3"]
    assert regions[1].start <= regions[0].start < regions[0].end <= regions[1].end


def test_what_the_profiler_cannot_do_it_says(shapes: vgpu.VirtualGPU, tmp_path: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    with (
        pytest.raises(vgpu.Unsupported, match="ExecutionTraceObserver"),
        torch.profiler.profile(execution_trace_observer=observer),
    ):
        pass
    with pytest.raises(vgpu.Unsupported, match="emit_itt"):
        torch.autograd.profiler.emit_itt()


# ---- NVML -----------------------------------------------------------------------------------------------------------


def test_nvml_wants_to_be_initialised(gpu: vgpu.VirtualGPU) -> None:  # nvml.h, nvmlInit_v2
    pynvml = pytest.importorskip("pynvml")
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_nvml_finds_gpus_by_index_uuid_and_bus(gpu: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle)) is handle
    assert pynvml.nvmlDeviceGetHandleByPciBusId(pynvml.nvmlDeviceGetPciInfo(handle).busId) is handle
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName("no handle")


@pytest.mark.parametrize("name", ["T4", "A100-40GB", "H100", "H200"])
def test_nvml_tells_what_monitors_ask(name: str) -> None:
    pynvml = pytest.importorskip("pynvml")
    with vgpu.attach(name, values=False) as gpu:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        x = torch.ones(8192, 8192, device="cuda")
        for _ in range(60):
            x @ x
        torch.cuda.synchronize()
        limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
        low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        assert low < high == limit == 1000 * gpu.spec.power_watts[1]
        clocks = [pynvml.nvmlDeviceGetMaxClockInfo(handle, kind) for kind in range(3)]
        assert clocks[0] == clocks[1] == gpu.spec.clock_hertz / 1e6
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == clocks[1]
        assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
        assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == 0
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) > 1000 * gpu.spec.power_watts[0] * gpu.now() * 0.99
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert memory.used + memory.free + memory.reserved == memory.total
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert process.usedGpuMemory == memory.used
        assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0) == 0
        assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle) in (3, 4, 5)
        with pytest.raises(pynvml.NVMLError_NotSupported):  # passively cooled boards
            pynvml.nvmlDeviceGetFanSpeed(handle)


def test_nvlink_is_not_supported_on_a_t4(gpu: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(pynvml.nvmlDeviceGetHandleByIndex(0), 0)


def test_an_idle_board_says_that_it_idles(gpu: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    assert pynvml.nvmlDeviceGetPerformanceState(handle) == 8  # P8, as an idle T4
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == pynvml.nvmlClocksThrottleReasonGpuIdle
    assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == gpu.spec.temperature_celsius[0]
    assert pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 93


def test_pytorchs_nvml_functions_agree(shapes: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
    x = torch.ones(8192, 8192, device="cuda")
    for _ in range(200):
        x @ x
    torch.cuda.synchronize()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert torch.cuda.utilization() == pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > 50
    assert torch.cuda.device_memory_used() == pynvml.nvmlDeviceGetMemoryInfo(handle).used
    assert torch.cuda.clock_rate() == 1410
    assert torch.cuda.temperature() > shapes.spec.temperature_celsius[0]
    assert 1000 * shapes.spec.power_watts[0] < torch.cuda.power_draw() <= 1000 * shapes.spec.power_watts[1]


def test_pcie_throughput_is_that_of_the_copies(gpu: vgpu.VirtualGPU) -> None:  # nvml.h: KB/s over 20 ms
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    source, target = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True), torch.empty(64 << 20, dtype=torch.uint8)
    target = target.cuda()
    torch.cuda.synchronize()
    for _ in range(20):
        target.copy_(source, non_blocking=True)
    received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    assert received * 1000 == pytest.approx(gpu.spec.pinned_bytes_per_second, rel=0.05)


def test_the_profiler_has_the_rows_of_cuda(shapes: vgpu.VirtualGPU) -> None:  # Convolution.cpp, Normalization.cpp
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()
    depthwise = torch.nn.Conv2d(4, 4, 3, groups=4).cuda()
    x, narrow = torch.ones(2, 3, 16, 16, device="cuda"), torch.ones(1, 4, 8, 8, device="cuda")
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profile:
        model(x)
        depthwise(narrow)
        torch.ones(3).cuda()
    rows = {item.key: item for item in profile.key_averages()}
    outer = ("aten::conv2d", "aten::convolution", "aten::_convolution")
    assert [rows[name].count for name in outer] == [2, 2, 2]
    assert [rows[name].count for name in ("aten::cudnn_convolution", "aten::_conv_depthwise2d")] == [1, 1]
    # torch/csrc/profiler/util.cpp, `computeFlops`: on the row of conv2d and on no other.
    assert rows["aten::conv2d"].flops == 2 * 2 * 8 * 14 * 14 * 3 * 9 + 2 * 4 * 6 * 6 * 9
    assert sum(row.flops for name, row in rows.items() if "conv" in name) == rows["aten::conv2d"].flops
    assert {"aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"} <= set(rows)
    assert "aten::size" not in rows
    launches = sum(row.count for name, row in rows.items() if name.startswith("simulated_"))
    assert rows["cudaLaunchKernel"].count == launches > 0
    assert rows["cudaMemcpyAsync"].count == 1
    assert 0 < rows["cudaLaunchKernel"].self_cpu_time_total < profile.key_averages().self_cpu_time_total
    inner = rows["aten::cudnn_convolution"]
    assert 0 < inner.self_cpu_time_total < inner.cpu_time_total
    depthwise = rows["aten::_conv_depthwise2d"].device_time_total
    assert inner.device_time_total == pytest.approx(rows["aten::conv2d"].device_time_total - depthwise)
