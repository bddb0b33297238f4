"""An NVML whose GPUs say what a check wants, under the names of `pynvml`; notes who asked what.

Patched before the student's code is imported, so that `from pynvml import ...` binds it too. What a GPU is not told to
know raises NVMLError_NotSupported, as do all functions that are not written out here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

_PREFIXES = (
    *("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEventSet", "nvmlVgpu", "nvmlGpm", "nvmlGpuInstance"),
    *("nvmlComputeInstance", "nvmlGet"),
)
_PLAIN = {
    "nvmlDeviceGetPowerUsage": "power_milliwatts",
    "nvmlDeviceGetEnforcedPowerLimit": "limit_milliwatts",
    "nvmlDeviceGetPowerManagementLimit": "limit_milliwatts",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_millijoules",
    "nvmlDeviceGetTemperature": "celsius",
    "nvmlDeviceGetTemperatureV": "celsius",
    "nvmlDeviceGetTotalEccErrors": "ecc",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "reasons",
    "nvmlDeviceGetCurrentClocksEventReasons": "reasons",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
}


class FakeNvml:
    """Takes `pynvml`'s place in this process, for good: a probe's process ends with its probe.

    Args:
        gpus: what each GPU knows, in NVML's own units; a key that is missing is not supported. `reasons` is a mask,
            `xids` a list of errors that the driver reports, once each.
        error: the name of the error that nvmlInit raises ("DRIVER_NOT_LOADED"); None: it works.
    """

    def __init__(self, gpus: Sequence[Mapping[str, Any]], *, error: str | None = None) -> None:
        self.gpus = [dict(gpu) for gpu in gpus]
        self.lost: set[int] = set()
        self.users = 0
        self.started = 0
        self.calls: list[int] = []
        """The thread of each question to a GPU."""
        self.asked_while_closed = 0
        self.gate: Callable[[], None] | None = None
        """Called in the middle of each question, where it may wait."""
        self._error = error
        for name in [name for name in vars(pynvml) if name.startswith(_PREFIXES)]:
            if callable(getattr(pynvml, name)):
                setattr(pynvml, name, self._not_supported)
        for name, function in self._functions().items():
            setattr(pynvml, name, function)
        for name in ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"):
            setattr(pynvml, name, self._init)
        pynvml.nvmlShutdown = self._shutdown

    def _init(self, *_: Any) -> None:
        if self._error is not None:
            raise _problem(self._error)
        self.users += 1
        self.started += 1

    def _shutdown(self) -> None:
        if not self.users:
            raise _problem("UNINITIALIZED")
        self.users -= 1

    def _not_supported(self, *_: Any, **__: Any) -> Any:
        self._open()
        raise _problem("NOT_SUPPORTED")

    def _open(self) -> None:
        if not self.users:
            self.asked_while_closed += 1
            raise _problem("UNINITIALIZED")

    def _ask(self, index: Any, key: str) -> Any:
        """What one GPU knows."""
        self._open()
        if not isinstance(index, int) or not 0 <= index < len(self.gpus):
            raise _problem("INVALID_ARGUMENT")
        self.calls.append(threading.get_ident())
        if self.gate is not None:
            self.gate()
        if index in self.lost:
            raise _problem("GPU_IS_LOST")
        if key not in self.gpus[index]:
            raise _problem("NOT_SUPPORTED")
        return self.gpus[index][key]

    def _functions(self) -> dict[str, Callable[..., Any]]:
        ask = self._ask

        def plain(key: str) -> Callable[..., Any]:
            return lambda handle, *_: ask(handle, key)

        def clock(handle: int, kind: int, *_: Any) -> Any:
            names = {pynvml.NVML_CLOCK_SM: "sm_megahertz", pynvml.NVML_CLOCK_GRAPHICS: "sm_megahertz"}
            return ask(handle, {**names, pynvml.NVML_CLOCK_MEM: "memory_megahertz"}.get(kind, ""))

        def memory(handle: int, *_: Any) -> Any:
            used, total = ask(handle, "used_bytes"), ask(handle, "total_bytes")
            return SimpleNamespace(used=used, total=total, free=total - used, reserved=0)

        def by_index(index: int) -> int:
            self._open()
            if not 0 <= index < len(self.gpus):
                raise _problem("INVALID_ARGUMENT")
            return index

        def count() -> int:
            self._open()
            return len(self.gpus)

        def register(handle: int, _: int, events: dict[str, Any]) -> None:
            ask(handle, "xids")
            events.setdefault("gpus", []).append(handle)

        def wait(events: dict[str, Any], *_: Any) -> Any:
            for handle in events.get("gpus", []):
                if waiting := ask(handle, "xids"):
                    return SimpleNamespace(
                        device=handle, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=waiting.pop(0)
                    )
            raise _problem("TIMEOUT")

        functions: dict[str, Callable[..., Any]] = {name: plain(key) for name, key in _PLAIN.items()}
        functions |= {
            "nvmlDeviceGetCount": count,
            "nvmlDeviceGetCount_v2": count,
            "nvmlDeviceGetHandleByIndex": by_index,
            "nvmlDeviceGetHandleByIndex_v2": by_index,
            "nvmlDeviceGetIndex": by_index,
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
                gpu=ask(handle, "busy_percent"), memory=ask(handle, "memory_busy_percent")
            ),
            "nvmlDeviceGetClockInfo": clock,
            "nvmlDeviceGetClock": clock,
            "nvmlDeviceGetPcieThroughput": lambda handle, counter: ask(
                handle, "received_kilobytes" if counter else "sent_kilobytes"
            ),
            "nvmlEventSetCreate": dict,
            "nvmlEventSetFree": lambda events: None,
            "nvmlDeviceRegisterEvents": register,
            "nvmlEventSetWait": wait,
            "nvmlEventSetWait_v2": wait,
        }
        return functions


def _problem(name: str) -> Exception:
    error: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return error
