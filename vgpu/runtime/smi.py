"""`nvidia-smi` as a program: a stand-in on the path of the programs that a program starts, and what it answers from.

Under `python -m vgpu` alone, since it changes the environment. Figures are NVML's (`vgpu.runtime.nvml`), as of when the
program was started. Not here: options and formats (`vgpu.tools.nvidia_smi`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vgpu.runtime.nvml import SAMPLE_SECONDS, Nvml, bus_id, uuid

if TYPE_CHECKING:
    from vgpu.runtime.machine import Machine

NAME = "nvidia-smi"
_PROGRAM = Path(__file__).parents[1] / "tools" / "nvidia_smi.py"
_NOT_AVAILABLE = "[N/A]"
_MEBI = 1 << 20


class StandIn:
    """A folder with the program, and a file that it answers from."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self.folder = folder
        self._state = folder / "state.json"
        program = folder / NAME
        words = [sys.executable, "-I", str(_PROGRAM), str(self._state)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        self.refresh()

    def refresh(self, command: Any = NAME) -> None:
        """Write down how the GPUs are now, if a command names the program."""
        if NAME in str(command):
            fresh = self._state.with_suffix(".new")
            fresh.write_text(json.dumps(described(self._machine)), encoding="utf-8")
            fresh.replace(self._state)


@contextlib.contextmanager
def on_path(machine: Machine) -> Iterator[StandIn]:
    """In this block programs that this one starts find the stand-in before any other `nvidia-smi`."""
    folder, owner, path = Path(tempfile.mkdtemp(prefix="vgpu-")), os.getpid(), os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
    stand_in, system = StandIn(machine, folder), os.system

    def run(command: Any) -> int:
        stand_in.refresh(command)
        return system(command)

    os.system = run
    try:
        yield stand_in
    finally:
        os.system = system
        os.environ["PATH"] = os.environ.get("PATH", "").replace(f"{folder}{os.pathsep}", "", 1)
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


class _Glance(Nvml):
    """NVML's figures, read by a program of its own: that takes the machine's program no time."""

    def busy(self, handle: Any) -> float:
        """Busy share of the device over the last sampling period (ratio)."""
        gpu = self.gpu(handle)
        end = gpu.clock.now
        begin = max(0.0, end - SAMPLE_SECONDS)
        return min(gpu.queue.busy_between(begin, end) / (end - begin), 1.0) if end > begin else 0.0


def described(machine: Machine) -> dict[str, Any]:
    """The machine as the stand-in wants it: versions, and the fields of `--query-gpu` for each GPU."""
    library = _Glance(machine, ModuleType("pynvml"))
    return {
        "driver": machine.spec.driver_version, "cuda": "13.0",
        "gpus": [_fields(library, handle) for handle in library.handles],
    }  # fmt: skip


def _fields(library: Nvml, handle: Any) -> dict[str, Any]:
    gpu = handle.gpu
    spec, board = gpu.spec, gpu.spec.monitoring
    total, used = spec.memory_bytes // _MEBI, -(-library.used(handle) // _MEBI)
    busy = library.busy(handle)

    def of_board(name: str) -> str:
        return str(board.get(name, _NOT_AVAILABLE))

    clock = str(int(spec.clock_hertz / 1e6))
    process = {"pid": os.getpid(), "process_name": sys.executable, "used_memory": used}
    return {
        "index": str(gpu.number), "count": str(len(library.handles)), "name": f"{spec.title} (simulated)",
        "uuid": uuid(gpu), "serial": f"simulated-{gpu.number}", "pci.bus_id": bus_id(gpu),
        "driver_version": spec.driver_version, "compute_cap": ".".join(map(str, spec.compute_capability)),
        "memory.total": total, "memory.used": used, "memory.free": total - used, "memory.reserved": 0,
        "utilization.gpu": round(100 * busy), "utilization.memory": round(100 * library.traffic(handle)),
        "temperature.gpu": library.temperature(handle), "temperature.memory": _NOT_AVAILABLE,
        "power.draw": f"{library.power(handle) / 1000:.2f}", "power.limit": f"{spec.power_watts[1]:.2f}",
        "power.management": "Enabled", "clocks.sm": clock if busy else of_board("idle_clock_megahertz"),
        "clocks.mem": of_board("memory_clock_megahertz" if busy else "idle_memory_clock_megahertz"),
        "clocks.max.graphics": clock, "clocks.max.mem": of_board("memory_clock_megahertz"),
        "pstate": f"P{0 if busy else of_board('idle_performance_state')}", "fan.speed": _NOT_AVAILABLE,
        "compute_mode": "Default", "persistence_mode": "Enabled", "display_active": "Disabled",
        "display_mode": "Disabled", "ecc.mode.current": "Enabled", "mig.mode.current": _NOT_AVAILABLE,
        "vbios_version": _NOT_AVAILABLE, "pcie.link.gen.current": of_board("pcie_generation"),
        "pcie.link.gen.max": of_board("pcie_generation"), "pcie.link.width.current": "16",
        "pcie.link.width.max": "16", "timestamp": f"{gpu.clock.now:.6f} s of virtual time",
        "processes": [process] if gpu.started else [],
    }  # fmt: skip
