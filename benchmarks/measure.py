"""How the benchmarks measure and record: interleaved rounds, medians, and the machine's description next to them."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def percent(share: float, digits: int = 0) -> str:
    """A share as the pages write it: "6 %"."""
    return f"{share * 100:.{digits}f} %"


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each candidate, `rounds` times in turn, so that a slow minute of the machine hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: Mapping[str, list[float]], reference: str) -> dict[str, Any]:
    """Median, minimum and maximum seconds of each candidate, and its median as a ratio of the reference's."""
    base = statistics.median(seconds[reference])
    return {
        name: {
            "median_seconds": statistics.median(values),
            "min_seconds": min(values),
            "max_seconds": max(values),
            "rounds": len(values),
            f"ratio_to_{reference}": statistics.median(values) / base,
        }
        for name, values in seconds.items()
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how fast that was just now."""
    model = next(
        (line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "interpreter": "the system's" if sys.base_prefix == "/usr" else "not the system's",
        "torch": version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "yardstick_seconds": yardstick(),
    }


def yardstick() -> float:
    """Processor seconds of the same Python on any machine: the least of seven, since neighbours only slow down."""
    least = math.inf
    for _ in range(7):
        begun = time.process_time()
        table = {number: str(number) for number in range(20_000)}
        sum(len(table[number]) * number for number in range(20_000) for _ in range(4))
        least = min(least, time.process_time() - begun)
    return least


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes: whether the machine was quiet."""
    return [round(value, 2) for value in os.getloadavg()]


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def save(name: str, results: Mapping[str, Any]) -> Path:
    """Write `results/NAME.json` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2) + "\n")
    return path
