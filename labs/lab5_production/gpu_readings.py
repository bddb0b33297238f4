"""Task 5.5: read all GPUs in base units, and live with what they cannot tell.

Not for exporting what was read: exporting.py.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from labkit.monitoring import GpuReading
from labkit.monitoring.nvml import QUERIES, THROTTLE_REASONS, Query, XidCounter, identity, throttle_mask


def base_value(unit: str, answer: float) -> float:
    """An answer of NVML in the base unit: ratios, bytes, degrees, watts, joules, hertz, bytes per second, counts.

    Args:
        unit: what NVML answered in, one of `labkit.monitoring.nvml.UNITS`.
        answer: what it answered.

    Raises:
        KeyError: the unit is unknown.

    Source: https://prometheus.io/docs/practices/naming/#base-units
    """
    # TODO(task 5.5):
    # 1. How many base units is one of this unit? Bytes, degrees and counts are base units already.
    raise NotImplementedError(
        "Task 5.5 is open: write base_value "
        "in labs/lab5_production/gpu_readings.py (about 11 lines)"
    )


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
    # TODO(task 5.5):
    # 1. Ask every query of QUERIES, then identity and throttle_mask; on an NVMLError leave the field out.
    # 2. Numbers go through base_value; the mask becomes the names of its bits.
    # 3. One error is different: a lost GPU ends the reading with up=False.
    raise NotImplementedError(
        "Task 5.5 is open: write read_gpu "
        "in labs/lab5_production/gpu_readings.py (about 16 lines)"
    )


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
        # TODO(task 5.5):
        # 1. nvmlInit. It raises NVMLError_LibraryNotFound without the library, NVMLError_DriverNotLoaded without the
        #    driver, and other NVMLErrors for other reasons: make a message of each.
        # 2. Take a handle of each GPU, and a counter of its XID errors.
        # 3. No GPU at all is worth a message, too.
        raise NotImplementedError(
            "Task 5.5 is open: write GpuReader.__init__ "
            "in labs/lab5_production/gpu_readings.py (about 18 lines)"
        )

    def read(self) -> tuple[GpuReading, ...]:
        """One reading per GPU, in the order of their indices; empty where there is nothing to read."""
        # TODO(task 5.5):
        # 1. read_gpu for every GPU.
        raise NotImplementedError(
            "Task 5.5 is open: write GpuReader.read "
            "in labs/lab5_production/gpu_readings.py (about 4 lines)"
        )

    def close(self) -> None:
        """Give back what was taken: counters, then NVML. `read` gives nothing then; a second call does nothing."""
        # TODO(task 5.5):
        # 1. Close the counters.
        # 2. nvmlShutdown, once, and only if it was started.
        raise NotImplementedError(
            "Task 5.5 is open: write GpuReader.close "
            "in labs/lab5_production/gpu_readings.py (about 9 lines)"
        )
