"""Names that a worker gives to what it measures: any other one in a record is of another version, or damaged."""

from cluster.acceptance.records import STAGES, TOOK
from cluster.acceptance.sysfs import COUNTERS, FLAPS, HARDWARE_COUNTERS

WAYS = ("to_device", "to_host")
STREAMS = ("copy", "triad")
SUMMARY = ("samples", "p25_seconds", "p50_seconds", "p95_seconds", "p99_seconds", "longest_seconds", "mean_seconds",
           "slow_share")  # fmt: skip
"""Figures of repetitions (`pace.summary`)."""
PATTERNS = ("zeros", "ones", "10", "01", "addresses")
"""Of memory."""
PRECISION = r"(tf|b?float|int)[0-9]+[0-9a-z_]*"


def _one_of(*names: str) -> str:
    return "|".join(names)


NAMES = {
    "reading.nvlink_peers": r"switch|[0-9a-fA-F]{4,8}(:[0-9a-fA-F]{2}){2}(\.[0-7])?",
    "reading.topology": r"\d{1,3}",
    "reading.untold": r"[a-z][a-z_]*",
    "presence.peak_tflops": PRECISION,
    "presence.held_ratio": PRECISION,
    TOOK: _one_of(*STAGES),
    "presence.environment": r"[A-Z][A-Z0-9_]*",
    "network.ports.counters": _one_of(*COUNTERS, *HARDWARE_COUNTERS, FLAPS),
    "copies.seconds": _one_of(*WAYS),
    "bandwidth.rates": _one_of(*STREAMS),
    "compute.products": PRECISION,
    "steadiness.copies.to_device": _one_of(*SUMMARY),
    "steadiness.copies.to_host": _one_of(*SUMMARY),
    "steadiness.copies": _one_of(*WAYS),
    "steadiness.products": _one_of(*SUMMARY),
    "steadiness": "products|copies",
    "memory.wrong": _one_of(*PATTERNS),
    "memory.first_byte": _one_of(*PATTERNS),
    "collectives.steady": _one_of("operation", "bytes", *SUMMARY),
}
"""What the keys of a table look like, by the table; the innermost tables first."""
