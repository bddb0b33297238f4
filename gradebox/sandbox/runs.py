"""One run after the other: forks a supervisor for each request, and ends everything that it started.

Used where the process that forks is ready for the request (`templates.py`). Not for what a supervisor does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from typing import Any

from gradebox.sandbox import devices, linux, machine, processes, supervisor
from gradebox.sandbox.device_process import DeviceProcess, Ends
from gradebox.sandbox.prefork_state import PreforkState


class Runs:
    """Those of one process, which has at most one at a time."""

    def __init__(self, config: machine.Config, site: machine.Machine, ready: PreforkState, *, skip_pids: int) -> None:
        """`skip_pids` are the numbers that no rank may get, see `supervisor.Run`."""
        self._config = config
        self._site = site
        self._ready = ready
        self._skip_pids = skip_pids
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if site.namespaces else -1
        self._pid = 0
        self._work = ""
        self._devices = devices.load(config.of_course.devices)
        self._device = DeviceProcess(config.of_course.devices, ready.prepared)

    def device_for(self, request: dict[str, Any], conditions: bytes) -> Ends:
        """A run's connections to a device of its own, in a process of its own, where the course has such.

        Raises:
            OSError: there is no process to be had.
        """
        if not self._devices.serves(request["device"]):
            return Ends()
        present = request.get("submission") is not None
        return self._device.begin(request["device"], request.get("ranks", 1), present=present, conditions=conditions)

    def start(self, number: int, request: dict[str, Any], tensors: bytes, out: int, device: Ends) -> None:
        """Fork a supervisor for the server's n-th request. Its frame goes to `out`; `device` are its run's to keep.

        Raises:
            OSError: there is no process, or no disk, to be had.
        """
        namespaces = self._site.namespaces
        self._pid = 0
        self._work = "/tmp/work" if namespaces else self._make_work(number)
        task = machine.task(
            request,
            self._config,
            self._site.view,
            self._site.uid_of(number),
            namespaces=namespaces,
            filtered=not self._site.unfiltered,
            tensors=tensors,
            work=self._work,
        )
        run = supervisor.Run(
            task=task,
            ready=self._ready,
            namespaces=namespaces,
            view=self._site.view,
            mount_point=f"{self._config.home}/root",
            submission=request.get("submission"),
            out=out,
            device=device,
            skip_pids=self._skip_pids,
        )
        if namespaces:
            linux.unshare(linux.CLONE_NEWPID)  # for our next child only, see below
        try:
            child = os.fork()
            if child == 0:
                supervisor.main(run)
            self._pid = child
        finally:
            if namespaces:
                linux.setns(self._own_pids, linux.CLONE_NEWPID)

    def end(self) -> None:
        """Return only when every process of the run has ended."""
        if self._pid:
            # Where orphans are not handed to us, they are ended together with the supervisor.
            below = [] if linux.AVAILABLE else processes.descendants(self._pid)
            processes.send([self._pid, *below], signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)  # for process 1 of a namespace, this waits for everything in it
        if not self._site.namespaces:
            processes.end_descendants()
            _remove(self._work)

    def _make_work(self, number: int) -> str:
        # Of its own: a server before this one may have left a folder of this number.
        work = tempfile.mkdtemp(prefix=f"work-{number}-", dir=self._config.home)
        uid = self._site.uid_of(number)
        if uid is not None:
            os.chown(work, uid, uid)
        return work


def _remove(folder: str) -> None:
    """Delete a run's folder although the submission may have taken permissions away."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
