"""Task 5.5: read all GPUs in base units, and live with what they cannot tell.

Not for exporting what was read: exporting.py.
"""

from typing import Any

import pynvml

from labkit.monitoring import GpuReading
from labkit.monitoring.nvml import QUERIES, THROTTLE_REASONS, XidCounter, identity, throttle_mask


def base_value(unit: str, answer: float) -> float:
    """An answer of NVML in the base unit: ratios, bytes, degrees, watts, joules, hertz, bytes per second, counts.

    Args:
        unit: what NVML answered in, one of `labkit.monitoring.nvml.UNITS`.
        answer: what it answered.

    Raises:
        KeyError: the unit is unknown.

    Source: https://prometheus.io/docs/practices/naming/#base-units
    """
    if unit in ("bytes", "celsius", "count"):
        return answer
    if unit == "percent":
        return answer / 100
    if unit in ("milliwatts", "millijoules"):
        return answer / 1000
    if unit == "megahertz":
        return answer * 1_000_000
    if unit == "kilobytes_per_second":
        return answer * 1000
    raise KeyError(unit)


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
    values: dict[str, Any] = {}
    try:
        for query in QUERIES:
            try:
                values[query.field] = base_value(query.unit, query.ask(handle))
            except pynvml.NVMLError_GpuIsLost:
                raise
            except pynvml.NVMLError:
                pass
        try:
            values["uuid"], values["name"] = identity(handle)
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError:
            pass
        try:
            mask = throttle_mask(handle)
            values["throttle_reasons"] = tuple(THROTTLE_REASONS[bit] for bit in THROTTLE_REASONS if bit & mask == bit)
        except pynvml.NVMLError_GpuIsLost:
            raise
        except pynvml.NVMLError:
            pass
    except pynvml.NVMLError_GpuIsLost:
        return GpuReading(index=index, up=False)
    if xids is not None:
        values["xid_errors"] = xids.count()
    return GpuReading(index=index, **values)


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
        self.started = False
        self.gpus: dict[int, tuple[Any, XidCounter | None]] = {}
        try:
            pynvml.nvmlInit()
            self.started = True
            count = pynvml.nvmlDeviceGetCount()
            for index in range(count):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                except pynvml.NVMLError:
                    self.gpus[index] = (None, None)
                else:
                    self.gpus[index] = (handle, XidCounter(handle))
            if count == 0:
                self.message = "NVML runs, but there is no GPU to watch"
        except pynvml.NVMLError as error:
            if isinstance(error, pynvml.NVMLError_LibraryNotFound):
                self.message = "NVML (libnvidia-ml) is not installed, so no GPU is watched"
            elif isinstance(error, pynvml.NVMLError_DriverNotLoaded):
                self.message = "NVIDIA's driver is not loaded, so no GPU is watched"
            else:
                self.message = f"NVML answers '{error}', so no GPU is watched".replace("\n", " ")

    def read(self) -> tuple[GpuReading, ...]:
        """One reading per GPU, in the order of their indices; empty where there is nothing to read."""
        readings = []
        for index, (handle, xids) in sorted(self.gpus.items()):
            if handle is None:
                readings.append(GpuReading(index=index, up=False))
            else:
                readings.append(read_gpu(handle, index, xids))
        return tuple(readings)

    def close(self) -> None:
        """Give back what was taken: counters, then NVML. `read` gives nothing then; a second call does nothing."""
        for _, xids in self.gpus.values():
            if xids is not None:
                xids.close()
        self.gpus = {}
        if self.started:
            self.started = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                pass
