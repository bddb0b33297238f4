"""A stand-in for `nvidia-smi`, which programs start by its name: it answers from what a virtual machine wrote down.

It runs as a program of its own and imports nothing but Python's library. Options and formats: nvidia-smi(1). Not here:
who puts it on the path (`vgpu.runtime.smi`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ALIASES = {
    "gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial",
    "fb_memory_usage.total": "memory.total", "clocks.current.sm": "clocks.sm", "clocks.gr": "clocks.sm",
    "clocks.current.graphics": "clocks.sm", "clocks.current.memory": "clocks.mem",
    "clocks.max.sm": "clocks.max.graphics", "clocks.max.gr": "clocks.max.graphics",
    "enforced.power.limit": "power.limit", "power.draw.average": "power.draw",
    "power.draw.instant": "power.draw", "power.default_limit": "power.limit", "power.max_limit": "power.limit",
    "temperature.gpu.tlimit": "temperature.gpu", "mem.total": "memory.total",
}  # fmt: skip
_UNITS = {
    "memory": "MiB",
    "utilization": "%",
    "power": "W",
    "clocks": "MHz",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}
_APPS = {"pid": "pid", "process_name": "process_name", "name": "process_name", "gpu_uuid": "uuid", "gpu_name": "name",
         "gpu_bus_id": "pci.bus_id", "used_memory": "used_memory", "used_gpu_memory": "used_memory"}  # fmt: skip
_WIDTH = 89
_FULL = "+" + "-" * _WIDTH + "+"
_PARTS = "+" + "+".join("-" * width for width in (41, 24, 22)) + "+"


def main(state_file: str, argv: Sequence[str]) -> int:
    """Returns the exit status: 0, 2 for an option or field that it does not know, 6 for a GPU that is not there."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="A stand-in of vgpu: figures are simulated.")
    parser.add_argument("-L", "--list-gpus", action="store_true", help="list the GPUs")
    parser.add_argument("-i", "--id", help="only the GPU of this index, UUID or bus id; several with commas between")
    parser.add_argument("--query-gpu", help="fields of each GPU, with commas between")
    parser.add_argument("--query-compute-apps", help="fields of each process, with commas between")
    parser.add_argument("--format", default="", help="csv[,noheader][,nounits]")
    parser.add_argument("--version", action="store_true", help="print the versions")
    options = parser.parse_args(argv)
    state = json.loads(Path(state_file).read_text(encoding="utf-8"))
    gpus = state["gpus"]
    if options.id is not None:
        wanted = options.id.split(",")
        gpus = [gpu for gpu in gpus if {gpu["index"], gpu["uuid"], gpu["pci.bus_id"]} & set(wanted)]
        if len(gpus) < len(wanted):
            print("No devices were found")
            return 6
    if options.version:
        print(f"NVIDIA-SMI version  : {state['driver']}\nDRIVER version      : {state['driver']}\n"
              f"CUDA Version        : {state['cuda']}\n(simulated by vgpu)")  # fmt: skip
        return 0
    if options.list_gpus:
        for gpu in gpus:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        return 0
    if options.query_gpu is not None or options.query_compute_apps is not None:
        return _query(options, gpus)
    print(_table(state, gpus))
    return 0


def _query(options: argparse.Namespace, gpus: Sequence[Mapping[str, Any]]) -> int:
    formats = options.format.split(",")
    if formats[0] != "csv":
        print("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.")
        return 2
    if options.query_gpu is not None:
        asked, known = options.query_gpu, {name: name for name in gpus[0]} | _ALIASES if gpus else {}
        rows: list[Mapping[str, Any]] = list(gpus)
    else:
        asked, known = options.query_compute_apps, _APPS
        rows = [{**gpu, **process} for gpu in gpus for process in gpu["processes"]]
    fields = [field.strip() for field in asked.split(",")]
    for field in fields:
        if known.get(field) in (None, "processes"):
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if "noheader" not in formats:
        print(", ".join(f"{field} [{_unit(field)}]" if _unit(field) else field for field in fields))
    for row in rows:
        print(", ".join(_shown(field, str(row[known[field]]), units="nounits" not in formats) for field in fields))
    return 0


def _unit(field: str) -> str:
    return _UNITS.get(field.split(".")[0], "")


def _shown(field: str, value: str, *, units: bool) -> str:
    unit = _unit(field)
    return f"{value} {unit}" if units and unit and not value.startswith("[") else value


def _table(state: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    def full(text: str) -> str:
        return f"|{text:<{_WIDTH}}|"

    def parts(left: str, middle: str, right: str) -> str:
        return f"|{left:<41}|{middle:>23} |{right:>21} |"

    driver = f" NVIDIA-SMI {state['driver']:<23}Driver Version: {state['driver']:<15} CUDA Version: {state['cuda']}"
    lines = [
        f"{time.strftime('%a %b %e %H:%M:%S %Y')}  (simulated by vgpu)", _FULL, full(driver),
        _PARTS.replace("+", "|", 1),
        parts(" GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
        parts(" Fan  Temp   Perf          Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."),
        parts("", "", "MIG M."), "|" + _PARTS[1:-1].replace("-", "=") + "|",
    ]  # fmt: skip
    for gpu in gpus:
        watts, limit = (f"{float(gpu[name]):.0f}W" for name in ("power.draw", "power.limit"))
        used, total = (f"{gpu[name]}MiB" for name in ("memory.used", "memory.total"))
        title = f" {gpu['index']:>3}  {gpu['name'].removesuffix(' (simulated)'):<28}"
        lines += [
            parts(f"{title:<36}On", f"{gpu['pci.bus_id']} Off", "0"),
            parts(f" N/A {gpu['temperature.gpu']:>4}C    {gpu['pstate']:<12} {watts:>6} / {limit:>5}",
                  f"{used:>8} / {total:>9}", f"{gpu['utilization.gpu']:>3}%      Default"),
            parts("", "", "N/A"), _PARTS,
        ]  # fmt: skip
    lines += [
        "", _FULL, full(" Processes:"),
        full("  GPU   GI   CI              PID   Type   Process name                        GPU Memory "),
        full("        ID   ID                                                               Usage      "),
        "|" + "=" * _WIDTH + "|",
    ]  # fmt: skip
    running = [(gpu["index"], process) for gpu in gpus for process in gpu["processes"]]
    for index, process in running:
        name, used = process["process_name"], f"{process['used_memory']}MiB"
        lines.append(full(f"  {index:>3}   N/A  N/A {process['pid']:>16}      C   {name:<34} {used:>10} "))
    return "\n".join([*lines, *([] if running else [full("  No running processes found")]), _FULL])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
