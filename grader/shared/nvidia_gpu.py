"""Which NVIDIA GPU is graded on, and what the engine has to know of it, by NVML. Runs in the judge, without torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

import pynvml

from gradebox.sandbox.devices import Device

T = TypeVar("T")

_ALL = "GPU"
"""Stands for the hardware if NVML does not name it: one name for all GPUs of the machine."""


def find() -> Device | None:
    """The GPU that CUDA calls the first; None without a driver or a GPU."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
        handle = first_visible()
        memory = _answer(pynvml.nvmlDeviceGetMemoryInfo, handle)
        mode = _answer(pynvml.nvmlDeviceGetComputeMode, handle)
        return Device(
            "cuda",
            _text(pynvml.nvmlDeviceGetName(handle)),
            hardware=_text(_answer(pynvml.nvmlDeviceGetUUID, handle) or _ALL),
            memory_bytes=None if memory is None else int(memory.total),
            one_process=mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        )
    finally:
        pynvml.nvmlShutdown()


def first_visible() -> object:
    """NVML's handle of the first GPU in `CUDA_VISIBLE_DEVICES`; of the first of all if that names none."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    with contextlib.suppress(pynvml.NVMLError):
        if first.isdigit():
            return pynvml.nvmlDeviceGetHandleByIndex(int(first))
        if first:  # GPU-... or MIG-..., whose memory is the slice's
            return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def _answer(ask: Callable[[object], T], handle: object) -> T | None:
    """What NVML answers; None if it does not tell."""
    try:
        return ask(handle)
    except pynvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
