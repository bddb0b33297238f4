"""Bandwidth of a GPU's own memory: a copy and a triad (J. McCalpin's STREAM), against the data sheet and the others.

Products of matrices hardly touch the memory, so that half its clock, or a stack that is gone, does not slow them down.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.compute import by_model, outlier_limit, outlying
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, against_good
from cluster.acceptance.verdict import Check, Threshold, believable, compared, graded

REPEATS = 10
AT_ONCE = 4
"""Kernels between two looks at the clock: one is over before the clock has been read."""
JUDGED_BYTES = 2**27
"""Of an array: smaller ones stay in the cache, or are over before the next kernel has been launched."""
KEY = "memory_gigabytes_per_second"
STREAMS = {"copy": 2, "triad": 3}
"""Arrays that are read or written."""
FAILS = 0.8
"""Ours, of what the slowest sound board of the model reaches (`copied` of hardware.toml); in between nothing passes."""
BEST_OF_SHEET = 0.93
"""The most that is published of any board."""
MOST_OF_SHEET = 1.3
"""Ours: a cache adds some percent."""
_UNIT, _SOURCE = "times the median of the other GPUs", "ours: memories of one model run at one clock"
PEERS = Threshold(value=1.2, unit=_UNIT, relation="at most", source=_SOURCE)
ALIKE = Threshold(value=1.1, unit=_UNIT, relation="at most", source=_SOURCE)


def measure(context: Context) -> dict[str, Any]:
    """Bytes per second, read and written together, by kind."""
    if not context.on_gpu:
        return {"skipped": "there is no GPU whose memory could be measured"}
    count = context.sizes.copy_bytes // 4
    a, b, c = (torch.ones(count, dtype=torch.float32, device=context.torch_device) for _ in range(3))
    kernels: dict[str, Callable[[], object]] = {
        # A kernel: what cudaMemcpy does on one GPU has a limit of its own, 2 of 4 TB/s on an H20
        # (NVIDIA/cuda-samples issue 366), 2.5 of 3.35 on an H100 (NVIDIA/nccl issue 1264).
        "copy": lambda: torch.neg(b, out=a),
        "triad": lambda: torch.add(b, c, alpha=3.0, out=a),
    }
    rates = {}
    for name, kernel in kernels.items():
        context.at(f"memory bandwidth, {name}")
        seconds = []
        for _ in range(1 + REPEATS):
            context.synchronize()
            began = time.perf_counter()
            for _ in range(AT_ONCE * (SLOW_FACTOR if context.has_fault("slow") else 1)):
                kernel()
            context.synchronize()
            seconds.append(time.perf_counter() - began)
        rates[name] = AT_ONCE * STREAMS[name] * 4 * count / median(seconds[1:])
    return {"bytes": 4 * count, "rates": rates}


def judge(
    records: Sequence[Record], expected: Expectations | None = None, *, has_baseline: bool = False
) -> list[Check]:
    """Checks of every GPU; none of records that were written before there was this stage."""
    measured = [record for record in records if record.result("bandwidth") and record.gpu is not None]
    checks = broken(measured, "bandwidth", "gpu")
    for same in by_model([record for record in measured if record.measured("bandwidth")]).values():
        for name in STREAMS:
            rates = [record.result("bandwidth")["rates"][name] for record in same]
            slowness = [1 / rate for rate in rates]
            for record, rate, ratio, far in zip(same, rates, against_good(slowness), outlying(slowness), strict=True):
                check = _one(record, name, rate, ratio, far, expected)
                # A baseline says whether a rate is right that has no bar of its own.
                checks.append(replace(check, status="skipped") if check.nothing_known and has_baseline else check)
    return checks


def _one(
    record: Record, name: str, rate: float, ratio: float | None, far: float, expected: Expectations | None
) -> Check:
    status, limit = graded(ratio, outlier_limit(PEERS, far), ALIKE)
    measured, evidence = ratio, f"{rate / 1e9:.0f} GB/s"
    known = board_of(record)
    if ratio is not None:
        evidence += f", {ratio:.2f} times the time of its peers"
    file = expected.threshold("gpu", KEY, "GB/s", "at least") if expected is not None else None
    nothing_known, published = False, None
    if record.result("bandwidth")["bytes"] < JUDGED_BYTES:
        status, evidence, nothing_known = "unverified", f"{evidence}; the arrays are too small to judge", True
    elif file is not None:
        status, limit, measured = compared(rate / 1e9, file), file, rate / 1e9
    elif known is not None and known.bandwidth_gb and status in ("pass", "skipped"):
        fails, passes = (
            Threshold(value=share * known.bandwidth_gb, unit="GB/s", relation="at least",
                      source=f"{share:.0%} of the data sheet's {known.bandwidth_gb:g} GB/s; sound boards of this model "
                      f"reach {known.copied:.0%} at least (hardware.toml)")
            for share in (FAILS * known.copied, known.copied)
        )  # fmt: skip
        measured, published = rate / 1e9, BEST_OF_SHEET * known.bandwidth_gb
        most = MOST_OF_SHEET * known.bandwidth_gb
        status, limit = believable(graded(measured, fails, passes), measured, most, unit="GB/s")
    elif status in ("pass", "skipped"):
        status, nothing_known = "unverified", True
        evidence += (
            "; this model's data sheet is not known here, so only --expect and --baseline say whether that is right"
        )
    return Check(
        name=f"memory bandwidth: {name}",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status=status,
        evidence=evidence,
        remedy="nvidia-smi -q -d CLOCK,ECC: the memory's clock (nvidia-smi -rmc), retired or remapped rows, MIG. "
        f"What is meant: --expect, [gpu] {KEY}",
        measured=measured,
        threshold=limit,
        published=published,
        nothing_known=nothing_known,
    )
