"""NVML, profiler, summary and command line; expectations from nvml.h and the torch.profiler documentation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

import vgpu
from vgpu import cost


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


def test_nvml_utilisation_follows_the_work(shapes: vgpu.VirtualGPU) -> None:
    pynvml = pytest.importorskip("pynvml")
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
    one = 1e6 * cost.matmul_seconds(shapes.spec, 1024, 1024, 1024)
    assert product.count == 3
    assert product.self_device_time_total == pytest.approx(3 * one)
    assert product.self_cpu_time_total == pytest.approx(3e6 * shapes.spec.launch_seconds)
    assert averages["products"].device_time_total == pytest.approx(3 * one)


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
    assert lines[3].startswith("aten::mm")


def _command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = Path(vgpu.__file__).resolve().parents[1]
    environment = {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "vgpu", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_script_runs_unchanged_under_python_m_vgpu(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, torch\nassert __name__ == '__main__'\n"
        "print(torch.cuda.get_device_name(), sys.argv[1:], (torch.ones(2, device='cuda') + 1).tolist())\nsys.exit(3)\n"
    )
    done = _command("--gpu", "H200", "script.py", "a", "--b", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "NVIDIA H200 ['a', '--b'] [2.0, 2.0]\n"
    assert "simulated NVIDIA H200" in done.stderr


def test_list_names_every_gpu_and_needs_no_torch(tmp_path: Path) -> None:
    done = _command("list", cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in vgpu.list_specs())


def test_an_unknown_gpu_on_the_command_line_is_a_short_error(tmp_path: Path) -> None:
    done = _command("--gpu", "V100", "script.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "no GPU named 'V100'" in done.stderr
    assert "Traceback" not in done.stderr
