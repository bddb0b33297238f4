"""What is known of one rank when the run is over, as plain values that travel as JSON. No PyTorch here."""

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

STAGES = (
    "before",
    "presence",
    "network",
    "adapters",
    "copies",
    "bandwidth",
    "compute",
    "steadiness",
    "memory",
    "load",
    "gradients",
    "collectives",
    "pairs",
    "data",
    "training",
    "network_after",
    "after",
)
"""What a rank goes through, in this order."""
TOOK = "took"
"""Beside the stages: how long each of them took this rank, in seconds."""
FEWEST_FOR_GOOD = 4
GOOD_PERCENT = 12.5
GOOD_TIMES = 1.04
"""By so much the quick ones of a sound fleet are quicker than its median; from end to end it varies by 8 % and more."""
TOGETHER = ("collectives", "pairs", "training")
"""Stages that need all ranks at once."""


@dataclass(kw_only=True)
class Record:
    """One rank: what it measured, how far it came and how it ended."""

    rank: int
    local_rank: int = 0
    node: str = "?"
    ending: str = "finished"
    """"finished", "died", "hung", "stopped" (because another rank was at its end) or "lost" (no word from it)."""
    detail: str = ""
    """How exactly, for people: "killed by SIGKILL"."""
    at: str = "not started"
    """Its last position: "all_reduce of 1.0 MiB"."""
    progress: int = 0
    """How many positions it went through. All ranks go through the same ones, so the smallest is the one behind."""
    progress_at_stop: int | None = None
    """The same when the run was called off; None where it was not, or the rank was over. Later, ranks that waited for
    one which was ended go on with an error."""
    at_stop: str = ""
    """Its position then."""
    skipped_collectives: int = 0
    """Collectives of the program that it did not issue."""
    results: dict[str, Any] = field(default_factory=dict)
    """By stage; {"error": "..."} where the stage broke, {"skipped": "..."} where it could not begin."""
    log: str = ""
    """The end of what it printed, and where it stood when it was ended."""

    def result(self, stage: str) -> dict[str, Any]:
        """What a stage measured; empty where it was never reached."""
        result: dict[str, Any] = self.results.get(stage, {})
        return result

    def measured(self, stage: str) -> bool:
        """Whether a stage came to its end."""
        result = self.result(stage)
        return bool(result) and "error" not in result and "skipped" not in result

    @property
    def times(self) -> dict[str, float]:
        """Seconds of each stage; empty where they are not known."""
        return self.result(TOOK) if self.measured(TOOK) else {}

    @property
    def gpu(self) -> int | None:
        """Index of its GPU as CUDA counts on its node; None on the CPU."""
        index = self.result("presence").get("index")
        return None if index is None else int(index)

    @property
    def subject(self) -> str:
        """For people: "GPU 1 (rank 1, node17)"."""
        where = f"rank {self.rank}, {self.node}"
        return where if self.gpu is None else f"GPU {self.gpu} ({where})"

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str | bytes) -> "Record":
        """Back from `dumps`."""
        return cls(**json.loads(text))


def apart(records: Sequence[Record]) -> list[Record]:
    """The same records, with machines of one name told apart.

    Two machines may have one host name, and two pods may run on one machine: a local rank that comes twice under one
    name says so. The judge counts GPUs and draws pairs by node, so each gets a name of its own.
    """
    seen: dict[str, list[set[int]]] = {}
    places: list[tuple[str, int]] = []
    for record in records:
        groups = seen.setdefault(record.node, [])
        number = next((n for n, group in enumerate(groups) if record.local_rank not in group), len(groups))
        if number == len(groups):
            groups.append(set())
        groups[number].add(record.local_rank)
        places.append((record.node, number + 1))
    return [
        record
        if len(seen[node]) < 2 or node == "?"
        else replace(record, node=f"{node} ({number} of {len(seen[node])})")
        for record, (node, number) in zip(records, places, strict=True)
    ]


def against_peers(values: Sequence[float]) -> list[float | None]:
    """Each value divided by the median of the *others*; None where there are none.

    Of the others, so that with two GPUs the slow one is compared with the good one and not with half of itself.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count < 2:
        return [None] * count
    # Of one less, the middle moves by at most one place, by which half the value itself is in.
    low, high = (count - 2) // 2, (count - 1) // 2
    ratios: list[float | None] = []
    for value in values:
        place = bisect_left(ordered, value)
        ratios.append(value / ((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2))
    return ratios


def against_good(values: Sequence[float]) -> list[float | None]:
    """As `against_peers`, of times; by the quick ones where that is more: if most are slow, the median is slow as well.

    Of few it is the quickest, of many the quickest eighth: the ends of a fleet are further from each other.
    """
    ratios = against_peers(values)
    if len(values) < FEWEST_FOR_GOOD:
        return ratios
    good = percentile(values, GOOD_PERCENT)
    return [
        None if ratio is None else max(ratio, value / good / GOOD_TIMES)
        for ratio, value in zip(ratios, values, strict=True)
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def readable(count: int) -> str:
    """Bytes for people: "1.0 MiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
