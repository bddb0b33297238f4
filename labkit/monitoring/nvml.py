"""What to ask NVML, and in which unit it answers. Through `pynvml`, of the package nvidia-ml-py.

Not for units, for what a GPU cannot tell, or for a machine without NVML: that is the lab's work.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

UNITS = ("percent", "bytes", "celsius", "milliwatts", "millijoules", "megahertz", "kilobytes_per_second", "count")
"""The units that NVML answers in. A kilobyte is 1000 bytes."""

THROTTLE_REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal_slowdown",
    0x040: "hardware_thermal_slowdown",
    0x080: "power_brake",
    0x100: "display_clocks",
}
"""Why the clocks are not at their highest: the bits of NVML's answer (nvml.h, nvmlClocksEventReason...)."""


@dataclass(frozen=True)
class Query:
    """One thing to ask of a GPU."""

    field: str
    """The field of `GpuReading` that the answer belongs to; its name ends in the base unit, if it has one."""
    unit: str
    """The unit of the answer, one of UNITS."""
    ask: Callable[[Any], int]
    """Takes NVML's handle of the GPU.

    Raises:
        pynvml.NVMLError: NVMLError_NotSupported where this GPU cannot tell, NVMLError_NoPermission or
            NVMLError_FunctionNotFound where this user or driver cannot, NVMLError_GpuIsLost where it fell off the bus.
    """


def _rates(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetUtilizationRates(handle)


def _clock(handle: Any, kind: int) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, kind))


def _pcie(handle: Any, counter: int) -> int:
    return int(pynvml.nvmlDeviceGetPcieThroughput(handle, counter))


QUERIES = (
    Query("utilization_ratio", "percent", lambda handle: _rates(handle).gpu),
    Query("memory_busy_ratio", "percent", lambda handle: _rates(handle).memory),
    Query("memory_used_bytes", "bytes", lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used),
    Query("memory_total_bytes", "bytes", lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    Query("temperature_celsius", "celsius", lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0)),
    Query("power_watts", "milliwatts", lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle)),
    Query("power_limit_watts", "milliwatts", lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
    Query("energy_joules", "millijoules", lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
    Query("sm_clock_hertz", "megahertz", lambda handle: _clock(handle, pynvml.NVML_CLOCK_SM)),
    Query("memory_clock_hertz", "megahertz", lambda handle: _clock(handle, pynvml.NVML_CLOCK_MEM)),
    Query("ecc_errors", "count", lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)),
    # These two last 20 ms each: NVML counts for that long (nvml.h).
    Query("pcie_sent_bytes_per_second", "kilobytes_per_second", lambda handle: _pcie(handle, 0)),
    Query("pcie_received_bytes_per_second", "kilobytes_per_second", lambda handle: _pcie(handle, 1)),
)
"""All that is a number. `throttle_mask` and `XidCounter` are the rest."""


def throttle_mask(handle: Any) -> int:
    """The bits of THROTTLE_REASONS that hold now; raises as `Query.ask` does."""
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def identity(handle: Any) -> tuple[str, str]:
    """UUID and name of a GPU; raises as `Query.ask` does."""
    return str(pynvml.nvmlDeviceGetUUID(handle)), str(pynvml.nvmlDeviceGetName(handle))


class XidCounter:
    """Counts the XID errors that the driver reports for one GPU from now on.

    An XID is the driver's report of what went wrong on a GPU: https://docs.nvidia.com/deploy/xid-errors/
    """

    def __init__(self, handle: Any) -> None:
        self._seen = 0
        self._events: Any = None
        try:
            self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError:
            self.close()

    def count(self) -> int | None:
        """How many there were so far; None where the GPU does not report them. Never waits."""
        if self._events is None:
            return None
        try:
            while True:
                pynvml.nvmlEventSetWait_v2(self._events, 0)
                self._seen += 1
        except pynvml.NVMLError_Timeout:  # there are no more
            return self._seen
        except pynvml.NVMLError:
            return None

    def close(self) -> None:
        """Give the driver's event set back; `count` says None from now on."""
        if self._events is not None:
            events, self._events = self._events, None
            try:
                pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError:
                return
