"""All that NVML says of a GPU at one moment, in base units. No PyTorch here: asking takes no memory of the GPU."""

from collections.abc import Callable
from ctypes import byref
from pathlib import Path
from typing import Any

import pynvml

from cluster.acceptance import kernel_log, sysfs
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
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
"""nvmlGpuFabricState_t, but for 0: there is none."""
FABRIC_FAULTS = {
    "at a part of its bandwidth": ("DEGRADED_BW", 1),
    "routes are being recovered": ("ROUTE_RECOVERY", 1),
    "routes are unhealthy": ("ROUTE_UNHEALTHY", 1),
    "recovers from a timeout": ("ACCESS_TIMEOUT_RECOVERY", 1),
    "in no partition": ("PARTITION_ASSIGNED", 2),
    "without its fabric manager": ("GFM_STATE", 2),
}
"""Of the mask of health: what is wrong if these bits have this value."""
MISCONFIGURED = {
    2: "another system's identity", 3: "another chassis's number", 4: "no partition", 5: "too few NVLinks",
    6: "firmware that does not fit", 7: "a location that cannot be", 8: "an invalid state",
}  # fmt: skip
"""NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*, but for 0 and 1: not told, and none."""
RECOVERY_ACTIONS = ("none", "reset the GPU", "reboot the node", "drain peer-to-peer", "drain and reset",
                    "recover the IMEX domain", "reset the bus", "reboot the system")  # fmt: skip
"""NVML_GPU_RECOVERY_ACTION_*."""
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
"""NVML_COMPUTEMODE_*."""
RETIREMENT_CAUSES = (pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
                     pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)  # fmt: skip
KERNEL_LOG = Path("/dev/kmsg")
PCI_DEVICES = Path("/sys/bus/pci/devices")
SLOWED = (
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
)
"""For how many ns heat, or the power supply, has held clocks down since the driver was loaded."""


