"""The NVIDIA driver and the GPUs, asked through NVML: it needs no PyTorch, and knows what CUDA the driver can do."""

from __future__ import annotations

import os
from dataclasses import dataclass

from grader.doctor.fact import Fact, gigabytes, note, ok, wrong

VIRTUAL = "the labs run on the virtual GPU, a simulated T4"
_MISMATCH, _NO_PERMISSION, _LOST = 18, 4, 15


@dataclass(frozen=True)
class Driver:
    """What NVML says."""

    fact: Fact
    gpus: int = 0
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver knows."""


def examine() -> Driver:
    try:
        import pynvml
    except ImportError:
        return Driver(note("GPU", f"nvidia-ml-py is not installed, so no GPU can be read; {VIRTUAL}"))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(_refused(error))
    try:
        return _driver(pynvml)
    except pynvml.NVMLError as error:
        return Driver(_refused(error))
    finally:
        pynvml.nvmlShutdown()


def _driver(nvml: object) -> Driver:
    ask = nvml
    version = _text(ask.nvmlSystemGetDriverVersion())  # type: ignore[attr-defined]
    number = int(ask.nvmlSystemGetCudaDriverVersion_v2())  # type: ignore[attr-defined]
    cuda = number // 1000, number % 1000 // 10
    count = int(ask.nvmlDeviceGetCount())  # type: ignore[attr-defined]
    if not count:
        return Driver(ok("GPU", f"driver {version}, but no GPU; {VIRTUAL}"), 0, cuda)
    names = []
    for index in range(count):
        handle = ask.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
        memory = ask.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
        name = _text(ask.nvmlDeviceGetName(handle))  # type: ignore[attr-defined]
        names.append(f"{name} ({gigabytes(memory.free)} of {gigabytes(memory.total)} free)")
    text = f"{', '.join(names)}; driver {version}, up to CUDA {cuda[0]}.{cuda[1]}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return Driver(
            wrong("GPU", f"{text}; but CUDA_VISIBLE_DEVICES hides them from PyTorch", "unset CUDA_VISIBLE_DEVICES"),
            count,
            cuda,
        )
    return Driver(ok("GPU", text), count, cuda)


def _refused(error: Exception) -> Fact:
    code = getattr(error, "value", None)
    if code == _MISMATCH:
        return wrong(
            "GPU", "the NVIDIA driver was updated and the old one still runs (NVML: version mismatch)", "sudo reboot"
        )
    if code == _NO_PERMISSION:
        return wrong(
            "GPU", "this user may not talk to the NVIDIA driver", "ls -l /dev/nvidia*", "sudo usermod -aG video $USER"
        )
    if code == _LOST:
        return wrong("GPU", "a GPU has fallen off the bus", "sudo reboot")
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version"):
        return wrong("GPU", f"there is an NVIDIA driver, but NVML says: {error}", "nvidia-smi", "sudo reboot")
    return ok("GPU", f"no NVIDIA driver: {VIRTUAL}")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
