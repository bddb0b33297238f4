"""Read all GPUs in base units, and live with what they cannot tell.

Not for exporting what was read: exports.py.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from labkit.monitoring.nvml import QUERIES, THROTTLE_REASONS, Query, XidCounter, identity, throttle_mask
from labkit.monitoring.readings import GpuReading


def base_value(unit: str, answer: float) -> float:
    """An answer of NVML in the base unit: ratios, bytes, degrees, watts, joules, hertz, bytes per second, counts.

    Args:
        unit: what NVML answered in, one of `labkit.monitoring.nvml.UNITS`.
        answer: what it answered.

    Raises:
        KeyError: the unit is unknown.

    Source: https://prometheus.io/docs/practices/naming/#base-units
    """
    factors = {
        "percent": 0.01,
        "bytes": 1,
        "celsius": 1,
        "milliwatts": 1e-3,
        "millijoules": 1e-3,
        "megahertz": 1e6,
        "kilobytes_per_second": 1e3,
        "count": 1,
    }
    return answer * factors[unit]


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
    values: dict[str, Any] = {"xid_errors": None if xids is None else xids.count()}
    asks = [*((query.field, _in_base_unit(query)) for query in QUERIES), ("identity", identity), ("reasons", _reasons)]
    for name, ask in asks:
        try:
            values[name] = ask(handle)
        except pynvml.NVMLError_GpuIsLost:
            return GpuReading(index=index, up=False)
        except pynvml.NVMLError:
            continue
    uuid, name = values.pop("identity", (None, None))
    return GpuReading(index=index, uuid=uuid, name=name, throttle_reasons=values.pop("reasons", None), **values)


def _in_base_unit(query: Query) -> Callable[[Any], Any]:
    return lambda handle: base_value(query.unit, query.ask(handle))


def _reasons(handle: Any) -> tuple[str, ...]:
    mask = throttle_mask(handle)
    return tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


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
        self._gpus: list[tuple[Any, XidCounter] | None] = []
        self._started = False
        try:
            pynvml.nvmlInit()
            self._started = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.message = f"no GPU is monitored: NVML says {str(error)!r}; training metrics go on"
            return
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._gpus.append((handle, XidCounter(handle)))
            except pynvml.NVMLError:
                self._gpus.append(None)
        if not self._gpus:
            self.message = "no GPU is monitored: NVML finds none; training metrics go on"

    def read(self) -> tuple[GpuReading, ...]:
        """One reading per GPU, in the order of their indices; empty where there is nothing to read."""
        return tuple(
            GpuReading(index=index, up=False) if gpu is None else read_gpu(gpu[0], index, gpu[1])
            for index, gpu in enumerate(self._gpus)
        )

    def close(self) -> None:
        """Give back what was taken: counters, then NVML. `read` gives nothing then; a second call does nothing."""
        for _, xids in filter(None, self._gpus):
            xids.close()
        self._gpus = []
        if self._started:
            self._started = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return
