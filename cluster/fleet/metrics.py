"""What is known of nodes as Prometheus reads it: a file for node_exporter's textfile collector.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and node_exporter's README (textfile collector).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.acceptance.verdict import EXIT_CODES, Outcome
from labkit.files import atomic_write

PREFIX = "gpu_acceptance"
HELP = {
    "verdict": "1 for the verdict that holds, 0 for the others.",
    "checks": "Checks of the last look, by how they ended.",
    "failed": "1 for each check that failed, with what it is about.",
    "time_seconds": "When that was, in seconds since 1970.",
    "duration_seconds": "How long the look took.",
    "product_flops_per_second": "Rate of matrix products of one GPU.",
    "copy_bytes_per_second": "Copies between host and GPU.",
    "bus_bytes_per_second": "Bus bandwidth of the largest message of a collective.",
    "images_per_second": "Images that a rank trains.",
    "fleet_ratio": "Figure of a GPU divided by the median of all GPUs of its model.",
    "history_ratio": "Figure of a GPU divided by the median of its own earlier runs.",
    "outliers": "Figures of a node that stand out against the fleet.",
}
"""By name, without the prefix. All are gauges."""
MOST_FAILURES = 64
"""Series of one node: a broken one must not flood the database."""


@dataclass
class Metrics:
    """Samples by metric."""

    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)

    def set(self, name: str, value: float, **labels: str) -> None:
        """One sample; the same labels again replace it."""
        if name not in HELP:
            raise KeyError(name)
        self.samples.setdefault(name, {})[tuple(sorted(labels.items()))] = float(value)

    def verdict(self, node: str, kind: str, outcome: Outcome, time_seconds: float) -> None:
        """Verdict and time of a look; `kind`: "light" or "acceptance"."""
        for name in EXIT_CODES:
            self.set("verdict", name == outcome, node=node, kind=kind, verdict=name.lower().replace(" ", "_"))
        self.set("time_seconds", time_seconds, node=node, kind=kind)

    def failures(self, node: str, kind: str, failed: Iterable[tuple[str, str]]) -> None:
        """Checks that failed, by name and subject."""
        for name, subject in list(failed)[:MOST_FAILURES]:
            self.set("failed", 1, node=node, kind=kind, check=name, subject=subject)

    def counts(self, node: str, kind: str, counts: Mapping[str, int]) -> None:
        """How many checks ended how."""
        for status in ("pass", "fail", "unverified", "skipped"):
            self.set("checks", counts.get(status, 0), node=node, kind=kind, status=status)

    def text(self) -> str:
        """In Prometheus' text format."""
        lines = []
        for name, explained in HELP.items():
            if samples := self.samples.get(name):
                full = f"{PREFIX}_{name}"
                lines += [f"# HELP {full} {explained}", f"# TYPE {full} gauge"]
                lines += [f"{full}{{{_labels(labels)}}} {value!r}" for labels, value in samples.items()]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """Put the whole file in place at once, readable for the exporter's user.

        Raises:
            OSError: it cannot be written.
        """
        with atomic_write(path) as temporary:
            temporary.write_text(self.text(), encoding="utf-8")
            temporary.chmod(0o644)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
