"""What NVML says of a GPU before and after the work: only what got worse while it ran can fail."""

import time
from collections.abc import Callable
from typing import Any

import pynvml
import torch

from cluster.acceptance.context import Context
from labkit.monitoring.nvml import QUERIES, THROTTLE_REASONS, Query, XidCounter, identity, throttle_mask

BASE_UNITS = {
    "percent": 1e-2,
    "bytes": 1,
    "celsius": 1,
    "milliwatts": 1e-3,
    "millijoules": 1e-3,
    "megahertz": 1e6,
    "kilobytes_per_second": 1e3,
    "count": 1,
}
"""What one of NVML's units is in the base unit."""
MOST_NVLINKS = 18
"""Of any GPU so far (H100, B200)."""
NVLINK_COUNTERS = (0, 1, 2, 3)
"""Replays, recoveries, CRC errors of flits and of data."""
BUSY_SECONDS = 1.5
"""NVML's sampling period for utilisation is a second at most (nvml.h, nvmlUtilization_t)."""
BUSY_ROWS = 4096
ANCESTORS = {0: "same board", 10: "one PCIe switch", 20: "PCIe switches", 30: "one host bridge", 40: "one NUMA node",
             50: "between NUMA nodes"}  # fmt: skip
"""nvmlGpuTopologyLevel_t."""


def measure_before(context: Context) -> dict[str, Any]:
    """The state before this process has used the GPU."""
    return _measure(context, after=False)


def measure_after(context: Context) -> dict[str, Any]:
    """The state right after the work, while clocks and temperature still show it."""
    found = _measure(context, after=True)
    reading = found.get("reading")
    if reading and context.has_fault("hot"):
        reading["temperature_celsius"] = (reading.get("maximum_celsius") or 90) + 12
    if reading and context.has_fault("lost"):
        found["reading"] = {"up": False}
    return found


def _measure(context: Context, *, after: bool) -> dict[str, Any]:
    if not context.on_gpu:
        return {"skipped": "there is no GPU to ask about"}
    try:
        if not after:
            pynvml.nvmlInit()
            context.kept["handle"] = _handle(context)
            context.kept["xids"] = XidCounter(context.kept["handle"])
        elif "handle" not in context.kept:
            return {"skipped": "NVML could not be asked before the run"}
        if after and not context.device.simulated:
            _keep_busy(context)
        reading = read(context.kept["handle"], context.kept["xids"])
        if not after:
            reading["topology"] = _topology(context)
        return {"reading": reading, "time": time.time()}
    except pynvml.NVMLError_GpuIsLost:
        return {"reading": {"up": False}}
    except pynvml.NVMLError as error:
        return {"skipped": f"NVML says {str(error)!r}"}


def _keep_busy(context: Context) -> None:
    """Work until NVML must have seen it; the last products are still running when this returns."""
    matrix = torch.ones(BUSY_ROWS, BUSY_ROWS, dtype=torch.float16, device=context.torch_device)
    ends = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < ends:
        context.synchronize()
        for _ in range(20):
            matrix @ matrix


def _handle(context: Context) -> Any:
    uuid = getattr(torch.cuda.get_device_properties(context.index), "uuid", None)
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(context.index)
    # CUDA and NVML count differently where CUDA_VISIBLE_DEVICES is set.
    text = str(uuid)
    return pynvml.nvmlDeviceGetHandleByUUID(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")


def read(handle: Any, xids: XidCounter) -> dict[str, Any]:
    """All that a GPU tells, in base units; what it cannot tell is None, with the reason under "untold".

    Raises:
        pynvml.NVMLError_GpuIsLost: the driver has lost it.
    """
    asks: dict[str, Callable[[], Any]] = {query.field: _in_base_unit(query, handle) for query in QUERIES}
    asks |= {
        "identity": lambda: identity(handle),
        "throttle_reasons": lambda: [name for bit, name in THROTTLE_REASONS.items() if throttle_mask(handle) & bit],
        "maximum_celsius": lambda: _limit(handle),
        "sm_clock_max_hertz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
        "pcie_generation": lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_generation_max": lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_max": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "pcie_replays": lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle),
        "ecc_corrected": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
        "nvlinks_up": lambda: _nvlinks(handle)[0],
        "nvlinks": lambda: _nvlinks(handle)[1],
        "remapped_rows": lambda: [int(one) for one in pynvml.nvmlDeviceGetRemappedRows(handle)],
        "nvlink_errors": lambda: _nvlink_errors(handle),
        "ecc_mode": lambda: [int(one) for one in pynvml.nvmlDeviceGetEccMode(handle)],
        "ecc_mode_default": lambda: int(pynvml.nvmlDeviceGetDefaultEccMode(handle)),
        "mig_mode": lambda: [int(one) for one in pynvml.nvmlDeviceGetMigMode(handle)],
        "retired_pages_pending": lambda: int(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        "inforom_valid": lambda: _inforom_valid(handle),
        "vbios": lambda: str(pynvml.nvmlDeviceGetVbiosVersion(handle)),
        "power_limit_default_watts": lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3,
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
    }
    found: dict[str, Any] = {"up": True, "xid_errors": xids.count(), "untold": {}}
    for name, ask in asks.items():
        try:
            found[name] = ask()
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError as error:
            found[name] = None
            # What a card does not have is nothing to worry about; what it may not or will not say is.
            if not isinstance(error, pynvml.NVMLError_NotSupported | pynvml.NVMLError_InvalidArgument):
                found["untold"][name] = str(error)
    found["uuid"], found["name"] = found.pop("identity") or (None, None)
    return found


def _in_base_unit(query: Query, handle: Any) -> Callable[[], float]:
    return lambda: query.ask(handle) * BASE_UNITS[query.unit]


def _limit(handle: Any) -> int:
    """The highest temperature that the maker allows in operation, or else the one at which it slows down."""
    try:
        return int(pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX))
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetTemperatureThreshold(handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN))


def _nvlinks(handle: Any) -> tuple[int, int]:
    """Links that are up, and those that the board has."""
    up = 0
    for link in range(MOST_NVLINKS):
        try:
            up += bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except pynvml.NVMLError_InvalidArgument:
            return up, link
    return up, MOST_NVLINKS


def _nvlink_errors(handle: Any) -> int:
    """Flits and data sent again, CRC errors and recoveries, of all links that are up (nvmlNvLinkErrorCounter_t)."""
    total = 0
    for link in range(_nvlinks(handle)[1]):
        if pynvml.nvmlDeviceGetNvLinkState(handle, link):
            total += sum(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter) for counter in NVLINK_COUNTERS)
    return total


def _inforom_valid(handle: Any) -> bool:
    """Whether the checksum of what the board says of itself is right."""
    try:
        pynvml.nvmlDeviceValidateInforom(handle)
    except pynvml.NVMLError_CorruptedInforom:
        return False
    return True


def _topology(context: Context) -> dict[str, str]:
    """How this GPU reaches each other one of its node, by index."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            other = pynvml.nvmlDeviceGetHandleByIndex(index)
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(context.kept["handle"], other)
        except pynvml.NVMLError:
            continue
        found[str(index)] = ANCESTORS.get(int(level), f"level {level}")
    return found
