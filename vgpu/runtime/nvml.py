"""What NVML says of the virtual GPUs: identity, memory, utilisation, power, clocks, limits, errors.

What NVML would have to measure (power, temperature, clocks) is modelled from how busy the device was over the last
sampling period, and the names say that it is simulated. Semantics and units: nvml.h, NVIDIA's NVML API reference
(https://docs.nvidia.com/deploy/nvml-api/). Not here: putting these functions into `pynvml`
(`vgpu.torch_integration.patches.nvml`), and functions that have no meaning for these boards or
that nobody needs: those raise NVMLError_NotSupported, as on a card.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU
    from vgpu.runtime.machine import Machine

# NVML's own sampling period for utilisation is between 1/6 and 1 s, by product (nvml.h, nvmlUtilization_t).
SAMPLE_SECONDS = 1.0
# nvmlDeviceGetPcieThroughput looks at the last 20 ms (nvml.h).
_PCIE_SECONDS = 0.02
# What a read costs on the host: modelled.
_QUERY_SECONDS = 2e-5
_LANES = 16
_ARCHITECTURES = {(7, 5): 6, (8, 0): 7, (8, 6): 7, (8, 9): 8, (9, 0): 9}  # nvml.h, NVML_DEVICE_ARCH_*


class Handle:
    """What `nvmlDeviceGetHandleByIndex` gives out."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self.gpu = gpu


