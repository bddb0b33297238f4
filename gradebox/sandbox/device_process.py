"""The process of a simulated device: next to a template, out of reach of what that forks, for one run after the other.

A submission's processes hold nothing of it but one end of a connection each. Its settings (`conditions`) and
what is read of it (`readings`) pass between it and the judge's side alone. Not for what a device is: that is the
course's (`DeviceModule.serve`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from gradebox.sandbox import codec, devices, linux, processes, wire
from gradebox.sandbox.types import SandboxError

NAME = "gpulabs-device"
MAX_ORDER_BYTES = 2**24
_REPORT_SECONDS = 60.0
"""How long a device may take to do the last of its work, and to report."""
_NEW = b"n"


@dataclass(frozen=True)
class Ends:
    """A run's ends of its connections to the device, as descriptors."""

    ranks: tuple[int, ...] = ()
    """One for each worker; empty where there is no such device."""
    control: int = -1
    """The supervisor's."""

    @property
    def all(self) -> frozenset[int]:
        return frozenset(self.ranks) | ({self.control} if self.ranks else set())

    def close(self) -> None:
        for descriptor in self.all:
            os.close(descriptor)


class DeviceProcess:
    """One of them, seen from the template that starts it."""

    def __init__(self, module: str, prepared: Any) -> None:
        """`module` is the course's of devices, `prepared` what its `prepare` returned."""
        self._module = module
        self._prepared = prepared
        self._pid = 0
        self._channel: socket.socket | None = None

    def begin(self, device: str, ranks: int, *, present: bool, conditions: bytes) -> Ends:
        """A fresh device for a run of so many ranks. It is started where there is none, or where it has ended.

        `present` says whether there is a submission, `conditions` are JSON for `DeviceModule.serve`.

        Raises:
            OSError: there is no process to be had.
        """
        # A line of its own for each rank, and one that no worker inherits: over that one alone the readings come, so a
        # submission can neither ask for them nor answer in the device's name.
        pairs = [socket.socketpair() for _ in range(ranks + 1)]
        order = codec.join(codec.dump_json({"device": device, "present": present}), conditions)
        far = [there.fileno() for _, there in pairs]
        try:
            for attempt in range(2):
                channel = self._channel or self._start()
                try:
                    socket.send_fds(channel, [_NEW], far)
                    wire.send(channel.fileno(), order)
                    break
                except (OSError, wire.Closed):  # the last run of an ordinary user may have ended it with all else
                    self.kill()
                    if attempt:
                        raise OSError("the device's process ends") from None
        finally:
            for _, there in pairs:
                there.close()
        ends = [here.detach() for here, _ in pairs]
        return Ends(tuple(ends[:-1]), ends[-1])

    def _start(self) -> socket.socket:
        # Forked from the template and not from a worker: no process of the submission is its parent or its child, and
        # in the worker's pid namespace it does not exist.
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _live(there, self._module, self._prepared)
        there.close()
        self._pid, self._channel = pid, here
        return here

    def kill(self) -> None:
        """End it."""
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        processes.send([self._pid], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def report(ends: Ends) -> bytes:
    """What a run's device has read, as JSON, when every process of the run has ended; nothing where there is none.

    Raises:
        SandboxError: it does not answer.
    """
    if not ends.ranks:
        return b""
    # Only now, when every process of the run has ended: nothing that the submission does can follow the readings.
    control = Connection(ends.control)
    try:
        control.send_bytes(b"end")
        if control.poll(_REPORT_SECONDS):
            return control.recv_bytes()
    except (OSError, EOFError):
        pass
    finally:
        control.close()
    raise SandboxError("the simulated device's process does not answer")


def _live(channel: socket.socket, module: str, prepared: Any) -> NoReturn:
    try:
        if linux.AVAILABLE:
            linux.die_with_parent(signal.SIGKILL)
            with contextlib.suppress(OSError):  # what `ps` shows
                Path("/proc/self/comm").write_text(NAME)
            # Not even a process of the same user may read its memory or attach a debugger.
            linux.set_dumpable(False)
        # A forgotten end of a worker's pipe would keep that pipe open, and somebody would wait for its end for ever.
        linux.close_all_but({0, 1, 2, channel.fileno()})
        device_module = devices.load(module)
        while True:
            word, descriptors, _, _ = socket.recv_fds(channel, 1, 66)
            if word != _NEW:
                os._exit(0)
            order, conditions = codec.split(wire.receive(channel.fileno(), max_bytes=MAX_ORDER_BYTES))
            about, parsed = codec.load_json(order), codec.load_json(conditions) if conditions else []
            *lines, control = [Connection(descriptor) for descriptor in descriptors]
            try:
                said = device_module.serve(
                    about["device"], lines, control, present=about["present"], conditions=parsed, prepared=prepared
                )
            except Exception:  # there is no such device, which the workers find out, too
                traceback.print_exc()
                said = {"readings": [[] for _ in lines], "faults": ["" for _ in lines]}
                with contextlib.suppress(OSError, EOFError):
                    control.recv_bytes()  # when all is over
            with contextlib.suppress(OSError):  # nobody wants to know any more
                control.send_bytes(codec.dump_json(said))
            for connection in (*lines, control):
                connection.close()
    except (ConnectionError, wire.Closed):  # the template has ended
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # to the server's log
        os._exit(1)
