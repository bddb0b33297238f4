"""Measuring: the machine, the cases, the random numbers, into one file. Not here: what comes of it (`compare`)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch

from benchmarks.measure import machine
from benchmarks.measured import cases, draws

SCHEMA = 1
SECTIONS = ("draws", *cases.SECTIONS)


def about() -> dict[str, Any]:
    """The machine that a record is of."""
    properties = torch.cuda.get_device_properties(0)
    details = machine() | {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": list(torch.cuda.get_device_capability()),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    queries = {
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "power_limit_milliwatts": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "sm_megahertz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "largest_sm_megahertz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "celsius": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    for name, ask in queries.items():
        try:
            details[name] = ask()
        except pynvml.NVMLError as error:  # not every machine lets a guest ask
            details[name] = str(error)
    return details


def measure(path: Path, sections: Sequence[str], seconds: float, known: Path | None = None) -> dict[str, Any]:
    """Run the sections, and write what there is after each of them; no new case is begun after `seconds`.

    What the file `known` has a value of is taken from there.
    """
    start = time.monotonic()
    before = [] if known is None else json.loads(known.read_text(encoding="utf-8"))["entries"]
    have = {(entry["group"], entry["name"]): entry for entry in before if "error" not in entry}
    torch.zeros(1, device="cuda")
    document: dict[str, Any] = {"schema": SCHEMA, "machine": about(), "entries": [], "draws": []}
    for section in sections:
        if section == "draws":
            document["draws"] = list(draws.draw())
        else:
            for case in cases.SECTIONS[section]():
                entry = have.get((case.group, case.name))
                if entry is None and time.monotonic() - start > seconds:
                    entry = {"group": case.group, "name": case.name, "unit": case.unit, "error": "no time was left"}
                document["entries"].append(entry or cases.run(case))
        print(f"{section}: {time.monotonic() - start:.1f} s, {len(document['entries'])} entries", flush=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return document