def read(handle: Any, xids: XidCounter) -> dict[str, Any]:
    """All that a GPU tells, in base units; what it cannot tell is None, with the reason under "untold".

    Raises:
        pynvml.NVMLError_GpuIsLost: the driver has lost it.
    """
    asks: dict[str, Callable[[], Any]] = {query.field: _in_base_unit(query, handle) for query in QUERIES}
    asks |= {
        "identity": lambda: identity(handle),
        "throttle_reasons": lambda: throttle_reasons(handle),
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
        "remapped_rows": lambda: [int(count) for count in pynvml.nvmlDeviceGetRemappedRows(handle)],
        "nvlink_errors": lambda: _nvlink_errors(handle),
        "ecc_mode": lambda: [int(mode) for mode in pynvml.nvmlDeviceGetEccMode(handle)],
        "ecc_mode_default": lambda: _only(pynvml.nvmlDeviceGetDefaultEccMode(handle)),
        "mig_mode": lambda: [int(mode) for mode in pynvml.nvmlDeviceGetMigMode(handle)],
        "retired_pages": lambda: [len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in RETIREMENT_CAUSES],
        "retired_pages_pending": lambda: int(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        "inforom_valid": lambda: _inforom_valid(handle),
        "vbios": lambda: str(pynvml.nvmlDeviceGetVbiosVersion(handle)),
        "power_limit_default_watts": lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3,
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
    }
    reading: dict[str, Any] = {"up": True, "xid_errors": xids.count(), "untold": {}}
    for name, ask in _recent(handle).items():
        try:
            reading[name] = ask()
        except pynvml.NVMLError_GpuIsLost:
            raise
        except (pynvml.NVMLError, OSError, TypeError, ValueError, AttributeError, IndexError):
            reading[name] = None  # the report lists it as not read
    for name, ask in asks.items():
        try:
            reading[name] = ask()
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError as error:
            reading[name] = None
            # What a card does not have is nothing to worry about; what it may not or will not say is.
            if not isinstance(error, pynvml.NVMLError_NotSupported | pynvml.NVMLError_InvalidArgument):
                reading["untold"][name] = str(error)
        except (TypeError, ValueError, AttributeError) as error:  # pynvml answers otherwise here, or lacks it
            reading[name], reading["untold"][name] = None, f"{type(error).__name__}: {error}"
    reading["uuid"], reading["name"] = reading.pop("identity") or (None, None)
    return reading


def _recent(handle: Any) -> dict[str, Callable[[], Any]]:
    """What not every driver tells, and not every user may read."""
    return {
        "fabric": lambda: _fabric(handle),
        "recovery_action": lambda: _action(_field(handle, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
        "ecc_lifetime": lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 1)),
        "sram_errors": lambda: _sram(handle),
        "memory_clock_max_hertz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6,
        "nvlink_megabytes_per_second": lambda: _field(handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON),
        "nvlink_peers": lambda: _peers(handle),
        "xids_before": lambda: _xids(handle),
        "pcie_errors": lambda: sysfs.pcie_errors(PCI_DEVICES / _bus(handle)),
        "persistence_mode": lambda: int(pynvml.nvmlDeviceGetPersistenceMode(handle)),
        "compute_mode": lambda: _compute_mode(pynvml.nvmlDeviceGetComputeMode(handle)),
        "performance_state": lambda: int(pynvml.nvmlDeviceGetPerformanceState(handle)),
        "slowed_seconds": lambda: [_nanoseconds(handle, field) / 1e9 for field in SLOWED],
    }


def throttle_reasons(handle: Any) -> list[str]:
    """Why clocks are not at their highest; a bit that nobody knows has its number as a name, so that nobody passes it.

    Raises:
        pynvml.NVMLError: as `throttle_mask` does.
    """
    mask = throttle_mask(handle)
    unknown = mask & ~sum(THROTTLE_REASONS)
    names = [name for bit, name in THROTTLE_REASONS.items() if mask & bit]
    return [*names, *([f"unknown {unknown:#x}"] if unknown else [])]


def _compute_mode(number: int) -> str:
    return COMPUTE_MODES[number] if 0 <= number < len(COMPUTE_MODES) else f"unknown {number}"


def _action(number: int) -> str:
    return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else f"unknown {number}"


def _field(handle: Any, number: int) -> int:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _fabric(handle: Any) -> dict[str, Any] | None:
    """How far this GPU has joined its NVLink domain; None on a board that has none."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    return {
        "state": FABRIC_STATES.get(info.state, f"unknown {info.state}"),
        "status": int(info.status),
        "clique": int(info.cliqueId),
        "cluster": bytes(info.clusterUuid).hex().strip("0"),
        "degraded": bool(_bits(info.healthMask, "DEGRADED_BW") == pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE),
        "faults": _fabric_faults(info.healthMask),
    }


def _bits(mask: int, name: str) -> int:
    shift, width = (getattr(pynvml, f"NVML_GPU_FABRIC_HEALTH_MASK_{what}_{name}") for what in ("SHIFT", "WIDTH"))
    return int((mask >> shift) & width)


def _fabric_faults(mask: int) -> list[str]:
    """All that the mask of health says is wrong, not its bandwidth alone; empty on a driver that tells none."""
    faults = [words for words, (name, value) in FABRIC_FAULTS.items() if _bits(mask, name) == value]
    wrong = _bits(mask, "INCORRECT_CONFIGURATION")
    return faults + ([MISCONFIGURED.get(wrong, f"unknown {wrong}")] if wrong > 1 else [])


def _sram(handle: Any) -> list[int]:
    """Uncorrected errors of the chip's own memories since it was made, and whether they are too many."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return [int(status.aggregateUncParity + status.aggregateUncSecDed), int(status.bThresholdExceeded)]


def _peers(handle: Any) -> dict[str, int]:
    """NVLinks that are up, by what is at their other end: "switch", or a GPU's bus."""
    peers: dict[str, int] = {}
    for link in range(_nvlinks(handle)[1]):
        if pynvml.nvmlDeviceGetNvLinkState(handle, link):
            kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            name = "switch"
            if kind != pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                bus = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
                name = bus.decode() if isinstance(bus, bytes) else str(bus)
            peers[name] = peers.get(name, 0) + 1
    return peers


def _bus(handle: Any) -> str:
    """PCI domain, bus, device and function, as Linux names them: "0000:17:00.0"."""
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    domain, _, rest = (bus.decode() if isinstance(bus, bytes) else str(bus)).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _nanoseconds(handle: Any, number: int) -> int:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal)


def _xids(handle: Any) -> list[int]:
    """XIDs of this GPU that the kernel's log still holds; raises OSError where it may not be read."""
    name = _bus(handle).rpartition(".")[0]
    return [xid.number for xid in kernel_log.read(KERNEL_LOG) if name.endswith(xid.bus.lower().partition(".")[0])]


def _in_base_unit(query: Query, handle: Any) -> Callable[[], float]:
    return lambda: query.ask(handle) * BASE_UNITS[query.unit]


def _only(answer: Any) -> int:
    """The one number of an answer: nvidia-ml-py gives the default ECC mode in a list."""
    return int(answer[0] if isinstance(answer, list) else answer)


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
