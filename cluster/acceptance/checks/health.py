"""What NVML says of a GPU before and after the work: only what got worse while it ran can fail."""

import time
from typing import Any

import pynvml
import torch

from cluster.acceptance.context import Context
from cluster.acceptance.nvml import read
from labkit.monitoring.nvml import XidCounter

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
    result = _measure(context, after=True)
    reading = result.get("reading")
    if reading and context.has_fault("hot"):
        reading["temperature_celsius"] = (reading.get("maximum_celsius") or 90) + 12
    if reading and context.has_fault("lost"):
        result["reading"] = {"up": False}
    return result


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


def _topology(context: Context) -> dict[str, str]:
    """How this GPU reaches each other one of its node, by index."""
    topology = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            other = pynvml.nvmlDeviceGetHandleByIndex(index)
            level = pynvml.nvmlDeviceGetTopologyCommonAncestor(context.kept["handle"], other)
        except pynvml.NVMLError:
            continue
        topology[str(index)] = ANCESTORS.get(int(level), f"level {level}")
    return topology
