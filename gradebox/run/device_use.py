"""How the requests of one grading use a real device: when each may run, and what disturbed a measurement.

Not here: what is run (`gradebox.sandbox`), and what a reply means for a check (`gradebox.run.endings`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradebox.run.device_lock import DeviceLock
from gradebox.sandbox import RankReply, Reply, Request, Sandbox, SandboxError, devices
from gradebox.sandbox.devices import Device
from gradebox.sandbox.measuring import measured_by

_NEIGHBOURS_FAULT = frozenset({"timeout", "crashed", "probe_error", "memory"})
"""How a run may end because others used the device, its memory or the processor at the same time."""
_WORDS_OF_A_FULL_DEVICE = ("out of memory", "CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS")


@dataclass(frozen=True)
class Answer:
    """A reply, and what is known of the device meanwhile."""

    reply: Reply
    measured: bool = False
    """Whether the request had a real device alone, because its probe measures."""
    disturbance: str = ""
    """What else happened to the device, in words; empty if nothing is known."""


class DeviceUse:
    """Runs the requests of one grading on its device; used by several threads."""

    def __init__(self, device: Device | None = None, course: Path | None = None, module: str = "") -> None:
        """`course` is the folder whose probes declare what they measure, `module` its module of devices."""
        self._device = device or Device(devices.CPU, "CPU")
        self._course = course
        self._module = module
        self._lock = DeviceLock(self._device.hardware)

    @property
    def device(self) -> str:
        """The device's name, as a request takes it."""
        return self._device.name

    @property
    def is_shared(self) -> bool:
        """Whether it is a real device, which others can disturb."""
        return bool(self._device.hardware)

    def run(self, request: Request, sandbox: Sandbox) -> Answer:
        """Run a request in its turn. Raises as `Sandbox.run` does."""
        if not self.is_shared:
            return Answer(sandbox.run(request))
        if self._measures(request):
            return self._measure(request, sandbox)
        with self._turn(sandbox, alone=self._device.one_process and request.device == self._device.name):
            reply = sandbox.run(request)
        if any(map(_may_be_the_neighbours, reply.ranks)):
            with self._turn(sandbox, alone=True):
                reply = sandbox.run(request)
        return Answer(reply)

    def shared(self, sandbox: Sandbox) -> DeviceTurn:
        """A turn while others run, for a request that no check makes."""
        return self._turn(sandbox, alone=self._device.one_process)

    def _measures(self, request: Request) -> bool:
        if request.device != self._device.name or self._course is None:
            return False
        return bool(measured_by(self._course, request.probe))

    def _measure(self, request: Request, sandbox: Sandbox) -> Answer:
        with (
            self._turn(sandbox, alone=True),
            devices.load(self._module).watch(self._device.name) as disturbances,
        ):
            reply = sandbox.run(request)
        return Answer(reply, measured=True, disturbance="; ".join(disturbances))

    def _turn(self, sandbox: Sandbox, *, alone: bool) -> DeviceTurn:
        return DeviceTurn(self._lock, sandbox, alone)


class DeviceTurn:
    """A context manager: the device is held while it is open.

    Raises on entry:
        SandboxError: the grading was ended meanwhile.
    """

    def __init__(self, lock: DeviceLock, sandbox: Sandbox, alone: bool) -> None:
        self._held = lock.held(alone=alone, abandoned=lambda: sandbox.abandoned)

    def __enter__(self) -> None:
        try:
            self._held.__enter__()
        except InterruptedError as error:
            raise SandboxError(str(error)) from None

    def __exit__(self, *error: object) -> None:
        self._held.__exit__(None, None, None)


def _may_be_the_neighbours(answer: RankReply) -> bool:
    if answer.kind in _NEIGHBOURS_FAULT:
        return True
    return answer.kind == "error" and any(words in answer.message for words in _WORDS_OF_A_FULL_DEVICE)
