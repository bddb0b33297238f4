"""What isolation costs: one check's probe in the sandbox, in a fresh interpreter, and in this process."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import interleaved, save, summary
from gradebox.sandbox import Request, Sandbox
from grader.lab1.probes import gpu_basics as lab1

ROOT = Path(__file__).parents[1]
CASES = [{"size": 1001, "seconds": 1e-3, "peak_tflops": 8.0}]
FRESH = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.sandbox_cost import InProcess
from grader.probes import lab1
print(lab1.peak_share(InProcess(), cases={cases!r}))
"""


class InProcess:
    """The student as a probe sees it, without any sandbox: the reference, imported here."""

    gpu = None
    device = "cpu"

    def module(self, name: str) -> Any:
        return importlib.import_module(f"solutions.{name}")


def main() -> Path:
    """Time the probe `lab1.peak_share` three ways and save the ratios."""
    student = InProcess()
    fresh = [sys.executable, "-c", FRESH.format(root=str(ROOT), cases=CASES)]
    with Sandbox(ROOT / "solutions") as sandbox:
        request = Request("lab1.gpu_basics.peak_share", params={"cases": CASES})
        on_gpu = Request("lab1.gpu_basics.peak_share", params={"cases": CASES}, device="vgpu:T4", values=False)

        def ask(which: Request) -> None:
            reply = sandbox.run(which)
            if reply.kind != "ok":
                raise RuntimeError(f"the probe ended as {reply.kind}: {reply.message}")

        ask(request)
        lab1.peak_share(student, cases=CASES)
        seconds = interleaved(
            {
                "in_process": lambda: lab1.peak_share(student, cases=CASES),
                "sandbox": lambda: ask(request),
                "sandbox_with_virtual_gpu": lambda: ask(on_gpu),
                "fresh_interpreter": lambda: subprocess.run(fresh, check=True, capture_output=True),
            },
            rounds=7,
        )
        isolation = sandbox.isolation.mode
    return save(
        "sandbox_cost",
        {
            "what": "seconds per check of the probe lab1.peak_share, import of the submission included",
            "isolation": isolation,
            "results": summary(seconds, reference="sandbox"),
        },
    )


if __name__ == "__main__":
    print(main())
