"""Reads GPUs with a small cursor that remembers whether the GPU is still there."""

from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVMLError,
    nvmlDeviceGetCount,
    nvmlDeviceGetHandleByIndex,
    nvmlInit,
    nvmlShutdown,
)

from labkit.monitoring import GpuReading, nvml


def base_value(unit, answer):
    match unit:
        case "percent":
            return answer / 100
        case "milliwatts" | "millijoules":
            return answer / 1000
        case "kilobytes_per_second":
            return answer * 1000
        case "megahertz":
            return answer * 1_000_000
        case "bytes" | "celsius" | "count":
            return answer
    raise KeyError(unit)


class _Lost(Exception):
    pass


def _attempt(function, *arguments):
    try:
        return function(*arguments)
    except NVMLError as error:
        if error.value == NVML_ERROR_GPU_IS_LOST:
            raise _Lost from None
        return None


def read_gpu(handle, index, xids=None):
    values = {"index": index}
    try:
        for query in nvml.QUERIES:
            answer = _attempt(query.ask, handle)
            values[query.field] = None if answer is None else base_value(query.unit, answer)
        if (mask := _attempt(nvml.throttle_mask, handle)) is not None:
            values["throttle_reasons"] = tuple(
                nvml.THROTTLE_REASONS[bit] for bit in nvml.THROTTLE_REASONS if bit & mask
            )
        if (who := _attempt(nvml.identity, handle)) is not None:
            values["uuid"], values["name"] = who
    except _Lost:
        return GpuReading(index=index, up=False)
    if xids is not None:
        values["xid_errors"] = xids.count()
    return GpuReading(**values)


class GpuReader:
    def __init__(self):
        self.message = None
        self.handles, self.counters = {}, {}
        self.running = False
        try:
            nvmlInit()
        except NVMLError as error:
            self.message = f"GPUs are not monitored ({error})"
            return
        self.running = True
        for index in range(_attempt(nvmlDeviceGetCount) or 0):
            try:
                self.handles[index] = nvmlDeviceGetHandleByIndex(index)
            except NVMLError:
                self.handles[index] = None
            else:
                self.counters[index] = nvml.XidCounter(self.handles[index])
        if not self.handles:
            self.message = "GPUs are not monitored (there are none)"

    def read(self):
        found = []
        for index, handle in self.handles.items():
            if handle is None:
                found.append(GpuReading(index=index, up=False))
            else:
                found.append(read_gpu(handle, index, self.counters[index]))
        return tuple(found)

    def close(self):
        running, self.running = self.running, False
        for counter in self.counters.values():
            counter.close()
        self.handles, self.counters = {}, {}
        if running:
            nvmlShutdown()
