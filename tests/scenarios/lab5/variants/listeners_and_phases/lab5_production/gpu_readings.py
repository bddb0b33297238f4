"""Task 5.5: read all GPUs in base units, and live with what they cannot tell.

Not for exporting what was read: exporting.py.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

from labkit.monitoring import GpuReading
from labkit.monitoring.nvml import QUERIES, THROTTLE_REASONS, XidCounter, identity, throttle_mask

SCALES = {
    "percent": (1, 100),
    "bytes": (1, 1),
    "celsius": (1, 1),
    "milliwatts": (1, 1000),
    "millijoules": (1, 1000),
    "megahertz": (10**6, 1),
    "kilobytes_per_second": (1000, 1),
    "count": (1, 1),
}
"""What to multiply with, and what to divide by: whole numbers, so that bytes stay whole and 0.42 is 0.42."""


def _reasons(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _shut_down() -> None:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def base_value(unit: str, answer: float) -> float:
    """An answer of NVML in the base unit: ratios, bytes, degrees, watts, joules, hertz, bytes per second, counts.

    Args:
        unit: what NVML answered in, one of `labkit.monitoring.nvml.UNITS`.
        answer: what it answered.

    Raises:
        KeyError: the unit is unknown.

    Source: https://prometheus.io/docs/practices/naming/#base-units
    """
    up, down = SCALES[unit]
    return answer * up if down == 1 else answer / down


def read_gpu(handle: Any, index: int, xids: XidCounter | None = None) -> GpuReading:
    """Everything that one GPU tells now.

    A field whose query fails stays None, whatever the reason: not supported, not permitted, not known to this driver.
    When the GPU is lost (NVMLError_GpuIsLost), the reading has its index, `up=False`, and nothing that is measured.

    Args:
        handle: NVML's, of the GPU.
        index: the GPU's index.
        xids: counts its XID errors; None: they are not counted.

    Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (nvmlReturn_t)
    """
    asked: dict[str, Callable[[], Any]] = {
        query.field: lambda query=query: base_value(query.unit, query.ask(handle)) for query in QUERIES
    }
    asked["identity"] = lambda: identity(handle)
    asked["throttle_reasons"] = lambda: _reasons(throttle_mask(handle))
    told: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            told[name] = ask()
        except pynvml.NVMLError_GpuIsLost:
            return GpuReading(index=index, up=False)
        except pynvml.NVMLError:
            continue
    uuid, product = told.pop("identity", (None, None))
    return GpuReading(index=index, uuid=uuid, name=product, xid_errors=None if xids is None else xids.count(), **told)


class GpuReader:
    """All GPUs of this machine, through NVML, for as long as it is open.

    Attributes:
        message: why there is nothing to read, for people, in one line; None when there is.
    """

    message: str | None

    def __init__(self) -> None:
        """Start NVML and find the GPUs. Never raises an NVMLError: where NVML or its driver is missing, `message` says
        so, and `read` gives nothing. A GPU of which NVML gives no handle is there for `read`, as one that is not up.
        NVML counts its users: each start wants one `close`."""
        self.message = None
        self._open = contextlib.ExitStack()
        self._gpus: list[Callable[[], GpuReading]] = []
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError_LibraryNotFound:
            self.message = "no GPU is monitored: NVML's library is not on this machine"
            return
        except pynvml.NVMLError_DriverNotLoaded:
            self.message = "no GPU is monitored: NVIDIA's driver is not loaded"
            return
        except pynvml.NVMLError as error:
            self.message = f"no GPU is monitored: NVML does not start ({_line(error)})"
            return
        self._open.callback(_shut_down)
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.message = f"no GPU is monitored: NVML does not say how many there are ({_line(error)})"
            return
        if not count:
            self.message = "no GPU is monitored: NVML finds none"
        for index in range(count):
            self._gpus.append(self._gpu(index))

    def read(self) -> tuple[GpuReading, ...]:
        """One reading per GPU, in the order of their indices; empty where there is nothing to read."""
        return tuple(read() for read in self._gpus)

    def close(self) -> None:
        """Give back what was taken: counters, then NVML. `read` gives nothing then; a second call does nothing."""
        self._gpus = []
        self._open.close()

    def _gpu(self, index: int) -> Callable[[], GpuReading]:
        """How to read one GPU."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:
            return partial(GpuReading, index=index, up=False)
        xids = XidCounter(handle)
        self._open.callback(xids.close)
        return partial(read_gpu, handle, index, xids)
