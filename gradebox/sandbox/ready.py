"""What is the same for all requests of a kind, done once in a process from which their supervisors are forked.

A forked worker that attaches a virtual GPU, or looks at all functions of ours, copies every page of memory that it
touches; what was done before the fork costs it nothing. Not for anything that a request says beyond its kind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gradebox.sandbox import instruments, linux, ours


@dataclass(frozen=True)
class Kind:
    """Which machine requests ask for."""

    model: str = ""
    """Of virtual GPUs; empty where none is wanted."""
    values: bool = True
    gpus: int = 0


def kind_of(device: str, *, values: bool, ranks: int) -> Kind:
    """Requests on the CPU and on a real GPU are of one kind."""
    name, _, model = device.partition(":")
    return Kind(model, values, ranks) if name == "vgpu" else Kind()


@dataclass(frozen=True)
class Ready:
    """What a worker finds done."""

    prepared: Any
    """The `vgpu.Prepared` of the kind's machine. None where no virtual GPU is wanted, or where making one failed: then
    the worker meets the same error, and reports it."""
    prints: instruments.Fingerprint
    """Of our packages' code, with the machine's patches in place."""
    modules: frozenset[str]
    """Names of those packages' modules."""
    imported: int
    """How many modules of all packages `sys.modules` has."""

    course: str
    """The course's package."""

    def covers(self, probe: str, gpu: object) -> bool:
        """Whether nothing of our packages has been imported since: the probe's module, by name, or the virtual GPU."""
        others = gpu is not None and self.prepared is None
        return not others and (probe in self.modules or probe.partition(".")[0] != self.course)


def make(kind: Kind, course: str) -> Ready:
    """Get ready, for probes of the package `course`, and see that this process can go on forking.

    Raises:
        RuntimeError: it has several threads.
    """
    prepared = _prepare(kind) if kind.model else None
    ours.remember(course)
    packages = instruments.own_packages(course)
    ready = Ready(prepared, instruments.snapshot(packages), _names(packages), len(sys.modules), course)
    require_one_thread()
    # Objects that live as long as this process need not be visited, and so copied, by any child's collector.
    gc.collect()
    gc.freeze()
    return ready


def _names(packages: tuple[ModuleType, ...]) -> frozenset[str]:
    roots = {package.__name__ for package in packages}
    return frozenset(name for name in sys.modules if name.partition(".")[0] in roots)


def _prepare(kind: Kind) -> Any:
    with contextlib.suppress(Exception):
        import vgpu

        # On a machine with a real GPU some checks still ask for the virtual one, whose truth is known.
        return vgpu.prepare(kind.model, gpus=kind.gpus, values=kind.values)
    return None


def require_one_thread() -> None:
    """A process with several threads cannot be forked safely.

    Raises:
        RuntimeError: this is one.
    """
    if linux.AVAILABLE and (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"the server has {threads} threads after preloading, so forking it is not safe")
