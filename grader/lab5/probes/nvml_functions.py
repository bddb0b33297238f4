"""The functions that stand in `pynvml` while its GPUs are made up (`fake_nvml`): they lead to nothing that knows more.

Imports nothing of `grader`: whoever holds a function holds its module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pynvml

_PREFIXES = (
    *("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEventSet", "nvmlVgpu", "nvmlGpm", "nvmlGpuInstance"),
    *("nvmlComputeInstance", "nvmlGet"),
)
_PLAIN = {
    "nvmlDeviceGetPowerUsage": "power_milliwatts",
    "nvmlDeviceGetTemperature": "celsius",
    "nvmlDeviceGetTemperatureV": "celsius",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
}


def asker(answers: Generator[Any, tuple[Any, ...]]) -> Callable[..., Any]:
    """A function that asks a generator one request at a time, and raises what it answers with."""
    lock = threading.Lock()

    def ask(*request: Any) -> Any:
        with lock:  # a generator runs in one thread at a time
            answer = answers.send(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def take_the_place_of_pynvml(ask: Callable[..., Any]) -> None:
    """Replace the functions of `pynvml`, for good; those that are not written out here are not supported."""

    def not_supported(*_: Any, **__: Any) -> Any:
        ask("count")
        raise problem("NOT_SUPPORTED")

    for name in [name for name in vars(pynvml) if name.startswith(_PREFIXES)]:
        if callable(getattr(pynvml, name)):
            setattr(pynvml, name, not_supported)
    for name, function in _functions(ask).items():
        setattr(pynvml, name, function)
    for name in ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"):
        setattr(pynvml, name, lambda *_: ask("start"))
    pynvml.nvmlShutdown = lambda: ask("stop")


def _functions(ask: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    def question(index: Any, key: str) -> Any:
        wait = ask("note", index)
        if wait is not None:
            wait()  # outside of the lock: others may ask meanwhile
        return ask("know", index, key)

    def plain(key: str) -> Callable[..., Any]:
        return lambda handle, *_: question(handle, key)

    def memory(handle: int, *_: Any) -> Any:
        used, total = question(handle, "used_bytes"), question(handle, "total_bytes")
        return SimpleNamespace(used=used, total=total, free=total - used, reserved=0)

    functions: dict[str, Callable[..., Any]] = {name: plain(key) for name, key in _PLAIN.items()}
    functions |= {
        "nvmlDeviceGetCount": lambda: ask("count"),
        "nvmlDeviceGetCount_v2": lambda: ask("count"),
        "nvmlDeviceGetHandleByIndex": lambda index: ask("handle", index),
        "nvmlDeviceGetHandleByIndex_v2": lambda index: ask("handle", index),
        "nvmlDeviceGetIndex": lambda handle: handle,
        "nvmlDeviceGetMemoryInfo": memory,
    }
    return functions


def problem(name: str) -> Exception:
    """The error of this name."""
    error: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return error
