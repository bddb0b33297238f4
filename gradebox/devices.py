"""What submissions run on. A course that has more than the CPU brings a module of its own, which `course.toml` names.

That module runs in two places. In the judge, `parse` turns `--device` into a `Device`. In the sandbox's processes,
where the submission runs, the rest of `DeviceModule`: it is what the engine needs to know of PyTorch, CUDA or a
simulator, none of which it imports itself.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

CPU = "cpu"
"""The device that is always there."""


class DeviceError(Exception):
    """`--device` names something that is not there; the message says what to do."""


@dataclass(frozen=True)
class Device:
    """Where submissions run."""

    name: str
    """What the sandbox is asked for: `cpu`, or what the course knows: `cuda`, `vgpu:T4`."""

    label: str
    """The device's name for people."""

    simulated: bool = False
    """Whether its times are computed and not measured, so that a busy machine changes nothing."""

    serial: bool = False
    """Whether only one check at a time may use it: what it measures would be disturbed."""

    @property
    def model(self) -> str | None:
        """The simulated device's model; None of a real one."""
        return self.name.partition(":")[2] or None


class DeviceModule(Protocol):
    """What a course's module of devices defines."""

    def parse(self, option: str) -> Device:
        """What `--device` names. Raises `DeviceError`."""

    def attach(self, device: str, *, values: bool, ranks: int) -> AbstractContextManager[Any]:
        """In a process of the sandbox: make `device` available there; yields what probes get as `student.gpu`."""


def parse(option: str, module: str = "") -> Device:
    """The device that `--device` names, in the words of a course's `module`; without one there is the CPU.

    Raises:
        DeviceError: there is no such device.
    """
    if module:
        try:
            ours = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise DeviceError(f"the course's module of devices, {module}, cannot be imported: {error}") from None
        found: Device = ours.parse(option)
        return found
    if option not in ("auto", CPU):
        raise DeviceError(f"--device {option}: this course runs on the CPU; expected auto or cpu")
    return Device(CPU, "CPU")
