"""The functions that stand in `pynvml` while its GPUs are made up (`fake_nvml`): they lead to nothing that knows more.

Imports nothing of `grader`: whoever holds a function holds its module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import sleep
from types import SimpleNamespace
from typing import TypeAlias, cast

import pynvml

Request: TypeAlias = tuple[object, ...]
"""What is asked of the made-up GPUs: the name of a method of `FakeNvml`, and its arguments."""
Ask: TypeAlias = Callable[..., object]
"""Asks for one method's answer; takes its name and its arguments."""


@dataclass(frozen=True)
class Later:
    """In place of an answer: ask again in so many seconds."""

    seconds: float


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


def asker(answers: Generator[object, Request]) -> Ask:
    """A function that asks a generator one request at a time, and raises what it answers with."""
    lock = threading.Lock()

    def ask(*request: object) -> object:
        with lock:  # a generator runs in one thread at a time
            answer = answers.send(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def take_the_place_of_pynvml(ask: Ask) -> None:
    """Replace the functions of `pynvml`, for good; those that are not written out here are not supported."""

    def not_supported(*_: object, **__: object) -> object:
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


def _functions(ask: Ask) -> dict[str, Callable[..., object]]:
    def question(index: object, key: str) -> object:
        while isinstance(answer := ask("ask", index, key), Later):
            sleep(answer.seconds)  # outside of the lock: others may ask meanwhile
        return answer

    def plain(key: str) -> Callable[..., object]:
        return lambda handle, *_: question(handle, key)

    def memory(handle: object, *_: object) -> SimpleNamespace:
        used, total = (cast(int, question(handle, key)) for key in ("used_bytes", "total_bytes"))
        return SimpleNamespace(used=used, total=total, free=total - used, reserved=0)

    functions: dict[str, Callable[..., object]] = {name: plain(key) for name, key in _PLAIN.items()}
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
