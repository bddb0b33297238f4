"""What got slower since the results that are committed. A hint to look, with the reasons for which it may be nothing.

Ratios and counts stand for themselves. Seconds depend on the machine and its neighbours: they are compared after
dividing by those of a yardstick (`measure.machine`), and not at all where one side has none, nor between two kinds of
processors or interpreters: of those the loop that the yardstick is says little about a grade.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import RESULTS

LIMIT = 0.10
_YARDSTICK = "yardstick_seconds"
_KIND = ("cpu", "cores", "python", "interpreter")
"""What makes two machines of one kind."""
_LEFT_OUT = {
    "machine",
    "load_average",
    "min_seconds",
    "max_seconds",
    "min_microseconds",
    "max_microseconds",
    "all",
    "rounds",
}
_TIMES = ("seconds", "microseconds", "microseconds_above_cpu_per_operation")
_OTHERS = ("faults", "bytes")


class Slower(NamedTuple):
    """A figure that grew by more than `LIMIT`."""

    place: str
    before: float
    now: float
    ratio: float
    """After the machines' speeds are taken out."""

    def __str__(self) -> str:
        return f"{self.place}: {self.before:.4g} -> {self.now:.4g} ({self.ratio - 1:+.0%})"


def committed(name: str) -> dict[str, Any] | None:
    """The results of a benchmark as they were committed last; None where there are none, or no git."""
    path = f"benchmarks/results/{name}.json"
    done = subprocess.run(
        ["git", "show", f"HEAD:{path}"], cwd=RESULTS.parents[1], capture_output=True, text=True, check=False
    )
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


def slower(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Slower]:
    """The figures that got worse, the worst first."""
    old, new = (result.get("machine", {}).get(_YARDSTICK) for result in (before, now))
    speed = new / old if old and new and not _differ(before, now) else None
    known = dict(_figures(before))
    slowdowns = []
    for place, value in _figures(now):
        earlier = known.get(place)
        scale = speed if _is_time(place) else 1.0
        if earlier and scale is not None and value / earlier / scale > 1 + LIMIT:
            slowdowns.append(Slower(place, earlier, value, value / earlier / scale))
    return sorted(slowdowns, key=lambda slowdown: -slowdown.ratio)


def report(path: Path) -> Iterator[str]:
    """Lines about the results that were just written to `path`."""
    before, now = committed(path.stem), json.loads(path.read_text())
    if before is None:
        return
    old, new = before["machine"], now["machine"]
    if _YARDSTICK not in old:
        yield f"  the committed results ({old['date']}) have no yardstick: only ratios and counts are compared"
    elif kinds := _differ(before, now):
        yield f"  measured on another machine than on {old['date']} ({kinds}): only ratios and counts are compared"
    elif abs(new[_YARDSTICK] / old[_YARDSTICK] - 1) > LIMIT:
        yield (
            f"  this machine is {new[_YARDSTICK] / old[_YARDSTICK]:.2f} times as slow as the one of {old['date']}; "
            "times are compared after dividing by that"
        )
    for slowdown in slower(before, now):
        yield f"  slower than on {old['date']}: {slowdown}"


def _differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what two machines are not of one kind; empty where they are. What was not noted then may be the same."""
    old, new = (result.get("machine", {}) for result in (before, now))
    return ", ".join(
        f"{name} {old[name]}, now {new[name]}"
        for name in _KIND
        if name in old and name in new and old[name] != new[name]
    )


def _figures(results: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, float]]:
    for key, value in results.items():
        if key in _LEFT_OUT:
            continue
        here = f"{place}.{key}" if place else key
        if isinstance(value, Mapping):
            yield from _figures(value, here)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and _counts(here):
            yield here, float(value)


def _counts(place: str) -> bool:
    last = place.rpartition(".")[2]
    return _is_time(place) or last.startswith("ratio_to_") or last.endswith(_OTHERS)


def _is_time(place: str) -> bool:
    parts = place.split(".")
    return parts[-1].endswith(_TIMES) or any(
        part.startswith("seconds_per_") or part.endswith("_seconds") for part in parts
    )