class Nvml:
    """NVML's functions for the GPUs of a machine; `module` is `pynvml`, whose types and errors they use."""

    def __init__(self, machine: Machine, module: ModuleType) -> None:
        self.machine = machine
        self.module = module
        self.users = 0
        self._handles: list[Handle] = []

    @property
    def handles(self) -> list[Handle]:
        """One for each GPU, always the same from when there are any."""
        if [handle.gpu for handle in self._handles] != list(self.machine.cards):
            self._handles = [Handle(gpu) for gpu in self.machine.cards]
        return self._handles

    # ---- errors --------------------------------------------------------------------------------------------------

    def error(self, name: str) -> Exception:
        """An NVMLError, e.g. "NOT_SUPPORTED"."""
        return self.module.NVMLError(getattr(self.module, f"NVML_ERROR_{name}"))  # type: ignore[no-any-return]

    def gpu(self, handle: Any) -> VirtualGPU:
        """The GPU behind a handle."""
        if not isinstance(handle, Handle):
            raise self.error("INVALID_ARGUMENT")
        return handle.gpu

    def figure(self, handle: Any, name: str) -> int:
        """A figure of the board (`Spec.monitoring`), or Not Supported."""
        value = self.gpu(handle).spec.monitoring.get(name)
        if value is None:
            raise self.error("NOT_SUPPORTED")
        return value

    # ---- what the work did to the board --------------------------------------------------------------------------

    def busy(self, handle: Any) -> float:
        """Busy share of the device over the last sampling period (ratio)."""
        gpu = self.gpu(handle)
        end = gpu.clock.advance(_QUERY_SECONDS)
        begin = max(0.0, end - SAMPLE_SECONDS)
        return min(gpu.queue.busy_between(begin, end) / (end - begin), 1.0)

    def traffic(self, handle: Any) -> float:
        """Share of the memory's bandwidth that kernels used over the last sampling period (ratio)."""
        gpu = self.gpu(handle)
        end = gpu.clock.now
        begin = max(0.0, end - SAMPLE_SECONDS)
        moved = gpu.queue.moved_between(begin, end, since=begin - SAMPLE_SECONDS)
        return min(moved / (gpu.spec.bandwidth_bytes_per_second * (end - begin)), 1.0) if end > begin else 0.0

    def pcie(self, handle: Any, counter: int) -> int:
        """KB/s over PCIe in the last 20 ms: sent (counter 0) or received (1) by the GPU."""
        gpu = self.gpu(handle)
        end = gpu.clock.advance(_PCIE_SECONDS)  # the call itself lasts that long (nvml.h)
        name = "Memcpy DtoH" if counter == 0 else "Memcpy HtoD"
        moved = gpu.queue.moved_between(end - _PCIE_SECONDS, end, since=end - 1.0, name=name)
        return round(moved / _PCIE_SECONDS / 1000)

    def power(self, handle: Any) -> int:
        """Milliwatts, between idle and the limit by how busy the device was."""
        low, high = self.gpu(handle).spec.power_watts
        return round(1000 * (low + (high - low) * self.busy(handle)))

    def energy(self, handle: Any) -> int:
        """Millijoules since attach."""
        gpu = self.gpu(handle)
        low, high = gpu.spec.power_watts
        now = gpu.clock.advance(_QUERY_SECONDS)
        worked = min(gpu.queue.busy_seconds, now)
        return round(1000 * (low * now + (high - low) * worked))

    def temperature(self, handle: Any, sensor: int = 0) -> int:
        """Degrees Celsius of the GPU, the only sensor."""
        low, high = self.gpu(handle).spec.temperature_celsius
        if sensor != 0:
            raise self.error("INVALID_ARGUMENT")
        return round(low + (high - low) * self.busy(handle))

    def threshold(self, handle: Any, kind: int) -> int:
        """Limits by NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, _SLOWDOWN and _GPU_MAX."""
        names = {0: "shutdown_celsius", 1: "slowdown_celsius", 3: "maximum_celsius"}
        if kind not in names:
            raise self.error("NOT_SUPPORTED")
        return self.figure(handle, names[kind])

    def clock(self, handle: Any, kind: int) -> int:
        """MHz now: at full rate while there is work, else idle."""
        if kind == self.module.NVML_CLOCK_MEM:
            name = "memory_clock_megahertz" if self.busy(handle) else "idle_memory_clock_megahertz"
            return self.figure(handle, name)
        idle = self.gpu(handle).spec.monitoring.get("idle_clock_megahertz")
        return self.maximum_clock(handle, kind) if idle is None or self.busy(handle) else idle

    def maximum_clock(self, handle: Any, kind: int) -> int:
        """MHz of the graphics, SM and memory clocks at most; the video clock is not modelled."""
        if kind == self.module.NVML_CLOCK_MEM:
            return self.figure(handle, "memory_clock_megahertz")
        if kind not in (self.module.NVML_CLOCK_GRAPHICS, self.module.NVML_CLOCK_SM):
            raise self.error("NOT_SUPPORTED")
        return int(self.gpu(handle).spec.clock_hertz / 1e6)

    def throttling(self, handle: Any) -> int:
        """A bit mask: only "idle" happens here."""
        return 0 if self.busy(handle) else 1

    def state(self, handle: Any) -> int:
        """P0 while there is work, else the state in which the board idles."""
        return 0 if self.busy(handle) else self.figure(handle, "idle_performance_state")

    # ---- memory and processes ------------------------------------------------------------------------------------

    def used(self, handle: Any) -> int:
        """Bytes of this process: what PyTorch reserved, and the context."""
        gpu = self.gpu(handle)
        return gpu.spec.memory_bytes - gpu.memory.free_bytes() - (0 if gpu.started else gpu.spec.context_bytes)

    def memory(self, handle: Any, version: Any = None) -> Any:
        """nvmlMemory_t, or nvmlMemory_v2_t, of which nothing is reserved by the driver here."""
        total, used = self.gpu(handle).spec.memory_bytes, self.used(handle)
        if version is None or version == 0:
            return self.module.c_nvmlMemory_t(total=total, used=used, free=total - used)
        return self.module.c_nvmlMemory_v2_t(version=version, total=total, used=used, free=total - used, reserved=0)

    def processes(self, handle: Any) -> list[Any]:
        """This process, once it has a context."""
        if not self.gpu(handle).started:
            return []
        none = 0xFFFFFFFF  # no MIG instance
        process = self.module.c_nvmlProcessInfo_t(
            pid=os.getpid(), usedGpuMemory=self.used(handle), gpuInstanceId=none, computeInstanceId=none
        )
        return [self.module.nvmlStructToFriendlyObject(process)]

    def process_utilization(self, handle: Any, since: int) -> list[Any]:
        """This process's share of the last sampling period."""
        gpu = self.gpu(handle)
        moment = round(gpu.clock.now * 1e6)
        if not gpu.started or moment <= since:
            raise self.error("NOT_FOUND")
        make = self.module.c_nvmlProcessUtilizationSample_t
        work, traffic = round(100 * self.busy(handle)), round(100 * self.traffic(handle))
        return [make(pid=os.getpid(), timeStamp=moment, smUtil=work, memUtil=traffic, encUtil=0, decUtil=0)]

    def utilization(self, handle: Any) -> Any:
        """Percent of the last sampling period in which kernels ran, and of the memory's bandwidth they used."""
        work = round(100 * self.busy(handle))
        return self.module.c_nvmlUtilization_t(gpu=work, memory=round(100 * self.traffic(handle)))

    # ---- identity ------------------------------------------------------------------------------------------------

    def find(self, name: Callable[[VirtualGPU], str], absent: str = "NOT_FOUND") -> Callable[[Any], Handle]:
        """A function that gives the handle of the GPU that is called so."""

        def handle(identifier: Any) -> Handle:
            text = identifier.decode() if isinstance(identifier, bytes) else str(identifier)
            for known in self.handles:
                if name(known.gpu).lower() == text.lower():
                    return known
            raise self.error(absent)

        return handle

    def pci(self, handle: Any) -> Any:
        """nvmlPciInfo_t."""
        gpu = self.gpu(handle)
        info = self.module.nvmlPciInfo_t(domain=0, bus=0, device=4 + gpu.number)
        info.busId, info.busIdLegacy = bus_id(gpu), bus_id(gpu)[4:]
        return info

    def architecture(self, handle: Any) -> int:
        """NVML_DEVICE_ARCH_*."""
        return _ARCHITECTURES.get(self.gpu(handle).spec.compute_capability, 0xFFFFFFFF)

    def nvlink(self, handle: Any, link: int) -> int:
        """Whether a link of the board is up: when several GPUs are joined by NVLink."""
        if link >= self.figure(handle, "nvlinks"):
            raise self.error("INVALID_ARGUMENT")
        joined = len(self.machine.cards) > 1 and "nvlink" in getattr(self.machine.interconnect, "name", "").lower()
        return int(joined)

    def field_values(self, handle: Any, field_ids: Any) -> Any:
        """Power and energy as fields; every other field says Not Supported in its own `nvmlReturn`."""
        module = self.module
        values = (module.c_nvmlFieldValue_t * len(field_ids))()
        known = {"TOTAL_ENERGY_CONSUMPTION": self.energy, "POWER_AVERAGE": self.power, "POWER_INSTANT": self.power}
        for value, field in zip(values, field_ids, strict=True):
            value.fieldId, value.scopeId = field if isinstance(field, (tuple, list)) else (field, 0)
            value.nvmlReturn = module.NVML_ERROR_NOT_SUPPORTED
            for name, read in known.items():
                if value.fieldId == getattr(module, f"NVML_FI_DEV_{name}", None):
                    value.nvmlReturn, value.valueType = module.NVML_SUCCESS, module.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                    value.value.ullVal = read(handle)
        return values


def uuid(gpu: VirtualGPU) -> str:
    """The UUID as NVML writes it."""
    return f"GPU-{gpu.uuid}"


def bus_id(gpu: VirtualGPU) -> str:
    """The PCI address as NVML writes it: domain:bus:device.function."""
    return f"00000000:00:{4 + gpu.number:02X}.0"
