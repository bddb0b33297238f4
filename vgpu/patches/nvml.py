"""`pynvml` (package nvidia-ml-py) reporting the virtual GPU.

Patched when it is imported, so that attaching does not have to import it. What NVML would have to measure (power,
temperature) is modelled from how busy the device is, and the names say that it is simulated. Not here: NVML functions
that this course does not need; those raise NVMLError_NotSupported.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

from vgpu.gpu import VirtualGPU
from vgpu.patches.base import PatchSet

# NVML's own sampling period for utilisation is between 1/6 and 1 s, by product (nvml.h, nvmlUtilization_t).
SAMPLE_SECONDS = 1.0
# What a read costs on the host: modelled.
_QUERY_SECONDS = 2e-5
_HANDLE = SimpleNamespace(simulated=True, index=0)


def install(patches: PatchSet, gpu: VirtualGPU) -> None:
    """Patch `pynvml` now if it is loaded, else as soon as it is."""
    module = sys.modules.get("pynvml")
    if module is not None:
        _patch(patches, gpu, module)
        return
    finder = _Finder(lambda loaded: _patch(patches, gpu, loaded))
    sys.meta_path.insert(0, finder)
    patches.on_undo(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the real `pynvml` be imported, and patches it then."""

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self._patch = patch

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pynvml" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            self._patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def _patch(patches: PatchSet, gpu: VirtualGPU, module: ModuleType) -> None:
    replacements = _functions(gpu, module)

    def not_supported(*args: Any, **kwargs: Any) -> Any:
        raise module.NVMLError(module.NVML_ERROR_NOT_SUPPORTED)

    for name in [name for name in vars(module) if name.startswith(("nvmlDevice", "nvmlSystem"))]:
        if callable(getattr(module, name)) and name not in replacements:
            patches.set(module, name, not_supported)
    for name, function in replacements.items():
        patches.set(module, name, function)


def _functions(gpu: VirtualGPU, module: ModuleType) -> dict[str, Callable[..., Any]]:
    spec = gpu.spec

    def handle(index: Any) -> Any:
        if index not in (0, "0"):
            raise module.NVMLError(module.NVML_ERROR_INVALID_ARGUMENT)
        return _HANDLE

    def memory(handle: Any, version: Any = None) -> Any:
        used = spec.memory_bytes - gpu.memory.free_bytes() - (0 if gpu.started else spec.context_bytes)
        return SimpleNamespace(total=spec.memory_bytes, used=used, free=spec.memory_bytes - used, reserved=0)

    def busy() -> float:
        end = gpu.clock.advance(_QUERY_SECONDS)
        begin = max(0.0, end - SAMPLE_SECONDS)
        return gpu.queue.busy_between(begin, end) / (end - begin)

    def between(pair: tuple[float, float]) -> float:
        return pair[0] + (pair[1] - pair[0]) * busy()

    def processes(handle: Any) -> list[Any]:
        used = memory(handle).used
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=used, gpuInstanceId=None, computeInstanceId=None)]

    def clock(handle: Any, kind: int) -> int:
        return int(spec.clock_hertz / 1e6)

    major, minor = spec.compute_capability
    return {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: _HANDLE,
        "nvmlDeviceGetHandleByPciBusId": lambda bus: _HANDLE,
        "nvmlDeviceGetIndex": lambda handle: 0,
        "nvmlDeviceGetName": lambda handle: f"{spec.title} (simulated)",
        "nvmlDeviceGetUUID": lambda handle: "GPU-simulated-by-vgpu-0",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
            gpu=round(100 * busy()), memory=round(60 * busy())
        ),
        "nvmlDeviceGetTemperature": lambda handle, sensor=0: round(between(spec.temperature_celsius)),
        "nvmlDeviceGetPowerUsage": lambda handle: round(1000 * between(spec.power_watts)),
        "nvmlDeviceGetPowerManagementLimit": lambda handle: round(1000 * spec.power_watts[1]),
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: round(1000 * spec.power_watts[1]),
        "nvmlDeviceGetClockInfo": clock,
        "nvmlDeviceGetMaxClockInfo": clock,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (major, minor),
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlSystemGetDriverVersion": lambda: f"{spec.driver_version} (simulated)",
        "nvmlSystemGetNVMLVersion": lambda: "13 (simulated)",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
    }
