"""The history of a fleet: a file to which runs are added, a line each; what stands out among GPUs and over time.

The bars are ours but for the score, which is Iglewicz and Hoaglin's (How to Detect and Handle Outliers, 1993).
"""

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from cluster.fleet.reports import Entry, ReportError

SCORE = 3.5
"""Modified z-scores above it are outliers: 0.6745 times the distance from the median, in median absolute deviations."""
TO_SIGMA = 0.6745
LEAST_SHARE = 0.05
"""Worse than the median by less is no reason to open a machine: runs on one GPU differ by 1 or 2 percent."""
LEAST_GPUS = 4
"""Of fewer nobody knows which one is right."""
SLOWER = 0.9
"""Of the median of a GPU's own earlier runs; as `--baseline` has it."""
LEAST_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A figure that stands out."""

    node: str
    gpu: str
    model: str
    name: str
    value: float
    ratio: float
    """To the median of the fleet, or of its own earlier runs."""
    against: str
    """"fleet" or "history"."""

    def __str__(self) -> str:
        what = "of the fleet's median" if self.against == "fleet" else "of its own earlier runs"
        return f"{self.node} {self.gpu}: {self.name} {self.value:.4g}, {self.ratio:.0%} {what}".replace(" : ", ": ")


def read(path: Path) -> list[Entry]:
    """All entries, oldest first; none where there is no file yet.

    Raises:
        ReportError: a line is damaged; it is named.
        OSError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(Entry.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            hint = "the last line was cut off: remove it" if number == len(lines) else "restore it from a copy"
            raise ReportError(f"{path}, line {number}: no entry of a history ({error!r}); {hint}") from error
    return sorted(entries, key=lambda entry: entry.time_seconds)


def add(path: Path, entries: Iterable[Entry], *, keep_days: int | None = None) -> list[Entry]:
    """Add what is new, forget what is too old; all that is kept, oldest first. Two programs may do it at once.

    Raises:
        ReportError, OSError: as `read`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {entry.key: entry for entry in read(path)}
        for entry in entries:
            known.setdefault(entry.key, entry)
        kept = sorted(known.values(), key=lambda entry: entry.time_seconds)
        if keep_days is not None:
            oldest = (datetime.now(UTC) - timedelta(days=keep_days)).timestamp()
            kept = [entry for entry in kept if entry.time_seconds >= oldest]
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(entry.dumps() + "\n" for entry in kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return kept


def latest(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The last entry of each node."""
    return {node: entry for entry in entries for node in entry.verdicts}


def series(entries: Sequence[Entry]) -> dict[tuple[str, str, str, str], list[float]]:
    """Values over time, by model, name, node and GPU."""
    by_gpu: dict[tuple[str, str, str, str], list[float]] = {}
    for entry in entries:
        for figure in entry.figures:
            by_gpu.setdefault((figure.model, figure.name, figure.node, figure.gpu), []).append(figure.value)
    return by_gpu


def _groups(entries: Sequence[Entry]) -> dict[tuple[str, str], list[float]]:
    """The last value of every GPU, by model and name."""
    groups: dict[tuple[str, str], list[float]] = {}
    for (model, name, _, _), values in series(entries).items():
        groups.setdefault((model, name), []).append(values[-1])
    return groups


def ratios(entries: Sequence[Entry]) -> list[Outlier]:
    """Every GPU's last figure against the fleet, and against its own earlier runs where there are enough."""
    comparisons = []
    groups = _groups(entries)
    for (model, name, node, gpu), values in series(entries).items():
        others = {"fleet": groups[model, name] if len(groups[model, name]) >= LEAST_GPUS else [],
                  "history": values[:-1] if len(values) > LEAST_RUNS else []}  # fmt: skip
        comparisons += [
            Outlier(
                node=node,
                gpu=gpu,
                model=model,
                name=name,
                value=values[-1],
                ratio=values[-1] / median(those),
                against=against,
            )
            for against, those in others.items()
            if those
        ]
    return comparisons


def outliers(entries: Sequence[Entry]) -> list[Outlier]:
    """Those that are too low: against the fleet by the score and by a share, against their own past by a share."""
    groups = _groups(entries)
    low = []
    for comparison in ratios(entries):
        far = (
            comparison.ratio < 1 - LEAST_SHARE
            and _score(comparison.value, groups[comparison.model, comparison.name]) > SCORE
        )
        if far if comparison.against == "fleet" else comparison.ratio < SLOWER:
            low.append(comparison)
    return low


def _score(value: float, group: Sequence[float]) -> float:
    middle = median(group)
    spread = median(abs(other - middle) for other in group)
    return TO_SIGMA * (middle - value) / spread if spread else float("inf")
