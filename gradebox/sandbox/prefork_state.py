"""What is the same for all requests of a kind, done once in a process from which their supervisors are forked.

A forked worker that attaches a simulated device, or looks at all functions of ours, copies every page of memory that it
touches; what was done before the fork costs it nothing. Not for anything that a request says beyond its kind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from dataclasses import dataclass
from typing import Any

from gradebox.sandbox import byte_access, devices, instruments, linux, trusted_code
from gradebox.sandbox.devices import DeviceModule
from gradebox.sandbox.types import Environment


@dataclass(frozen=True)
class PreforkState:
    """What a worker finds done."""

    prepared: Any
    """What `DeviceModule.prepare` returned. None where there is nothing to prepare, or where it failed: then the worker
    meets the same error, and reports it."""
    fingerprints: instruments.Fingerprint
    """Of the code of our packages, as it is with the device prepared."""
    modules: frozenset[str]
    """Names of those packages' modules."""
    packages: frozenset[str]
    """Names of those packages."""
    imported: int
    """How many modules of all packages `sys.modules` has."""

    def covers(self, probe: str, gpu: object) -> bool:
        """Whether nothing of our packages has been imported since: the probe's module, by name, or the simulator."""
        others = gpu is not None and self.prepared is None
        return not others and (probe in self.modules or probe.partition(".")[0] not in self.packages)


def make(kind: str, course: Environment) -> PreforkState:
    """Get ready, and see that this process can go on forking.

    Args:
        kind: what `DeviceModule.prepares` said of the requests' device; empty where there is nothing to prepare.
        course: whose devices they are.

    Raises:
        RuntimeError: it has several threads.
    """
    module = devices.load(course.devices)
    byte_access.prepare()
    prepared = _prepare(kind, module) if kind else None
    trusted_code.remember(course.course, module.SIMULATOR)
    packages = instruments.own_packages(course, module.SIMULATOR)
    roots = frozenset(package.__name__ for package in packages)
    names = frozenset(name for name in sys.modules if name.partition(".")[0] in roots)
    ready = PreforkState(prepared, instruments.snapshot(packages, module), names, roots, len(sys.modules))
    require_one_thread()
    # Objects that live as long as this process need not be visited, and so copied, by any child's collector.
    gc.collect()
    gc.freeze()
    return ready


def _prepare(kind: str, module: DeviceModule) -> Any:
    with contextlib.suppress(Exception):
        return module.prepare(kind)
    return None


def require_one_thread() -> None:
    """A process with several threads cannot be forked safely.

    Raises:
        RuntimeError: this is one.
    """
    if linux.AVAILABLE and (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"the server has {threads} threads after preloading, so forking it is not safe")
