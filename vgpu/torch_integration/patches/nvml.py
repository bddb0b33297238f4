"""`pynvml` (package nvidia-ml-py) reporting the virtual GPUs.

Patched when it is imported, so that attaching does not have to import it. Not here: what the functions answer
(`vgpu.runtime.nvml`).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vgpu.runtime.machine import Machine
from vgpu.runtime.nvml import SAMPLE_SECONDS, Nvml, bus_id, uuid
from vgpu.runtime.patching import PatchSet

# Functions that ask a driver; the rest of `pynvml` only converts.
_PREFIXES = (
    "nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEventSet", "nvmlVgpu", "nvmlGpm", "nvmlGpuInstance",
    "nvmlComputeInstance", "nvmlGet",
)  # fmt: skip


def install(patches: PatchSet, machine: Machine) -> None:
    """Patch `pynvml` now if it is loaded, else as soon as it is."""
    module = sys.modules.get("pynvml")
    if module is not None:
        _patch(patches, machine, module)
        return
    finder = _Finder(lambda loaded: _patch(patches, machine, loaded))
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


def _patch(patches: PatchSet, machine: Machine, module: ModuleType) -> None:
    library = Nvml(machine, module)
    replacements = _functions(library)

    def not_supported(*args: Any, **kwargs: Any) -> Any:
        raise library.error("NOT_SUPPORTED")

    def put(name: str, function: Callable[..., Any]) -> None:
        if hasattr(module, name):  # a program may have taken it by its name before
            patches.rebind(getattr(module, name), function)
        patches.set(module, name, function)

    refusal = _once_initialised(library, not_supported)
    for name in [name for name in vars(module) if name.startswith(_PREFIXES)]:
        if callable(getattr(module, name)) and name not in replacements:
            put(name, refusal)
    for name, function in replacements.items():
        put(name, _once_initialised(library, function))
    put("nvmlInit", lambda: _count(library, 1))
    put("nvmlInitWithFlags", lambda flags: _count(library, 1))
    put("nvmlShutdown", lambda: _count(library, -1))


def _count(library: Nvml, change: int) -> None:
    """NVML counts how often it was initialised (nvml.h, nvmlInit_v2)."""
    if library.users + change < 0:
        raise library.error("UNINITIALIZED")
    library.users += change


def _once_initialised(library: Nvml, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not library.users:
            raise library.error("UNINITIALIZED")
        return function(*args, **kwargs)

    return call


def _functions(nvml: Nvml) -> dict[str, Callable[..., Any]]:
    machine, gpu, figure = nvml.machine, nvml.gpu, nvml.figure  # which cards it has may not be known yet

    def fixed(value: Any) -> Callable[..., Any]:
        """The same for every GPU of the machine; still wants a handle of one of them."""
        return lambda handle, *_: (gpu(handle), value)[1]

    def by_capability(value: Any, *, ampere: bool) -> Callable[..., Any]:
        """What cards have from Ampere on, or had before."""

        def call(handle: Any, *_: Any) -> Any:
            if (gpu(handle).spec.compute_capability >= (8, 0)) is not ampere:
                raise nvml.error("NOT_SUPPORTED")
            return value

        return call

    def watts(handle: Any) -> int:
        return round(1000 * gpu(handle).spec.power_watts[1])

    def board(name: str) -> Callable[..., Any]:
        return lambda handle, *_: figure(handle, name)

    functions: dict[str, Callable[..., Any]] = {
        "nvmlDeviceGetCount": lambda: len(nvml.handles),
        "nvmlDeviceGetHandleByIndex": nvml.find(lambda gpu: str(gpu.number), "INVALID_ARGUMENT"),
        "nvmlDeviceGetHandleByUUID": nvml.find(uuid),
        "nvmlDeviceGetHandleByPciBusId": nvml.find(bus_id),
        "nvmlDeviceGetIndex": lambda handle: gpu(handle).number,
        "nvmlDeviceGetMinorNumber": lambda handle: gpu(handle).number,
        "nvmlDeviceGetName": lambda handle: f"{gpu(handle).spec.title} (simulated)",
        "nvmlDeviceGetUUID": lambda handle: uuid(gpu(handle)),
        "nvmlDeviceGetSerial": lambda handle: f"simulated-{gpu(handle).number}",
        "nvmlDeviceGetBrand": fixed(nvml.module.NVML_BRAND_NVIDIA),
        "nvmlDeviceGetArchitecture": nvml.architecture,
        "nvmlDeviceGetCudaComputeCapability": lambda handle, *_: gpu(handle).spec.compute_capability,
        "nvmlDeviceGetNumGpuCores": board("cores"),
        "nvmlDeviceGetMemoryBusWidth": board("memory_bus_bits"),
        "nvmlDeviceGetPciInfo": nvml.pci,
        "nvmlDeviceGetPciInfo_v3": nvml.pci,
        "nvmlDeviceGetMultiGpuBoard": fixed(0),
        "nvmlDeviceGetMemoryInfo": nvml.memory,
        "nvmlDeviceGetUtilizationRates": nvml.utilization,
        "nvmlDeviceGetEncoderUtilization": fixed([0, round(1e6 * SAMPLE_SECONDS)]),
        "nvmlDeviceGetDecoderUtilization": fixed([0, round(1e6 * SAMPLE_SECONDS)]),
        "nvmlDeviceGetTemperature": nvml.temperature,
        "nvmlDeviceGetTemperatureV": lambda handle, sensor, *_: nvml.temperature(handle, sensor),
        "nvmlDeviceGetTemperatureThreshold": nvml.threshold,
        "nvmlDeviceGetPowerUsage": nvml.power,
        "nvmlDeviceGetTotalEnergyConsumption": nvml.energy,
        "nvmlDeviceGetPowerManagementMode": fixed(1),
        "nvmlDeviceGetPowerManagementLimitConstraints": lambda handle: [
            1000 * figure(handle, "minimum_power_watts"),
            watts(handle),
        ],
        "nvmlDeviceGetClockInfo": nvml.clock,
        "nvmlDeviceGetClock": lambda handle, kind, which=0: nvml.clock(handle, kind),
        "nvmlDeviceGetPcieThroughput": nvml.pcie,
        "nvmlDeviceGetCurrPcieLinkWidth": fixed(16),
        "nvmlDeviceGetMaxPcieLinkWidth": fixed(16),
        "nvmlDeviceGetPcieReplayCounter": fixed(0),
        "nvmlDeviceGetPersistenceMode": fixed(1),
        "nvmlDeviceGetComputeMode": fixed(0),
        "nvmlDeviceGetDisplayMode": fixed(0),
        "nvmlDeviceGetDisplayActive": fixed(0),
        "nvmlDeviceGetEccMode": fixed([1, 1]),
        "nvmlDeviceGetTotalEccErrors": fixed(0),
        "nvmlDeviceGetMemoryErrorCounter": fixed(0),
        "nvmlDeviceGetProcessUtilization": nvml.process_utilization,
        "nvmlDeviceGetNvLinkState": nvml.nvlink,
        "nvmlDeviceGetFieldValues": nvml.field_values,
        "nvmlSystemGetDriverVersion": lambda: f"{machine.spec.driver_version} (simulated)",
        "nvmlSystemGetNVMLVersion": lambda: f"13.{machine.spec.driver_version} (simulated)",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlSystemGetProcessName": lambda pid: sys.executable,
    }
    pcie = board("pcie_generation")
    same: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
        (
            nvml.maximum_clock,
            ("MaxClockInfo", "MaxCustomerBoostClock", "ApplicationsClock", "DefaultApplicationsClock"),
        ),
        (nvml.throttling, ("CurrentClocksThrottleReasons", "CurrentClocksEventReasons")),
        (nvml.state, ("PerformanceState", "PowerState")),
        (watts, ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit")),
        (pcie, ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration")),
    )
    for function, names in same:
        functions |= {f"nvmlDeviceGet{name}": function for name in names}
    for kind, listed in (("Compute", nvml.processes), ("Graphics", fixed([])), ("MPSCompute", fixed([]))):
        functions |= {f"nvmlDeviceGet{kind}RunningProcesses{version}": listed for version in ("", "_v2", "_v3")}
    functions["nvmlDeviceGetMigMode"] = by_capability([0, 0], ampere=True)
    functions["nvmlDeviceGetRemappedRows"] = by_capability((0, 0, 0, 0), ampere=True)
    functions["nvmlDeviceGetRetiredPages"] = by_capability([], ampere=False)
    return functions
