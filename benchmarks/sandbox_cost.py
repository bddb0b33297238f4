"""What isolation costs: one check's probe in the sandbox, in a fresh interpreter, and in this process.

Also what a request costs all processes of the sandbox together, in CPU seconds and page faults: a machine that others
use as well stretches seconds, but not these.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grader
from benchmarks.measure import interleaved, save, summary
from gradebox.sandbox import Request, Sandbox
from gradebox.sandbox.probe_loader import Student
from grader.lab1.analysis import probes as lab1
from grader.lab1.analysis.cases import PeakShares, Reached

ROOT = Path(__file__).parents[1]
CASES: list[Reached] = [{"size": 1001, "seconds": 1e-3, "peak_tflops": 8.0}]
PRODUCT = {"left": [[1.0, 2.0], [3.0, 4.0]], "right": [[0.5, -1.0], [2.0, 0.25]]}
REQUESTS = 20
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
FRESH = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.sandbox_cost import InProcess
from grader.lab1.analysis import probes
from grader.lab1.analysis.cases import PeakShares
print(probes.peak_shares(InProcess(), PeakShares(cases={cases!r}, refused=[])))
"""


class InProcess:
    """The student as a probe sees it, without any sandbox: the reference, imported here."""

    gpu = None
    device = "cpu"

    def module(self, name: str) -> Any:
        return importlib.import_module(f"solutions.{name}")


def _ask(sandbox: Sandbox, request: Request) -> None:
    reply = sandbox.run(request)
    if reply.kind != "ok":
        raise RuntimeError(f"the probe ended as {reply.kind}: {reply.message}")


def _cost(sandbox: Sandbox, device: str) -> dict[str, float]:
    """Of one request, on average; the first of its kind, which makes its template, is left out."""
    request = Request("shared.trial.product", params=PRODUCT, device=device, student=False)
    _ask(sandbox, request)
    before = _used(os.getpid())
    for _ in range(REQUESTS):
        _ask(sandbox, request)
    after = _used(os.getpid())
    cpu, faults = ((late - early) / REQUESTS for early, late in zip(before, after, strict=True))
    return {"cpu_seconds": cpu, "page_faults": faults}


def _used(judge: int) -> tuple[float, int]:
    """CPU seconds and minor page faults of every process below `judge`, and of those that they have waited for."""
    below: dict[int, list[list[str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Process id, then what follows the name: state, parent, ...
            fields = [path.parent.name, *path.read_text().rpartition(")")[2].split()]
            below.setdefault(int(fields[2]), []).append(fields)
    ticks = faults = 0
    waiting = [judge]
    while waiting:
        for fields in below.pop(waiting.pop(), []):
            waiting.append(int(fields[0]))
            ticks += sum(int(field) for field in fields[12:16])
            faults += int(fields[8]) + int(fields[9])
    return ticks / TICKS_PER_SECOND, faults


def main() -> Path:
    """Time the probe `lab1.analysis.peak_shares` three ways and save the ratios."""
    student = cast(Student, InProcess())
    fresh = [sys.executable, "-c", FRESH.format(root=str(ROOT), cases=CASES)]
    with Sandbox(ROOT / "solutions", grader.course().environment) as sandbox:
        request = Request("lab1.analysis.peak_shares", params={"cases": CASES, "refused": []})
        on_gpu = replace(request, device="vgpu:T4", values=False)

        def ask(which: Request) -> None:
            _ask(sandbox, which)

        ask(request)
        lab1.peak_shares(student, PeakShares(cases=CASES, refused=[]))
        seconds = interleaved(
            {
                "in_process": lambda: lab1.peak_shares(student, PeakShares(cases=CASES, refused=[])),
                "sandbox": lambda: ask(request),
                "sandbox_with_virtual_gpu": lambda: ask(on_gpu),
                "fresh_interpreter": lambda: subprocess.run(fresh, check=True, capture_output=True),
            },
            rounds=7,
        )
        costs = {device: _cost(sandbox, device) for device in ("cpu", "vgpu:T4")}
        isolation = sandbox.isolation.mode
    return save(
        "sandbox_cost",
        {
            "what": "seconds per check of the probe lab1.analysis.peak_shares, import of the submission included",
            "isolation": isolation,
            "results": summary(seconds, reference="sandbox"),
            "a_request_with_one_product": costs,
        },
    )


if __name__ == "__main__":
    print(main())
